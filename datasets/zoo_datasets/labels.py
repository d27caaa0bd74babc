"""Which column is the label, and what its values mean."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from zoo_datasets.errors import InputError, listed, place

__all__ = [
    "ANOMALY_WORDS",
    "LABEL_NAMES",
    "NORMAL_WORDS",
    "LabelError",
    "as_number",
    "binary_labels",
    "is_missing",
    "label_column",
]

LABEL_NAMES = ("class", "label", "target", "y")
NORMAL_WORDS = frozenset({"normal", "inlier", "nominal", "false", "no"})
ANOMALY_WORDS = frozenset({"anomaly", "outlier", "true", "yes"})

_ACCEPTED = "0/1, -1/1 (the higher is the anomaly), normal/anomaly, inlier/outlier, false/true or no/yes"
_MISSING_WORDS = frozenset({"", "nan", "<na>"})  # the last is pandas' NA


class LabelError(InputError):
    """No column can be the label, or more than one. What to do, behind the last semicolon, is said for a training."""

    def otherwise(self, remedy: str) -> InputError:
        """The same with another remedy, for where no ``--label`` can be given."""
        return InputError(f"{str(self).rpartition('; ')[0]}; {remedy}")


def label_column(columns: Sequence[str], label: str | None, source: str, required: bool) -> str | None:
    """Find the label column.

    Args:
        columns: the names in the file.
        label: the name the user gave; None looks for one of ``LABEL_NAMES`` in any case.
        source: for messages.
        required: whether its absence is an error.

    Returns:
        The column's name as the file writes it, or None where it is absent and not required.

    Raises:
        LabelError: absent though required, or more than one column could be it.
    """
    if label is not None:
        found = [name for name in columns if name == label]
    else:
        found = [name for name in columns if name.casefold() in LABEL_NAMES]
    if len(found) > 1:
        raise LabelError(f"{source}: {listed(found)} could each be the label; choose one with --label")
    if found:
        return found[0]
    if not required:
        return None
    wanted = (
        f"no label column {label!r}" if label is not None else "no label column (class, label, target, y)"
    )
    hint = ""
    if all(as_number(name) is not None for name in columns):
        hint = " (is the header line missing?)"
    elif len(columns) == 1 and any(separator in columns[0] for separator in ";\t|"):
        hint = " (cells must be separated by commas)"
    raise LabelError(
        f"{source}: {wanted}; the columns are {listed(list(columns))}{hint}; name the label with --label"
    )


def binary_labels(values: np.ndarray, source: str, column: str | None = None) -> np.ndarray:
    """Read labels of two classes as 0 (normal) and 1 (anomaly).

    Accepted are booleans; the numbers {0, 1} or {-1, 1}, where the higher is the anomaly; and, in any case,
    one word of ``NORMAL_WORDS`` with one of ``ANOMALY_WORDS``. Numbers and words written as text count alike.
    One class alone is accepted here; see ``require_both_classes``.

    Args:
        values: [rows] of booleans, numbers, or objects (texts, None where missing).
        source: for messages.
        column: the label column's name, for messages.

    Returns:
        int64 [rows].

    Raises:
        InputError: a missing label (its row is named), or values that are not two known classes (listed).
    """
    if values.dtype == bool:
        return values.astype(np.int64)
    if values.dtype.kind not in "iuf":
        return _labels_of_objects(values.tolist(), source, column)
    if values.dtype.kind == "f" and np.isnan(values).any():
        raise _missing(int(np.flatnonzero(np.isnan(values))[0]), source, column)
    distinct = set(np.unique(values).tolist())
    if not (distinct <= {0, 1} or distinct <= {-1, 1}):
        raise _not_two_classes([f"{value:g}" for value in sorted(distinct)], source, column)
    return (values == 1).astype(np.int64)


def is_missing(value: object) -> bool:
    """Whether a label is none: None, NaN, pandas' NA, or a text that stands for it."""
    return _word(value) in _MISSING_WORDS


def _word(value: object) -> str:
    return "" if value is None else str(value).strip().casefold()


def _labels_of_objects(values: list[object], source: str, column: str | None) -> np.ndarray:
    words = [_word(value) for value in values]
    distinct = set(words)
    if distinct & _MISSING_WORDS:
        raise _missing(next(i for i, word in enumerate(words) if word in _MISSING_WORDS), source, column)
    numbers = {word: as_number(word) for word in distinct}
    if all(number is not None for number in numbers.values()):
        return binary_labels(np.array([numbers[word] for word in words], dtype=np.float64), source, column)
    normal, anomaly = distinct & NORMAL_WORDS, distinct & ANOMALY_WORDS
    if len(normal) > 1 or len(anomaly) > 1 or distinct - normal - anomaly:
        seen = sorted({str(value).strip() for value in values})
        raise _not_two_classes(seen, source, column)
    return np.fromiter((word in anomaly for word in words), dtype=np.int64, count=len(words))


def as_number(text: str) -> float | None:
    """The number that a text is; None where it is none, or NaN."""
    try:
        number = float(text)
    except ValueError:
        return None
    return None if math.isnan(number) else number


def _missing(row: int, source: str, column: str | None) -> InputError:
    return InputError(f"{place(source, row + 1, column)}: the label is missing")


def _not_two_classes(seen: list[str], source: str, column: str | None) -> InputError:
    return InputError(
        f"{place(source, column=column)}: the labels are not two known classes; "
        f"they may be {_ACCEPTED}, and are {listed(seen, most=6)}"
    )
