"""Answers that are a picture, written as PNG."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, eq=False)
class Picture:
    """What a model draws.

    Attributes:
        pixels: uint8 [height, width, 3].
        samples: how many there are in it.
    """

    pixels: np.ndarray
    samples: int

    def write(self, path: Path) -> None:
        """Writes a PNG file that is not there yet."""
        from PIL import Image

        with path.open("xb") as file:
            Image.fromarray(self.pixels).save(file, "PNG")
