"""Splitting labelled rows in two, the same way on every machine."""

from __future__ import annotations

import numpy as np

from zoo_datasets.errors import InputError

__all__ = ["stratified_split"]


def stratified_split(
    y: np.ndarray, fraction: float, seed: int, source: str = "labels"
) -> tuple[np.ndarray, np.ndarray]:
    """Split rows at random into training and evaluation, each class by the same fraction.

    The order comes from the raw output of PCG64, which NumPy keeps stable over its versions.

    Args:
        y: int [rows], 0 (normal) or 1 (anomaly).
        fraction: the share of each class for evaluation, in (0, 1), rounded to rows; each part gets at
            least one row of each class.
        seed: not negative; the same seed gives the same split.
        source: for messages.

    Returns:
        The rows for training and those for evaluation, int64, each rising; together every row once.

    Raises:
        InputError: a fraction outside (0, 1), a negative seed, or a class of fewer than two rows.
    """
    if not 0 < fraction < 1:
        raise InputError(f"{source}: a split needs a fraction between 0 and 1, not {fraction}")
    if seed < 0:
        raise InputError(f"{source}: a split needs a seed of 0 or more, not {seed}")
    draws = np.random.PCG64(seed).random_raw(len(y))
    evaluation = np.zeros(len(y), dtype=bool)
    for value, name in ((0, "normal rows"), (1, "anomalies")):
        rows = np.flatnonzero(y == value)
        if len(rows) < 2:
            raise InputError(
                f"{source}: the split needs at least 2 {name}, one for each part; there are {len(rows)}"
            )
        count = min(max(round(fraction * len(rows)), 1), len(rows) - 1)
        evaluation[rows[np.argsort(draws[rows], kind="stable")[:count]]] = True
    return np.flatnonzero(~evaluation), np.flatnonzero(evaluation)
