"""Splitting images in two, each class alike, the same way on every machine."""

from __future__ import annotations

import numpy as np

from zoo_datasets.errors import InputError, shown

__all__ = ["split_classes"]


def split_classes(
    labels: np.ndarray, classes: list[str], fraction: float, seed: int, source: str
) -> tuple[np.ndarray, np.ndarray]:
    """Rows for training and rows for evaluation, int64, each rising; together every row once.

    The order comes from the raw output of PCG64, which NumPy keeps stable over its versions.

    Args:
        labels: int64 [rows], places in ``classes``.
        fraction: of each class, for evaluation, in (0, 1), rounded to rows; each part gets at least one.

    Raises:
        InputError: a class of fewer than two images.
    """
    assert 0 < fraction < 1
    draws = np.random.PCG64(seed).random_raw(len(labels))
    evaluation = np.zeros(len(labels), dtype=bool)
    for label, name in enumerate(classes):
        rows = np.flatnonzero(labels == label)
        if len(rows) < 2:
            raise InputError(
                f"{source}: the class {shown(name)} needs two images or more, one to train and one to evaluate on; "
                f"it has {len(rows)}"
            )
        count = min(max(round(fraction * len(rows)), 1), len(rows) - 1)
        evaluation[rows[np.argsort(draws[rows], kind="stable")[:count]]] = True
    return np.flatnonzero(~evaluation), np.flatnonzero(evaluation)
