"""Parquet columns as numbers, through pyarrow."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from zoo_datasets.errors import InputError, place, shown
from zoo_datasets.files import optional_import
from zoo_datasets.numbers import all_finite, fault_of_value, to_float32

__all__ = ["ParquetFile"]

# pandas stores the row index of a frame as a column of this name; it counts rows and is no feature.
_PANDAS_INDEX = re.compile(r"__index_level_\d+__")


class ParquetFile:
    """One Parquet file, read whole.

    Attributes:
        columns: the names, without a row index that pandas stored along.

    Raises:
        InputError: pyarrow is not installed, or the file is not Parquet.
    """

    def __init__(self, path: Path) -> None:
        parquet = optional_import("pyarrow.parquet", f"{path}: reading Parquet", extra="parquet")
        try:
            with parquet.ParquetFile(path) as file:
                self._table = file.read()
        except (OSError, ValueError) as error:  # pyarrow's errors are subclasses of these
            reason = " ".join(str(error).split())
            raise InputError(f"{path}: not a readable Parquet file ({reason})") from None
        self._source = str(path)
        self._positions = [
            i for i, name in enumerate(self._table.column_names) if not _PANDAS_INDEX.fullmatch(name)
        ]
        self.columns = [self._table.column_names[i] for i in self._positions]

    def numbers(self, columns: list[str]) -> np.ndarray:
        """float32 [rows, columns]; numbers and booleans (0 and 1) only.

        Raises:
            InputError: no rows, a column of another type, or a missing, infinite or too large value.
        """
        if self._table.num_rows == 0:
            raise InputError(f"{self._source}: columns, but no rows")
        x = np.empty((self._table.num_rows, len(columns)), dtype=np.float32)
        for i, name in enumerate(columns):
            x[:, i] = self._column(name)
        return x

    def values(self, name: str) -> np.ndarray:
        """One column [rows] as it is: booleans, numbers, or objects (None where missing)."""
        column = self._arrow(name)
        if column.null_count:
            return np.array(column.to_pylist(), dtype=object)
        return np.asarray(column.to_numpy())

    def _arrow(self, name: str) -> Any:
        return self._table.column(self._positions[self.columns.index(name)])

    def _column(self, name: str) -> np.ndarray:
        import pyarrow as pa

        column = self._arrow(name)
        kind = column.type
        if pa.types.is_boolean(kind):
            column = column.cast(pa.uint8())
        elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
            row, value = next(((i, v) for i, v in enumerate(column.to_pylist()) if v is not None), (0, None))
            raise InputError(
                f"{place(self._source, row + 1, name)}: {shown(value)} is not a number (type {kind})"
            )
        values = column.cast(pa.float64(), safe=False).to_numpy()
        narrow = to_float32(values)
        if not all_finite(narrow):
            row = int(np.flatnonzero(~np.isfinite(narrow))[0])
            value = float(values[row])
            raise InputError(f"{place(self._source, row + 1, name)}: {fault_of_value(value, value)}")
        return narrow
