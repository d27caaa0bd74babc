"""Pictures of an evaluation."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from zoo.models.sean.pictures import as_pixels, coloured, grid


def write_report(
    folder: Path, labels: np.ndarray, images: np.ndarray, outputs: np.ndarray, count: int
) -> None:
    """Writes reconstructions.png into an existing folder: a row a sample, of label map, image and reconstruction.

    Args:
        labels: [rows, height, width]. images, outputs: [rows, 3, height, width] in [-1, 1].
        count: of labels.
    """
    from PIL import Image

    rows = [
        [coloured(label_map, count), as_pixels(image), as_pixels(output)]
        for label_map, image, output in zip(labels, images, outputs, strict=True)
    ]
    Image.fromarray(grid(rows)).save(folder / "reconstructions.png")
