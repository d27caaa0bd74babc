"""scikit-learn's handwritten digits: 1,797 grey images of 8 x 8 pixels, real, and nothing to download."""

from __future__ import annotations

import numpy as np

from zoo_datasets.images_types import ArrayImages

__all__ = ["digits"]


def digits() -> ArrayImages:
    """The test set of Alpaydin and Kaynak's optical digits (UCI, 1998), its 17 greys spread over 0 to 255."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    pixels = np.rint(bunch.images * (255 / 16)).astype(np.uint8)[:, None]
    return ArrayImages(
        pixels=pixels,
        labels=bunch.target.astype(np.int64),
        classes=[str(digit) for digit in range(10)],
        source="digits",
    )
