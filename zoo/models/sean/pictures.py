"""Label maps in colours, and grids of pictures."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

_GAP = 2  # white pixels between pictures
_LEVELS = 12  # of red, green and blue among which colours are chosen


def as_pixels(image: np.ndarray) -> np.ndarray:
    """[3, height, width] in [-1, 1] to uint8 [height, width, 3]."""
    return np.rint((image.clip(-1, 1) + 1) * 127.5).astype(np.uint8).transpose(1, 2, 0)


def coloured(labels: np.ndarray, count: int) -> np.ndarray:
    """A label map [height, width] in colours, uint8 [height, width, 3]; black where there is no label."""
    colours = np.zeros((256, 3), dtype=np.uint8)
    colours[:count] = palette(count)
    return colours[labels]


def grid(rows: Sequence[Sequence[np.ndarray]]) -> np.ndarray:
    """Pictures of one size, uint8 [height, width, 3] each, in rows of one length: a picture of all."""
    height, width = rows[0][0].shape[:2]
    down, across = len(rows), len(rows[0])
    whole = np.full((down * (height + _GAP) - _GAP, across * (width + _GAP) - _GAP, 3), 255, dtype=np.uint8)
    for y, row in enumerate(rows):
        for x, picture in enumerate(row):
            top, left = y * (height + _GAP), x * (width + _GAP)
            whole[top : top + height, left : left + width] = picture
    return whole


@cache
def palette(count: int) -> np.ndarray:
    """Colours that are told apart easily, uint8 [count, 3]; a longer palette begins with the same ones.

    Each is the one farthest, in CIELAB, from all before it, from black and from white.
    """
    level = np.rint(np.linspace(0, 255, _LEVELS)).astype(np.uint8)
    candidates = np.stack(np.meshgrid(level, level, level, indexing="ij"), axis=-1).reshape(-1, 3)
    lab = _lab(candidates)
    distance = np.minimum(*(np.linalg.norm(lab - lab[end], axis=1) for end in (0, -1)))
    chosen = []
    for _ in range(count):
        chosen.append(int(distance.argmax()))
        distance = np.minimum(distance, np.linalg.norm(lab - lab[chosen[-1]], axis=1))
    return candidates[chosen]


def _lab(rgb: np.ndarray) -> np.ndarray:
    """CIELAB of sRGB values, white point D65 (IEC 61966-2-1; CIE 15)."""
    value = rgb / 255.0
    linear = np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)
    xyz = linear @ np.array([[0.4124, 0.2126, 0.0193], [0.3576, 0.7152, 0.1192], [0.1805, 0.0722, 0.9505]])
    x, y, z = (_cube_root(xyz / np.array([0.9505, 1.0, 1.089]))).T
    return np.stack((116 * y - 16, 500 * (x - y), 200 * (y - z)), axis=1)


def _cube_root(t: np.ndarray) -> np.ndarray:
    """With CIE's straight line near 0."""
    return np.where(t > (6 / 29) ** 3, np.cbrt(t), t / (3 * (6 / 29) ** 2) + 4 / 29)
