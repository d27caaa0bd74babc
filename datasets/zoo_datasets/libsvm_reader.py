"""libsvm's sparse text: scikit-learn's parser for speed, a slow second look only to name what is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from zoo_datasets.errors import InputError, place, shown
from zoo_datasets.numbers import all_finite, fault_of_value, to_float32

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

__all__ = ["MAX_FEATURES", "read_libsvm"]

MAX_FEATURES = 10_000_000  # a guard: one mistyped index would ask for a layer of terabytes


def read_libsvm(path: Path) -> tuple[csr_matrix, np.ndarray, list[str]]:
    """Read ``label index:value ...`` lines.

    Indices count from 1, as libsvm's do, or from 0 where the file has an index 0. The columns are named by
    the indices of the file, so that a file without index 0 still lines up with one that has it.

    Returns:
        float32 [rows, features], float64 labels [rows], and the features' names.

    Raises:
        InputError: no rows, a line that is not libsvm, or a value that is not a finite 32-bit number.
    """
    from scipy.sparse import csr_matrix
    from sklearn.datasets import load_svmlight_file

    problem = "it cannot be read as libsvm"
    try:
        x, labels = load_svmlight_file(str(path), dtype=np.float64, zero_based=True)
    except (ValueError, OverflowError) as error:
        problem, x = str(error), None
    if x is None or x.shape[1] > MAX_FEATURES + 1 or not all_finite(to_float32(x.data)):
        raise _first_fault(path) or InputError(f"{path}: {' '.join(problem.split())}")
    if x.shape[0] == 0:
        raise InputError(f"{path}: no rows")
    if x.nnz == 0:
        raise InputError(f"{path}: no row has a feature (index:value)")
    first = 0 if x.indices.min() == 0 else 1
    x = csr_matrix(x[:, first:].astype(np.float32))
    return x, labels, [str(first + i) for i in range(x.shape[1])]


def _first_fault(path: Path) -> InputError | None:
    for row, (line, text) in enumerate(_lines(path), start=1):
        label, *features = text.split()
        if ":" in label or _number(label) is None:
            return InputError(f"{place(str(path), row, line=line)}: the label {shown(label)} is not a number")
        previous = -1
        for feature in features:
            if feature.startswith("qid:"):
                continue
            index, colon, value = feature.partition(":")
            where = place(str(path), row, index if colon else None, line)
            if not colon or not index.isdecimal():
                return InputError(f"{where}: {shown(feature)} is not index:value")
            if int(index) <= previous:
                return InputError(f"{where}: index {index} after {previous}; indices must rise")
            if int(index) > MAX_FEATURES:
                return InputError(f"{where}: the index is above {MAX_FEATURES}")
            fault = fault_of_value(_number(value), value)
            if fault:
                return InputError(f"{where}: {fault}")
            previous = int(index)
    return None


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Each line that holds more than a comment, without it, with its number."""
    with open(path, encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            text = line.partition("#")[0].strip()
            if text:
                yield number, text


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
