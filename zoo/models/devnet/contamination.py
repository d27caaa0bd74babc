"""The paper's setting: few anomalies are known, and some hide among the unlabelled rows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from zoo_datasets import InputError, Table

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

SWAPPED_SHARE = 0.05


def weak_labels(table: Table, known: int | None, rate: float, seed: int) -> Table:
    """Takes labels away from a training table, and hides anomalies in it.

    At most ``known`` anomalies stay, drawn at random; the others leave the table, as in the official script.
    Then anomalies are made up and appended as unlabelled rows (y = 0), so many that they are the share ``rate``
    of all unlabelled rows, rounded down: each is a copy of one anomaly with 5 % of its columns (at least one) taken from
    another. They are made from training anomalies only, those that left included; the official script also uses
    those of the test set, and swaps nothing where there are fewer than 20 columns.

    Args:
        table: with y, 1 for anomalies.
        known: anomalies to keep; None keeps all.
        rate: in [0, 1).
        seed: the same seed gives the same rows.

    Raises:
        InputError: anomalies are to be hidden, and there are fewer than two to make them from.
    """
    assert table.y is not None
    # The split of a file into training and evaluation rows draws from the seed itself.
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(1,))))
    anomalies = np.flatnonzero(table.y == 1)
    hidden_rows = int((len(table) - len(anomalies)) * rate / (1 - rate))
    if hidden_rows and len(anomalies) < 2:
        raise InputError(
            f"{table.source}: --contamination mixes pairs of anomalies, and there is one only; leave it at 0"
        )
    kept = table
    if known is not None and known < len(anomalies):
        dropped = rng.choice(anomalies, len(anomalies) - known, replace=False)
        kept = table.take(np.setdiff1d(np.arange(len(table)), dropped))
    if not hidden_rows:
        return kept
    return _append(kept, mixed_anomalies(table.x[anomalies], hidden_rows, rng))


def mixed_anomalies(
    anomalies: np.ndarray | csr_matrix, count: int, rng: np.random.Generator
) -> np.ndarray | csr_matrix:
    """Copies of random rows, 5 % of their columns from another row: [rows, columns] -> [count, columns]."""
    rows, columns = anomalies.shape
    first = rng.integers(rows, size=count)
    second = (first + rng.integers(1, rows, size=count)) % rows  # another one than the first
    swapped = max(int(SWAPPED_SHARE * columns), 1)
    chosen = np.stack([rng.choice(columns, swapped, replace=False) for _ in range(count)])
    if isinstance(anomalies, np.ndarray):
        mixed = anomalies[first]
        np.put_along_axis(mixed, chosen, np.take_along_axis(anomalies[second], chosen, axis=1), axis=1)
        return mixed
    from scipy.sparse import csr_matrix

    ones = np.ones(chosen.size, dtype=anomalies.dtype)
    mask = csr_matrix((ones, chosen.ravel(), np.arange(count + 1) * swapped), shape=(count, columns))
    own, other = anomalies[first], anomalies[second]
    mixed = csr_matrix(own - own.multiply(mask) + other.multiply(mask))
    mixed.eliminate_zeros()
    return mixed


def _append(table: Table, x: np.ndarray | csr_matrix) -> Table:
    from scipy import sparse

    y = np.concatenate([table.y, np.zeros(x.shape[0], dtype=np.int64)])
    both = sparse.vstack([table.x, x], format="csr") if table.is_sparse else np.concatenate([table.x, x])
    return replace(table, x=both, y=y)
