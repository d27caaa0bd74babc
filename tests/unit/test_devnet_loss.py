"""The deviation loss against golden values, the paper's equations and its meaning."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from zoo.models.devnet.loss import MARGIN, Reference, deviation, deviation_loss
from zoo.models.devnet.reference import DRAWS, ReferenceScores, summarise


@pytest.fixture(scope="module")
def golden(reference: Path) -> dict[str, object]:
    return json.loads((reference / "devnet" / "golden.json").read_text())


def test_golden_deviations_and_loss(golden):
    scores = torch.tensor(golden["scores"], dtype=torch.float64)
    anomaly = torch.tensor(golden["labels"]) == 1
    reference = Reference(golden["reference_mean"], golden["reference_std_unbiased"])
    assert golden["margin"] == MARGIN
    assert golden["reference_size"] == DRAWS
    torch.testing.assert_close(
        deviation(scores, reference),
        torch.tensor(golden["deviation"], dtype=torch.float64),
        rtol=0,
        atol=1e-6,
    )
    assert deviation_loss(scores, anomaly, reference).mean().item() == pytest.approx(golden["loss"], abs=1e-6)


def test_the_published_loss_to_the_last_digit_of_float32():
    """golden.json's, here too so that it is checked where there is no reference data."""
    scores = torch.tensor(
        [
            *(2.4098281860351562, 0.5245001316070557, 0.26693427562713623, -1.8411540985107422),
            *(0.13854734599590302, -4.1047773361206055, 1.0124852657318115, 3.0333476066589355),
        ]
    )
    anomaly = torch.tensor([0, 1, 0, 1, 1, 0, 0, 1]) == 1
    reference = Reference(-0.0014870248269289732, 1.010324239730835)
    for precision in (torch.float32, torch.float64):
        loss = deviation_loss(scores.to(precision), anomaly, reference).mean().item()
        assert loss == pytest.approx(3.234394073486328, abs=1e-6)


@given(seed=st.integers(0, 2**31), rows=st.integers(0, 20), margin=st.floats(0.5, 10))
def test_equations(seed, rows, margin):
    """Equations 6 and 7 in NumPy, row by row."""
    rng = np.random.default_rng(seed)
    scores, anomaly = rng.normal(scale=5, size=rows), rng.random(rows) < 0.5
    draws = rng.normal(size=DRAWS)
    want = []
    for score, is_anomaly in zip(scores, anomaly, strict=True):
        dev = (score - draws.sum() / len(draws)) / draws.std(ddof=1)
        want.append(max(0.0, margin - dev) if is_anomaly else abs(dev))
    (reference,) = summarise(torch.from_numpy(draws[None]))
    got = deviation_loss(torch.from_numpy(scores), torch.from_numpy(anomaly), reference, margin)
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-12, atol=1e-12)


def test_descent_pulls_normal_rows_to_the_reference_and_anomalies_above_it():
    scores = torch.tensor([-2.0, 2.0, -2.0, 2.0, 6.0], requires_grad=True)
    deviation_loss(
        scores, torch.tensor([False, False, True, True, True]), Reference(0.01, 0.99)
    ).sum().backward()
    assert scores.grad is not None
    assert torch.sign(scores.grad).tolist() == [-1, 1, -1, -1, 0]


def test_a_column_of_scores_does_not_broadcast():
    with pytest.raises(AssertionError):
        deviation_loss(torch.zeros(4, 1), torch.zeros(4, dtype=torch.bool), Reference(0.0, 1.0))


@given(seed=st.integers(0, 2**63 - 1), step=st.integers(0, 10**6))
@settings(max_examples=20)
def test_references_are_a_pure_function_of_seed_and_step(seed, step):
    one, other = ReferenceScores(seed), ReferenceScores(seed)
    want = [one(at) for at in range(step, step + 3)]
    other(step + 100)
    assert [other(at) for at in range(step, step + 3)] == want
    assert len(set(want)) == 3
    assert ReferenceScores((seed + 1) % 2**63)(step) != want[0]


def test_references_have_the_spread_of_5000_draws():
    """Mean and standard deviation of n normal draws have standard errors of 1 / sqrt(n) and 1 / sqrt(2n)."""
    scores = ReferenceScores(0)
    drawn = [scores(step) for step in range(1000)]
    means, stds = np.array([r.mean for r in drawn]), np.array([r.std for r in drawn])
    # Over 1,000 steps: five standard errors of a mean, and of a standard deviation.
    assert abs(means.mean()) < 5 / 5000**0.5 / 1000**0.5
    assert abs(stds.mean() - 1) < 5 / 10000**0.5 / 1000**0.5
    assert means.std() == pytest.approx(5000**-0.5, rel=0.12)
    assert stds.std() == pytest.approx(10000**-0.5, rel=0.12)
