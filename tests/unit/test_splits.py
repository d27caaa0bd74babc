"""Splits are stratified, cover every row once, and are the same everywhere."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zoo_datasets import InputError, stratified_split


@settings(deadline=None)
@given(
    normal=st.integers(2, 60),
    anomalies=st.integers(2, 60),
    fraction=st.floats(0.01, 0.99),
    seed=st.integers(0, 2**64),
)
def test_stratified_disjoint_and_complete(normal: int, anomalies: int, fraction: float, seed: int) -> None:
    y = np.repeat([0, 1], [normal, anomalies])[np.random.default_rng(0).permutation(normal + anomalies)]
    train, evaluation = stratified_split(y, fraction, seed)
    assert np.array_equal(np.sort(np.concatenate([train, evaluation])), np.arange(len(y)))
    assert np.all(np.diff(train) > 0)
    assert np.all(np.diff(evaluation) > 0)
    for value, total in ((0, normal), (1, anomalies)):
        for part in (train, evaluation):
            assert np.count_nonzero(y[part] == value) >= 1
        taken = np.count_nonzero(y[evaluation] == value)
        assert abs(taken - fraction * total) <= 0.5 or taken in (1, total - 1)
    again = stratified_split(y, fraction, seed)
    assert np.array_equal(again[0], train)
    assert np.array_equal(again[1], evaluation)


def test_seeds_differ_and_every_row_gets_its_turn() -> None:
    y = np.repeat([0, 1], [40, 10])
    taken = np.zeros(50)
    for seed in range(200):
        taken[stratified_split(y, 0.2, seed)[1]] += 1
    # Binomial(200, 0.2): 40 expected, standard deviation 5.7.
    assert taken.min() > 40 - 5 * 5.7
    assert taken.max() < 40 + 5 * 5.7


def test_the_split_of_a_seed_stays() -> None:
    """A change of these rows would make runs incomparable with older ones."""
    y = np.repeat([0, 1], [7, 3])
    assert stratified_split(y, 0.3, 0)[1].tolist() == [2, 3, 8]
    assert stratified_split(y, 0.3, 1)[1].tolist() == [2, 4, 9]


@pytest.mark.parametrize(
    ("y", "fraction", "seed", "message"),
    [
        (
            [0, 0, 1],
            0.5,
            0,
            "t.csv: the split needs at least 2 anomalies, one for each part; there are 1",
        ),
        (
            [0, 1, 1],
            0.5,
            0,
            "t.csv: the split needs at least 2 normal rows, one for each part; there are 1",
        ),
        ([0, 0, 1, 1], 0.0, 0, "t.csv: a split needs a fraction between 0 and 1, not 0.0"),
        ([0, 0, 1, 1], 1.0, 0, "t.csv: a split needs a fraction between 0 and 1, not 1.0"),
        ([0, 0, 1, 1], 0.5, -1, "t.csv: a split needs a seed of 0 or more, not -1"),
    ],
)
def test_errors(y: list[int], fraction: float, seed: int, message: str) -> None:
    with pytest.raises(InputError) as caught:
        stratified_split(np.array(y), fraction, seed, source="t.csv")
    assert str(caught.value) == message
