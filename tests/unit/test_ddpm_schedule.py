"""Noise schedules of the toy DDPM."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from zoo.models.ddpm.diffusion import Diffusion
from zoo.models.ddpm.schedule import SCHEDULES, Schedule, cosine_schedule, linear_schedule, make_schedule
from zoo_datasets.errors import InputError


@pytest.mark.parametrize("steps", [1, 2, 50, 1000])
@pytest.mark.parametrize("name", SCHEDULES)
def test_every_table_is_finite_and_in_range(name: str, steps: int) -> None:
    schedule = make_schedule(name, steps)
    assert schedule.steps == steps
    for table in (schedule.beta, schedule.alpha, schedule.alpha_bar):
        assert table.shape == (steps,)
        assert table.dtype == torch.float64
        assert ((table > 0) & (table < 1)).all()
    diffusion = Diffusion(schedule)
    for choice in ("beta", "beta_tilde"):
        assert diffusion.posterior_variance(choice).isfinite().all()
        assert diffusion.posterior_log_variance(choice).isfinite().all()


def test_linear_schedule_against_exact_arithmetic() -> None:
    schedule = linear_schedule(1000)
    first, last = Fraction(1, 10_000), Fraction(2, 100)
    alpha_bar = Fraction(1)
    for t in range(1000):
        assert schedule.alpha_bar_prev[t].item() == pytest.approx(float(alpha_bar), rel=1e-12)
        beta = first + (last - first) * Fraction(t, 999)
        # Rounded now and then, or the fraction grows by digits with every step.
        alpha_bar = (alpha_bar * (1 - beta)).limit_denominator(10**40)
        assert schedule.beta[t].item() == pytest.approx(float(beta), rel=1e-13)
        assert schedule.alpha_bar[t].item() == pytest.approx(float(alpha_bar), rel=1e-12)


def test_nothing_is_lost_before_the_first_step() -> None:
    for name in SCHEDULES:
        assert make_schedule(name, 10).alpha_bar_prev[0] == 1


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 300))
def test_cosine_schedule_follows_the_cosine_until_its_betas_are_capped(steps: int) -> None:
    schedule = cosine_schedule(steps)

    def f(t: int) -> float:
        return math.cos((t / steps + 0.008) / 1.008 * math.pi / 2) ** 2

    capped = schedule.beta >= 0.999
    assert not capped[:-1].any()
    for t in torch.nonzero(~capped).flatten().tolist():
        assert schedule.alpha_bar[t].item() == pytest.approx(f(t + 1) / f(0), rel=1e-9)


@pytest.mark.parametrize("steps", [0, -3])
def test_too_few_steps_are_refused(steps: int) -> None:
    for name in SCHEDULES:
        with pytest.raises(
            InputError, match=f"^schedule: the number of steps T must be at least 1, got {steps}$"
        ):
            make_schedule(name, steps)


def test_a_schedule_that_leaves_nothing_of_the_data_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"^schedule: nothing is left of the data at step \d+ of 100000; use .*$"
    ):
        linear_schedule(100_000)


@pytest.mark.parametrize("beta", [0.0, 1.0, -0.1, math.nan, math.inf])
def test_a_beta_that_is_no_variance_is_refused(beta: float) -> None:
    with pytest.raises(InputError, match=r"^schedule: beta at step 1 is .*inside \(0, 1\)$"):
        Schedule(torch.tensor([0.1, beta], dtype=torch.float64))


def test_betas_of_another_shape_or_dtype_are_refused() -> None:
    for beta in (
        torch.zeros(0, dtype=torch.float64),
        torch.full((2, 2), 0.1).double(),
        torch.full((2,), 0.1),
    ):
        with pytest.raises(InputError, match=r"^schedule: beta must be float64 \[T\], got .*$"):
            Schedule(beta)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(InputError, match=r"^schedule 'sigmoid' is not known; choose one of linear, cosine$"):
        make_schedule("sigmoid", 10)
