"""Short vectors for the toy diffusion model: generated patterns, or a user's own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from zoo_datasets.csv_reader import check_names, first_line, read_cells
from zoo_datasets.errors import InputError
from zoo_datasets.files import readable_file
from zoo_datasets.table import Table

__all__ = ["Normaliser", "ascending_descending", "read_vectors", "toy_vectors"]


def ascending_descending(length: int = 4, low: int = 0, high: int = 7) -> np.ndarray:
    """All vectors that rise or fall by 1 inside ``low``..``high``: ten for the published toy's defaults.

    Returns:
        float32 [patterns, length]: the rising ones by their first number, then each of them reversed.

    Raises:
        InputError: a length below 2, or a range too short for it.
    """
    if length < 2:
        raise InputError(f"length {length}: a vector that rises or falls has at least 2 numbers")
    if high - low + 1 < length:
        raise InputError(f"low {low}, high {high}: the range holds fewer than length {length} numbers")
    starts = np.arange(low, high - length + 2)
    rising = (starts[:, None] + np.arange(length)).astype(np.float32)
    return np.concatenate([rising, rising[:, ::-1]])


def toy_vectors(count: int, seed: int, length: int = 4, low: int = 0, high: int = 7) -> np.ndarray:
    """Draw patterns of ``ascending_descending`` uniformly, in data units.

    The raw output of PCG64 chooses, which NumPy keeps stable over its versions.

    Returns:
        float32 [count, length]; the first rows of a larger count are the same.

    Raises:
        InputError: as ``ascending_descending``; a count or seed below 0.
    """
    if count < 0 or seed < 0:
        raise InputError(f"count {count}, seed {seed}: neither may be negative")
    patterns = ascending_descending(length, low, high)
    return patterns[np.random.PCG64(seed).random_raw(count) % len(patterns)]


@dataclass(frozen=True)
class Normaliser:
    """An affine map of each column from [low, high] to [-1, 1]; a column of one value goes to 0.

    Plain numbers, so that it is stored with a model as JSON (``dataclasses.asdict``) and comes back as is.

    Attributes:
        low, high: the ends of each column's range.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]

    @classmethod
    def of_range(cls, width: int, low: float, high: float) -> Normaliser:
        """The same range for each of ``width`` columns."""
        return cls((float(low),) * width, (float(high),) * width)

    @classmethod
    def fit(cls, x: np.ndarray) -> Normaliser:
        """The range of each column of ``x`` [rows, width], of at least one row."""
        return cls(tuple(x.min(axis=0).tolist()), tuple(x.max(axis=0).tolist()))

    def normalise(self, x: np.ndarray) -> np.ndarray:
        """Data units to [-1, 1], float32 [..., width]."""
        middle, half = self._middle_and_half(x)
        scale = np.where(half == 0, 1.0, half)
        return ((np.asarray(x, dtype=np.float64) - middle) / scale).astype(np.float32)

    def restore(self, x: np.ndarray) -> np.ndarray:
        """[-1, 1] to data units, float32 [..., width]; a column of one value gets it back."""
        middle, half = self._middle_and_half(x)
        return (np.asarray(x, dtype=np.float64) * half + middle).astype(np.float32)

    def _middle_and_half(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        width = np.shape(x)[-1]
        if width != len(self.low):
            raise InputError(f"vectors of {width} numbers, but the model was trained on {len(self.low)}")
        low, high = np.array(self.low), np.array(self.high)
        return (low + high) / 2, (high - low) / 2


def read_vectors(path: str | Path) -> Table:
    """Read a user's vectors: a UTF-8 CSV of any width, one vector a row, every cell a finite number.

    The first line is a header if none of its cells is a number; without one the columns are called 1, 2, ...

    Returns:
        A table without labels, values as they are.

    Raises:
        InputError: one line that names the file, and the row (of data, from 1) and column where there is one.
    """
    path = readable_file(path)
    if path.suffix.lower() != ".csv":
        raise InputError(f"{path}: vectors are read from a .csv file")
    cells = first_line(path)
    header = not any(_is_number(cell) for cell in cells)
    columns = cells if header else [str(i + 1) for i in range(len(cells))]
    check_names(columns, str(path))
    x, _ = read_cells(path, columns, header)
    return Table(x, None, columns, str(path))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
