"""The deviation loss against golden values, the paper's equations and its meaning."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from zoo.models.devnet.loss import MARGIN, REFERENCE_SIZE, deviation, deviation_loss


@pytest.fixture(scope="module")
def golden(reference: Path) -> dict[str, object]:
    return json.loads((reference / "devnet" / "golden.json").read_text())


def draws_with(mean: float, std: float) -> torch.Tensor:
    """Two draws whose mean and unbiased standard deviation are those given."""
    half = std / 2**0.5
    return torch.tensor([mean - half, mean + half], dtype=torch.float64)


def test_golden_deviations_and_loss(golden):
    scores = torch.tensor(golden["scores"], dtype=torch.float64)
    anomaly = torch.tensor(golden["labels"]) == 1
    reference = draws_with(golden["reference_mean"], golden["reference_std_unbiased"])
    assert golden["margin"] == MARGIN
    assert golden["reference_size"] == REFERENCE_SIZE
    torch.testing.assert_close(
        deviation(scores, reference),
        torch.tensor(golden["deviation"], dtype=torch.float64),
        rtol=0,
        atol=1e-6,
    )
    assert deviation_loss(scores, anomaly, reference).mean().item() == pytest.approx(golden["loss"], abs=1e-6)


@given(seed=st.integers(0, 2**31), rows=st.integers(0, 20), margin=st.floats(0.5, 10))
def test_equations(seed, rows, margin):
    """Equations 6 and 7 in NumPy, row by row."""
    rng = np.random.default_rng(seed)
    scores, anomaly = rng.normal(scale=5, size=rows), rng.random(rows) < 0.5
    reference = rng.normal(size=REFERENCE_SIZE)
    want = []
    for score, is_anomaly in zip(scores, anomaly, strict=True):
        dev = (score - reference.sum() / len(reference)) / reference.std(ddof=1)
        want.append(max(0.0, margin - dev) if is_anomaly else abs(dev))
    got = deviation_loss(*map(torch.from_numpy, (scores, anomaly, reference)), margin)
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-12, atol=1e-12)


def test_descent_pulls_normal_rows_to_the_reference_and_anomalies_above_it():
    reference = torch.randn(REFERENCE_SIZE, generator=torch.Generator().manual_seed(0))
    scores = torch.tensor([-2.0, 2.0, -2.0, 2.0, 6.0], requires_grad=True)
    deviation_loss(scores, torch.tensor([False, False, True, True, True]), reference).sum().backward()
    assert scores.grad is not None
    assert torch.sign(scores.grad).tolist() == [-1, 1, -1, -1, 0]


def test_a_column_of_scores_does_not_broadcast():
    with pytest.raises(AssertionError):
        deviation_loss(torch.zeros(4, 1), torch.zeros(4, dtype=torch.bool), torch.randn(10))
