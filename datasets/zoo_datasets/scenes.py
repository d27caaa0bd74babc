"""Generated scenes: coloured, textured shapes in a landscape, with their label maps.

Every region has colours and a texture of its own in every scene, whatever its shape: so a style can be seen to
move from one scene to another. Nothing is stored: a scene is a pure function of (seed, split, row), drawn in
coordinates from 0 to 1, and so the same at every size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from zoo_datasets.errors import InputError
from zoo_datasets.segmented import Segmented, SegmentedData, SegmentedRow

__all__ = ["SCENE_LABELS", "Scenes", "draw_scene", "generated_scenes"]

SCENE_LABELS = ("sky", "hills", "ground", "path", "disc", "box", "triangle", "ring")
_SKY, _HILLS, _GROUND, _PATH, _DISC, _BOX, _TRIANGLE, _RING = range(len(SCENE_LABELS))

_PRESENT = 0.7  # how often a shape is in a scene
_COPIES = 2  # of each shape, at most
_DRAWS = 256  # uniform numbers a scene may use
_TURN = 2 * np.pi


@dataclass(frozen=True, eq=False, kw_only=True)
class Scenes(Segmented):
    """Scenes by row.

    Attributes:
        seed: at least 0; the same seed gives the same scenes.
        rows: int64, the scenes' numbers.
        split: scenes of different splits have nothing in common.
    """

    names: tuple[str, ...] = SCENE_LABELS
    source: str = "scenes"
    seed: int = 0
    rows: np.ndarray
    split: int = 0

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> SegmentedRow:
        return draw_scene(self.size, self.seed, self.split, int(self.rows[row]))

    def take(self, rows: np.ndarray) -> Scenes:
        return replace(self, rows=self.rows[rows])

    def name(self, row: int) -> str:
        return f"{self.source}, scene {self.rows[row]}"


def generated_scenes(size: int, seed: int = 0, train: int = 1280, evaluation: int = 64) -> SegmentedData:
    """Scenes to train on, and others held out.

    Args:
        size: height and width in pixels.
        seed: of the scenes.
        train, evaluation: how many; a larger number begins with the same ones.

    Raises:
        InputError: a size or number below 1, or a negative seed.
    """
    for name, value in (("size", size), ("train", train), ("evaluation", evaluation)):
        if value < 1:
            raise InputError(f"scenes: {name} must be at least 1, not {value}")
    if seed < 0:
        raise InputError(f"scenes: seed must be at least 0, not {seed}")
    return SegmentedData(
        Scenes(size=size, seed=seed, rows=np.arange(train), split=0),
        Scenes(size=size, seed=seed, rows=np.arange(evaluation), split=1),
    )


def draw_scene(size: int, seed: int, split: int, number: int) -> SegmentedRow:
    """The scene of this number, ``size`` pixels high and wide.

    The raw output of PCG64 decides, which NumPy keeps stable over its versions.
    """
    raw = np.random.PCG64(np.random.SeedSequence((seed, split, number))).random_raw(_DRAWS)
    draws = iter(((raw >> np.uint64(11)) * 2.0**-53).tolist())
    centres = (np.arange(size) + 0.5) / size
    x, y = centres[None, :], centres[:, None]
    labels = _regions(x, y, draws)
    return {"image": _painted(labels, x, y, draws), "labels": labels}


def _regions(x: np.ndarray, y: np.ndarray, draws: Iterator[float]) -> np.ndarray:
    """The label map, int64 [height, width], painted from back to front."""

    def draw(low: float, high: float) -> float:
        return low + (high - low) * next(draws)

    labels = np.full((y.shape[0], x.shape[1]), _SKY, dtype=np.int64)
    horizon = draw(0.45, 0.7)
    ridge = np.full_like(x, horizon - draw(0.02, 0.12))
    for waves in (1, 2, 4):
        ridge -= draw(0.01, 0.1 / waves) * np.sin(_TURN * (waves * x + draw(0, 1)))
    labels[np.broadcast_to(y > ridge, labels.shape)] = _HILLS
    labels[np.broadcast_to(y > horizon, labels.shape)] = _GROUND
    foot, top, width = draw(0.1, 0.9), draw(0.3, 0.7), draw(0.06, 0.16)
    depth = (y - horizon) / (1 - horizon)
    on_path = (depth > 0) & (abs(x - top - (foot - top) * depth) < width * (0.3 + depth))
    if next(draws) < _PRESENT:
        labels[on_path] = _PATH
    for _ in range(_COPIES):
        for shape in (_DISC, _RING, _BOX, _TRIANGLE):
            present, radius, across, up = next(draws), draw(0.08, 0.2), draw(0.1, 0.9), draw(0.05, 0.4)
            down = draw(0.02, 0.25)
            if present >= _PRESENT:
                continue
            in_sky = shape in (_DISC, _RING)
            dx, dy = x - across, y - (up if in_sky else horizon + down)
            labels[_inside(shape, dx, dy, radius)] = shape
    return labels


def _inside(shape: int, dx: np.ndarray, dy: np.ndarray, radius: float) -> np.ndarray:
    """Whether each pixel is in the shape round (0, 0); boxes and triangles stand on it."""
    if shape == _BOX:
        return (abs(dx) < radius) & (dy < 0) & (dy > -1.5 * radius)
    if shape == _TRIANGLE:
        return (dy < 0) & (abs(dx) < radius * (1 + dy / (2.5 * radius)))
    distance = np.hypot(dx, dy)
    inner = 0.0 if shape == _DISC else 0.55 * radius
    return (distance < radius) & (distance >= inner)


def _painted(labels: np.ndarray, x: np.ndarray, y: np.ndarray, draws: Iterator[float]) -> np.ndarray:
    """float32 [3, height, width] in [-1, 1]: each label's two colours, mixed by its pattern."""
    style = np.array([[next(draws) for _ in range(10)] for _ in SCENE_LABELS])
    # Base colour; how much darker or lighter the pattern makes it; its direction, cycles and kind.
    colour = style[:, :3] * 1.7 - 0.85
    accent = 0.12 + 0.2 * style[:, 3]
    tint = 0.5 + 0.5 * style[:, 4:7]
    angle, cycles = np.pi * style[:, 7], 4 + 8 * style[:, 8]
    kind = np.minimum((style[:, 9] * _KINDS).astype(np.int64), _KINDS - 1)
    cos, sin = (cycles * np.cos(angle))[labels], (cycles * np.sin(angle))[labels]
    pattern = _pattern(kind[labels], cos * x + sin * y, cos * y - sin * x)
    image = colour[labels] + (accent[:, None] * tint)[labels] * pattern[..., None]
    return np.ascontiguousarray(image.clip(-1, 1).astype(np.float32).transpose(2, 0, 1))


_KINDS = 4  # stripes, chequers, dots, waves


def _pattern(kind: np.ndarray, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """From -1 to 1 at every pixel: of its kind, u and v in cycles along and across the pattern's direction."""
    a, b = np.sin(_TURN * u), np.sin(_TURN * v)
    sharp = 3.0
    patterns = (sharp * a, sharp * a * b, sharp * (a + b - 0.6), np.sin(_TURN * (u + 0.25 * b)))
    return np.choose(kind, patterns).clip(-1, 1)
