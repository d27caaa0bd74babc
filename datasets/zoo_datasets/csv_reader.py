"""Comma-separated numbers: pandas' C parser for speed, a slow second look only to name what is wrong."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from zoo_datasets.errors import InputError, place, shown
from zoo_datasets.numbers import all_finite, fault_of_value, to_float32

__all__ = ["check_names", "first_line", "read_cells"]

_ENCODING = "utf-8-sig"  # spreadsheets start their UTF-8 files with a byte order mark


def first_line(path: Path) -> list[str]:
    """The cells of the first line that is not blank, without surrounding blanks.

    Raises:
        InputError: the file holds blank lines only, or is not UTF-8.
    """
    with _one_line_errors(path):
        for _, cells in _lines(path):
            return cells
    raise InputError(f"{path}: the file holds only blank lines")


def check_names(columns: Sequence[str], source: str) -> None:
    """Refuse columns without a name and names that occur twice.

    Raises:
        InputError: the name, or the position (from 1) of the column without one.
    """
    for position, name in enumerate(columns, start=1):
        if not name:
            raise InputError(
                f"{source}: column {position} has no name in the header line "
                "(an index written along? leave it out, or name it)"
            )
    if len(set(columns)) < len(columns):
        twice = next(name for i, name in enumerate(columns) if name in columns[:i])
        raise InputError(f"{source}: the column name {shown(twice)} occurs twice")


def read_cells(
    path: Path, columns: Sequence[str], header: bool, text_column: str | None = None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Read the numbers below the header.

    Args:
        path: a UTF-8 file, comma separated.
        columns: one name for each cell of a row, without repetition.
        header: whether the first line is a header to skip.
        text_column: the one column to return as text, apart from the numbers.

    Returns:
        float32 [rows, columns without ``text_column``], and its texts as an object array [rows] or None.
        A column of nothing but True and False, in any case, counts as 1 and 0.

    Raises:
        InputError: no rows, a row of another length, or a cell that is not a finite 32-bit number.
    """
    text_at = columns.index(text_column) if text_column is not None else None
    x, texts, problem = None, None, "its cells cannot be read as numbers"
    with _one_line_errors(path):
        _check_first_row(path, columns, header)
        try:
            x, texts = _parse(path, len(columns), header, text_at)
        except UnicodeDecodeError:
            raise
        except ValueError as error:  # pandas' parser errors are ValueErrors
            problem = " ".join(str(error).split())
    usable = x is not None and all_finite(x)
    # An empty text may be the end of a row that is too short, which pandas fills up.
    if not usable or (texts is not None and "" in texts):
        with _one_line_errors(path):
            fault = _first_fault(path, columns, header, text_at)
        if fault is not None or not usable:
            raise fault or InputError(f"{path}: {problem}")
    assert x is not None
    return x, texts


def _parse(path: Path, width: int, header: bool, text_at: int | None) -> tuple[np.ndarray, np.ndarray | None]:
    import pandas as pd

    # Without the default markers of missing values texts stay as they are, and an empty cell is an error
    # and no NaN; index_col=False keeps pandas from taking the first column for an index.
    frame = pd.read_csv(
        path,
        header=0 if header else None,
        names=range(width),
        dtype={i: object if i == text_at else np.float64 for i in range(width)},
        index_col=False,
        keep_default_na=False,
        skipinitialspace=True,
        encoding="utf-8",
        low_memory=False,
    )
    texts = None if text_at is None else frame.pop(text_at).to_numpy(dtype=object)
    return np.ascontiguousarray(to_float32(frame.to_numpy(dtype=np.float64))), texts


def _check_first_row(path: Path, columns: Sequence[str], header: bool) -> None:
    # pandas reads a first row longer than the header as one with an index, and says nothing.
    for number, (line, cells) in enumerate(_lines(path), start=0 if header else 1):
        if number == 1:
            if len(cells) != len(columns):
                raise _ragged(path, 1, line, cells, columns)
            return
    raise InputError(f"{path}: a header line, but no rows below it")


def _first_fault(path: Path, columns: Sequence[str], header: bool, text_at: int | None) -> InputError | None:
    only_booleans = [True] * len(columns)
    first_boolean: dict[int, InputError] = {}  # by column; a fault only where the column has numbers too
    for row, (line, cells) in enumerate(_lines(path), start=0 if header else 1):
        if row == 0:
            continue
        if len(cells) != len(columns):
            return _ragged(path, row, line, cells, columns)
        for position, text in enumerate(cells):
            if position == text_at:
                continue
            fault = _fault_of_cell(text)
            boolean = fault is not None and text.casefold() in ("true", "false")
            only_booleans[position] &= boolean
            if fault:
                error = InputError(f"{place(str(path), row, columns[position], line)}: {fault}")
                if not boolean:
                    return error
                first_boolean.setdefault(position, error)
    return next((error for position, error in first_boolean.items() if not only_booleans[position]), None)


def _fault_of_cell(text: str) -> str | None:
    if not text:
        return "the cell is empty; a number is needed"
    try:
        value = float(text) if "_" not in text else None  # Python takes 1_000 for a number, pandas does not
    except ValueError:
        value = None
    return fault_of_value(value, text)


def _ragged(path: Path, row: int, line: int, cells: list[str], columns: Sequence[str]) -> InputError:
    return InputError(
        f"{place(str(path), row, line=line)}: {len(cells)} cells, but there are {len(columns)} columns"
    )


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The lines that are not blank, each with the number an editor shows for its last line."""
    with open(path, encoding=_ENCODING, newline="") as file:
        reader = csv.reader(file, skipinitialspace=True, strict=True)
        for cells in reader:
            if cells:
                yield reader.line_num, [cell.strip() for cell in cells]


@contextmanager
def _one_line_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError:
        raise InputError(_not_utf8(path)) from None
    except csv.Error as error:
        raise InputError(f"{path}: not a CSV file ({error})") from None


def _not_utf8(path: Path) -> str:
    content = path.read_bytes()
    try:
        content.decode(_ENCODING)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        return f"{path}, line {line}: byte 0x{content[error.start]:02x} is not UTF-8; save the file as UTF-8"
    return f"{path}: the file is not UTF-8; save it as UTF-8"
