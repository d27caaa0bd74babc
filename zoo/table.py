"""Tables of answers: columns by name, written as CSV."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from zoo_datasets.errors import InputError

Rows = Mapping[str, Sequence[Any]]  # column name -> a list or 1-d array, all of one length


_WRITTEN_AS = {".csv": "tables are written as CSV", ".png": "pictures are written as PNG"}


def check_output(path: Path, option: str = "--output", suffix: str = ".csv") -> None:
    """Raises unless a table, or a picture, can be written to ``path`` without writing over anything.

    Args:
        suffix: .csv for a table, .png for a picture.

    Raises:
        InputError: the name does not end in it, the file exists, or its folder does not.
    """
    if path.suffix.lower() != suffix:
        raise InputError(f"{option} {path}: {_WRITTEN_AS[suffix]}; give a name that ends in {suffix}")
    check_new(path, option)


def check_new(path: Path, option: str) -> None:
    """Raises unless a file may be made at ``path``.

    Raises:
        InputError: it exists, or its folder does not.
    """
    if path.exists():
        raise InputError(f"{option} {path}: exists already; give a new name")
    if not path.parent.is_dir():
        raise InputError(f"{option} {path}: there is no folder {path.parent}")


def count_rows(rows: Rows) -> int:
    """The rows of a table."""
    return len(next(iter(rows.values()))) if rows else 0


def write_csv(file: TextIO, rows: Rows) -> None:
    """Writes a table with a header. Numbers keep all their digits: reading them back gives the same ones."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(rows)
    writer.writerows(zip(*rows.values(), strict=True))
