"""Fewer known anomalies, and made-up ones hidden among the unlabelled rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from zoo.models.devnet.contamination import weak_labels
from zoo_datasets import InputError, Table


def table(normal: int, anomalies: int, columns: int) -> Table:
    """Cell (row, column) holds 1000 * row + column + 1; every other row is an anomaly until there are enough."""
    rows = normal + anomalies
    x = (1000 * np.arange(rows)[:, None] + np.arange(columns) + 1).astype(np.float32)
    y = np.zeros(rows, dtype=np.int64)
    y[1 : 2 * anomalies : 2] = 1
    assert y.sum() == anomalies
    return Table(x, y, [f"c{column}" for column in range(columns)], "table")


sizes = st.tuples(st.integers(8, 40), st.integers(2, 8), st.integers(1, 50))


@given(sizes=sizes, known=st.none() | st.integers(1, 12), seed=st.integers(0, 2**32))
def test_known_anomalies_are_at_most_as_many_and_all_else_stays(sizes, known, seed):
    whole = table(*sizes)
    kept = weak_labels(whole, known, 0.0, seed)
    assert kept.y.sum() == (sizes[1] if known is None else min(known, sizes[1]))
    assert np.array_equal(kept.x[kept.y == 0], whole.x[whole.y == 0])
    rows = (kept.x[:, 0] // 1000).astype(int)
    assert np.array_equal(rows, np.unique(rows))  # each once, in their order
    assert np.array_equal(whole.y[rows], kept.y)


@given(sizes=sizes, known=st.none() | st.integers(1, 12), rate=st.floats(0, 0.9), seed=st.integers(0, 2**32))
def test_hidden_anomalies_mix_two_training_anomalies(sizes, known, rate, seed):
    whole = table(*sizes)
    columns = sizes[2]
    mixed = weak_labels(whole, known, rate, seed)
    kept = weak_labels(whole, known, 0.0, seed)
    assert np.array_equal(mixed.x[: len(kept)], kept.x)
    hidden = mixed.x[len(kept) :]
    assert not mixed.y[len(kept) :].any()
    # The share of unlabelled rows, rounded down to rows.
    assert len(hidden) == int(sizes[0] * rate / (1 - rate))
    for row in hidden:
        donors = (row // 1000).astype(int)
        assert np.array_equal(row % 1000, np.arange(columns) + 1)  # each cell keeps its column
        values, counts = np.unique(donors, return_counts=True)
        assert whole.y[values].all()
        swapped = max(columns // 20, 1)
        assert sorted(counts) == sorted(count for count in (swapped, columns - swapped) if count)


@given(sizes=sizes, known=st.none() | st.integers(1, 12), rate=st.floats(0, 0.5), seed=st.integers(0, 2**32))
def test_sparse_equals_dense(sizes, known, rate, seed):
    dense = table(*sizes)
    dense.x[dense.x % 3 == 0] = 0
    sparse = Table(csr_matrix(dense.x), dense.y, dense.columns, dense.source)
    want, got = (weak_labels(whole, known, rate, seed) for whole in (dense, sparse))
    assert got.is_sparse
    assert got.x.dtype == np.float32
    assert np.array_equal(got.x.toarray(), want.x)
    assert np.array_equal(got.y, want.y)
    assert np.all(got.x.data != 0)


def test_the_seed_decides():
    whole = table(30, 8, 40)
    first, again, other = (weak_labels(whole, 3, 0.2, seed) for seed in (0, 0, 1))
    assert np.array_equal(first.x, again.x)
    assert not np.array_equal(first.x, other.x)


def test_one_anomaly_cannot_be_mixed():
    with pytest.raises(
        InputError, match="table: --contamination mixes pairs of anomalies, and there is one only"
    ):
        weak_labels(table(30, 1, 4), None, 0.2, 0)
