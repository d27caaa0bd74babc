"""Images with a label map each, by row: what a loader and a model of regions take."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

import numpy as np

if TYPE_CHECKING:
    from typing import Self

__all__ = ["DONT_CARE", "MapFormat", "Segmented", "SegmentedData", "SegmentedRow", "to_unit"]

DONT_CARE = 255  # in a label map: the pixel belongs to no region


@dataclass(frozen=True)
class MapFormat:
    """What the numbers in label map files mean.

    Attributes:
        labels: how many there are, from 1 to 255.
        first: the value of label 0. Where it is 1, the value 0 means no label, as ADE20K has it.
        dont_care: whether the value 255 means no label.
    """

    labels: int
    first: int = 0
    dont_care: bool = False


class SegmentedRow(TypedDict):
    """One image and its label map, of one height and width.

    Attributes:
        image: float32 [3, height, width] in [-1, 1].
        labels: int64 [height, width]: places in ``Segmented.names``, or ``DONT_CARE``.
    """

    image: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True, eq=False, kw_only=True)
class Segmented(ABC):
    """Images with their label maps; a row is the same whenever it is read.

    Attributes:
        names: of the labels 0, 1, ...
        size: height and width of what is read, in pixels.
        source: what messages call them.
        first, dont_care: see :class:`MapFormat`.
    """

    names: tuple[str, ...]
    size: int
    source: str
    first: int = 0
    dont_care: bool = False

    @property
    def map_format(self) -> MapFormat:
        """What the numbers mean in a label map file of the same kind."""
        return MapFormat(len(self.names), self.first, self.dont_care)

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, row: int) -> SegmentedRow:
        """One image with its label map.

        Raises:
            InputError: it cannot be read, or does not fit; names the file.
        """

    @abstractmethod
    def take(self, rows: np.ndarray) -> Self:
        """These rows, in this order."""

    @abstractmethod
    def name(self, row: int) -> str:
        """What people call the image."""


@dataclass(frozen=True, eq=False)
class SegmentedData:
    """Images to train on, and images held out: of the same labels and size."""

    train: Segmented
    eval: Segmented

    @property
    def names(self) -> tuple[str, ...]:
        """The labels' names."""
        return self.train.names


def to_unit(pixels: np.ndarray) -> np.ndarray:
    """uint8 0..255 to float32 -1..1, of the same shape."""
    return pixels.astype(np.float32) * np.float32(2 / 255) - np.float32(1)
