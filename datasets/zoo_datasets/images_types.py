"""Images with a class each, in memory or in files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from zoo_datasets.errors import InputError
from zoo_datasets.images_decode import read_image

if TYPE_CHECKING:
    from typing import Self

__all__ = ["ArrayImages", "FileImages", "Images", "only_classes"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Images(ABC):
    """Images by row.

    Attributes:
        labels: int64 [rows], each the place of a name in ``classes``.
        classes: the labels' names.
        source: what messages call them.
    """

    labels: np.ndarray
    classes: list[str]
    source: str

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def read(self, row: int, channels: int) -> np.ndarray:
        """One image, uint8 [channels, height, width]; ``channels`` is 1 for grey, 3 for RGB.

        Raises:
            InputError: it cannot be decoded; names the file.
        """

    @abstractmethod
    def take(self, rows: np.ndarray) -> Self:
        """These rows, in this order."""

    def name(self, row: int) -> str:
        """What people call the image."""
        return f"{self.source}, image {row}"


@dataclass(frozen=True, eq=False, kw_only=True)
class ArrayImages(Images):
    """Images in memory, all of one size.

    Attributes:
        pixels: uint8 [rows, channels, height, width], grey or RGB.
    """

    pixels: np.ndarray

    def read(self, row: int, channels: int) -> np.ndarray:
        return as_channels(self.pixels[row : row + 1], channels)[0]

    def take(self, rows: np.ndarray) -> ArrayImages:
        return replace(self, pixels=self.pixels[rows], labels=self.labels[rows])


@dataclass(frozen=True, eq=False, kw_only=True)
class FileImages(Images):
    """Images in files, of any sizes, decoded when they are read."""

    paths: Sequence[Path]

    def read(self, row: int, channels: int) -> np.ndarray:
        return read_image(self.paths[row], channels, "repair or remove it, or train with --skip-bad")

    def take(self, rows: np.ndarray) -> FileImages:
        return replace(self, paths=[self.paths[row] for row in rows], labels=self.labels[rows])

    def name(self, row: int) -> str:
        return str(self.paths[row])


def as_channels(pixels: np.ndarray, channels: int) -> np.ndarray:
    """uint8 [rows, 1 or 3, height, width] as grey (1) or RGB (3); grey is ITU-R 601's luma, as Pillow's."""
    if pixels.shape[1] == channels:
        return pixels
    if channels == 3:
        return np.repeat(pixels, 3, axis=1)
    luma = np.tensordot(np.array([19595, 38470, 7471]), pixels.astype(np.int64), axes=(0, 1))
    return ((luma + 0x8000) >> 16).astype(np.uint8)[:, None]


def only_classes(images: Images, first: int, last: int) -> Images:
    """The images of the classes ``first`` to ``last``, whose labels begin at 0 anew.

    Raises:
        InputError: there are no such classes, or fewer than two.
    """
    count = len(images.classes)
    if not 0 <= first < last < count:
        raise InputError(
            f"{images.source}:{first}-{last}: give at least two of its classes, 0 to {count - 1}, as in "
            f"{images.source}:0-{count // 2}"
        )
    kept = images.take(np.flatnonzero((images.labels >= first) & (images.labels <= last)))
    return replace(kept, labels=kept.labels - first, classes=images.classes[first : last + 1])
