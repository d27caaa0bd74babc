"""Which images of a set cannot be read."""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from zoo_datasets.errors import InputError
from zoo_datasets.images_decode import BadImageError
from zoo_datasets.images_types import ArrayImages, Images

__all__ = ["bad_rows", "without_rows"]

I = TypeVar("I", bound=Images)  # noqa: E741


def bad_rows(images: Images) -> list[int]:
    """The rows whose images cannot be decoded: each is decoded once."""
    if isinstance(images, ArrayImages):
        return []
    bad = []
    for row in range(len(images)):
        try:
            images.read(row, 1)
        except BadImageError:
            bad.append(row)
    return bad


def without_rows(images: I, rows: list[int]) -> I:
    """The images but these rows.

    Raises:
        InputError: a class loses all its images.
    """
    kept = images.take(np.setdiff1d(np.arange(len(images)), rows))
    lost = np.setdiff1d(images.labels, kept.labels)
    if len(lost):
        raise InputError(f"{images.source}: no image of the class {images.classes[lost[0]]!r} can be read")
    return kept
