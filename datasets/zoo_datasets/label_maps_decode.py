"""One label map file as numbers, and as the middle square of an image and its map."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from zoo_datasets.images_decode import BadImageError, opened_image, read_image
from zoo_datasets.segmented import DONT_CARE, MapFormat, SegmentedRow, to_unit

__all__ = ["read_label_map", "read_pair", "read_square", "read_square_map"]

_MODES = ("1", "L", "P", "I", "I;16", "I;16B", "I;16L")  # of one number a pixel


def read_label_map(path: Path, meaning: MapFormat) -> np.ndarray:
    """The labels of a PNG file, int64 [height, width]: 0 to ``meaning.labels - 1``, or ``DONT_CARE``.

    A palette is not looked up: its places are the labels. An orientation tag is obeyed, as images' are.

    Raises:
        BadImageError: damaged, not PNG, colours in place of labels, or a label out of range; names the file.
    """
    from PIL import ImageOps

    with opened_image(path) as file:
        if file.format != "PNG":
            raise BadImageError(
                f"{path}: is a {file.format} file, which may change labels; label maps are PNG files"
            )
        if file.mode not in _MODES:
            raise BadImageError(
                f"{path}: is an image of colours (mode {file.mode}), not of labels; save it with one channel of "
                "label numbers, or with a palette whose places are the labels"
            )
        values = np.array(ImageOps.exif_transpose(file)).astype(np.int64)
    labels = values - meaning.first
    unlabelled = np.zeros(values.shape, dtype=bool)
    if meaning.first == 1:
        unlabelled |= values == 0
    if meaning.dont_care:
        unlabelled |= values == DONT_CARE
    bad = ~unlabelled & ((labels < 0) | (labels >= meaning.labels))
    if bad.any():
        raise _out_of_range(path, int(values[bad].min()), meaning)
    labels[unlabelled] = DONT_CARE
    return labels


def read_pair(image: Path, label_map: Path, meaning: MapFormat, size: int) -> SegmentedRow:
    """An image and its label map: their middle square, brought to ``size`` pixels.

    The image is resized by an antialiased bicubic filter, the map by the nearest pixel's label.

    Raises:
        BadImageError: one of the two cannot be used, or they differ in size; names the files.
    """
    pixels, labels = read_image(image, 3), read_label_map(label_map, meaning)
    if pixels.shape[1:] != labels.shape:
        (h, w), (map_h, map_w) = pixels.shape[1:], labels.shape
        raise BadImageError(
            f"{image}: is {w} x {h} pixels, and its label map {label_map} is {map_w} x {map_h}; "
            "make the two of one size"
        )
    return {"image": to_unit(_square_image(pixels, size)), "labels": _square_map(labels, size)}


def read_square(image: Path, size: int) -> np.ndarray:
    """An image without a map as :func:`read_pair` reads it, float32 [3, size, size] in [-1, 1]."""
    return to_unit(_square_image(read_image(image, 3), size))


def read_square_map(label_map: Path, meaning: MapFormat, size: int) -> np.ndarray:
    """A label map without an image as :func:`read_pair` reads it, int64 [size, size]."""
    return _square_map(read_label_map(label_map, meaning), size)


def _square_image(pixels: np.ndarray, size: int) -> np.ndarray:
    from PIL import Image

    height, width = pixels.shape[1:]
    if height == width == size:
        return pixels
    top, left, side = _middle(height, width)
    square = Image.fromarray(pixels.transpose(1, 2, 0)).resize(
        (size, size), Image.Resampling.BICUBIC, (left, top, left + side, top + side)
    )
    return np.asarray(square).transpose(2, 0, 1)


def _square_map(labels: np.ndarray, size: int) -> np.ndarray:
    top, left, side = _middle(*labels.shape)
    nearest = (2 * np.arange(size) + 1) * side // (2 * size)  # the pixel that a new pixel's centre is in
    return labels[top + nearest[:, None], left + nearest]


def _middle(height: int, width: int) -> tuple[int, int, int]:
    """Top, left and side of the middle square."""
    side = min(height, width)
    return (height - side) // 2, (width - side) // 2, side


def _out_of_range(path: Path, value: int, meaning: MapFormat) -> BadImageError:
    first, last = meaning.first, meaning.first + meaning.labels - 1
    remedy = ""
    if value == DONT_CARE:  # whatever the command: only training has the flag
        remedy = "; change it, or train with --dont-care if 255 stands for no label there"
    return BadImageError(
        f"{path}: holds the value {value}, but its {meaning.labels} labels are {first} to {last}{remedy}"
    )
