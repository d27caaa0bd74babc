"""The vectors a run trains on, their order, and the figures that judge samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from zoo.models.ddpm.config import DDPMConfig
from zoo.models.ddpm.data import Rounds, load_vectors
from zoo.models.ddpm.metrics import pattern_metrics
from zoo_datasets import InputError


@given(rows=st.integers(1, 40), draws=st.integers(1, 300), seed=st.integers(0, 5), epoch=st.integers(0, 3))
@settings(deadline=None, max_examples=60)
def test_every_row_comes_equally_often(rows: int, draws: int, seed: int, epoch: int) -> None:
    order = Rounds(rows, draws, seed)(epoch)
    counts = torch.bincount(order, minlength=rows)
    assert order.shape == (draws,)
    assert int(counts.max() - counts.min()) <= 1
    assert order.equal(Rounds(rows, draws, seed)(epoch))


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = [Rounds(10, 100, seed)(epoch) for seed in (0, 1) for epoch in (0, 1)]
    assert len({tuple(order.tolist()) for order in orders}) == 4


def test_the_published_vectors_lie_between_minus_one_and_one() -> None:
    vectors = load_vectors(DDPMConfig())
    normal = vectors.normaliser.normalise(vectors.x)
    assert vectors.x.shape == (10, 4) and vectors.columns == ["x1", "x2", "x3", "x4"]
    np.testing.assert_allclose(normal, vectors.x / 3.5 - 1, atol=1e-6)


def test_a_file_of_vectors_is_scaled_by_its_own_columns(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("a,b\n1,100\n3,300\n2,150\n")
    vectors = load_vectors(DDPMConfig(data=str(path)))
    assert vectors.columns == ["a", "b"] and vectors.patterns is None
    np.testing.assert_allclose(
        vectors.normaliser.normalise(vectors.x), [[-1, -1], [1, 1], [0, -0.5]], atol=1e-6
    )


def test_one_vector_is_too_few(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("a,b\n1,100\n")
    with pytest.raises(InputError, match="at least 2"):
        load_vectors(DDPMConfig(data=str(path)))


def test_figures_of_samples_by_hand() -> None:
    patterns = np.array([[0.0, 1.0], [1.0, 0.0]])
    samples = np.array([[0.1, 0.9], [0.0, 1.2], [0.9, 0.3], [5.0, 5.0]])
    figures = pattern_metrics(samples, patterns)
    assert figures["valid"] == 0.75 and figures["patterns"] == 2 and figures["largest_share"] == 0.5
    assert figures["distance"] == pytest.approx((0.1 + 0.1 + 0.2 + 4.5) / 4)
