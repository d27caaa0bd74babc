"""Forward process, posterior and loss of the toy DDPM, against the definitions they derive from."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from zoo.models.ddpm.diffusion import Diffusion, Prediction
from zoo.models.ddpm.schedule import SCHEDULES, Schedule, linear_schedule, make_schedule
from zoo_datasets.errors import InputError

PREDICTIONS = get_args(Prediction)

schedules = st.builds(make_schedule, st.sampled_from(list(SCHEDULES)), st.integers(1, 200))
property_test = settings(deadline=None, max_examples=25)


def draws(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@property_test
@given(schedules)
def test_one_step_after_another_is_the_forward_process_in_one_go(schedule: Schedule) -> None:
    diffusion = Diffusion(schedule)
    x0, zero, one = draws(3, 4), torch.zeros(3, 4, dtype=torch.float64), torch.ones(3, 4, dtype=torch.float64)
    mean, variance = x0, zero
    for t in range(schedule.steps):
        # x_t = sqrt(1 - beta) x_{t-1} + sqrt(beta) z (eq. 2)
        mean = (1 - schedule.beta[t]).sqrt() * mean
        variance = (1 - schedule.beta[t]) * variance + schedule.beta[t]
        steps = torch.full((3,), t)
        torch.testing.assert_close(diffusion.q_sample(x0, steps, zero), mean, rtol=1e-10, atol=1e-12)
        spread = diffusion.q_sample(zero, steps, one).square()
        torch.testing.assert_close(spread, variance, rtol=1e-10, atol=1e-12)


@property_test
@given(schedules)
def test_the_posterior_is_bayes_rule(schedule: Schedule) -> None:
    """q(x_{t-1} | x_t, x0) is the product of q(x_t | x_{t-1}) and q(x_{t-1} | x0), Gaussians in x_{t-1}."""
    diffusion = Diffusion(schedule)
    t = torch.arange(1, schedule.steps)
    x0, x_t = draws(len(t), 4, seed=1), draws(len(t), 4, seed=2)
    alpha, beta, before = schedule.alpha[t], schedule.beta[t], schedule.alpha_bar[t - 1]
    precision = alpha / beta + 1 / (1 - before)
    weighted = (alpha.sqrt() / beta)[:, None] * x_t + (before.sqrt() / (1 - before))[:, None] * x0
    mean = diffusion.posterior_mean(x0, x_t, t)
    torch.testing.assert_close(mean, weighted / precision[:, None], rtol=1e-9, atol=1e-9)
    variance = diffusion.posterior_variance("beta_tilde")
    torch.testing.assert_close(variance[1:], 1 / precision, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(diffusion.posterior_variance("beta"), schedule.beta, rtol=1e-9, atol=1e-12)


@property_test
@given(schedules)
def test_the_posterior_leads_back_to_the_marginal_of_the_step_before(schedule: Schedule) -> None:
    """x_t ~ q(x_t | x0), then x_{t-1} ~ q(x_{t-1} | x_t, x0): together q(x_{t-1} | x0), at t = 0 the data."""
    diffusion = Diffusion(schedule)
    t = torch.arange(schedule.steps)
    x0, zero, one = (torch.full((len(t), 1), v, dtype=torch.float64) for v in (0.7, 0.0, 1.0))
    mean = diffusion.posterior_mean(x0, diffusion.q_sample(x0, t, zero), t)
    spread = diffusion.posterior_mean(zero, diffusion.q_sample(zero, t, one), t).square()
    variance = spread + diffusion.posterior_variance("beta_tilde")[:, None]
    torch.testing.assert_close(mean, schedule.alpha_bar_prev.sqrt()[:, None] * x0, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(variance, 1 - schedule.alpha_bar_prev[:, None], rtol=1e-9, atol=1e-12)


@property_test
@given(schedules, st.sampled_from(PREDICTIONS), st.integers(0, 2**32))
def test_the_target_tells_x0_and_the_noise(schedule: Schedule, prediction: Prediction, seed: int) -> None:
    diffusion = Diffusion(schedule, prediction)
    t = torch.arange(schedule.steps)
    x0, noise = draws(len(t), 4, seed=seed), draws(len(t), 4, seed=seed + 1)
    x_t = diffusion.q_sample(x0, t, noise)
    output = diffusion.target(x0, t, noise)
    # Where a (or s) is tiny, x0 (or the noise) is found by dividing by it.
    scale = 1 / schedule.alpha_bar.sqrt().min().item()
    torch.testing.assert_close(diffusion.to_x0(output, x_t, t), x0, rtol=0, atol=1e-14 * scale + 1e-12)
    torch.testing.assert_close(diffusion.to_noise(output, x_t, t), noise, rtol=0, atol=1e-11)


def test_v_is_the_noise_turned_by_a_quarter() -> None:
    """x_t = a x0 + s noise and v = a noise - s x0 are a rotation: lengths and the inner product are kept."""
    diffusion = Diffusion(linear_schedule(100), "v")
    t = torch.arange(100)
    x0, noise = draws(100, 4), draws(100, 4, seed=1)
    x_t, v = diffusion.q_sample(x0, t, noise), diffusion.target(x0, t, noise)
    torch.testing.assert_close(x_t.square() + v.square(), x0.square() + noise.square())
    torch.testing.assert_close(v[0], noise[0], rtol=0, atol=0.05)  # at first nearly the noise


@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_the_loss_is_one_number_a_sample(prediction: Prediction) -> None:
    schedule = linear_schedule(10)
    diffusion = Diffusion(schedule, prediction)
    x0, noise, t = draws(5, 3), draws(5, 3, seed=1), torch.tensor([0, 9, 4, 4, 7])

    def network(x_t: Tensor, t: Tensor) -> Tensor:
        return 0.3 * x_t + 0.01 * t[:, None].double()

    losses = diffusion.simple_loss(network, x0, t, noise)
    assert losses.shape == (5,)
    for row in range(5):
        a = schedule.alpha_bar[t[row]].item() ** 0.5
        s = (1 - schedule.alpha_bar[t[row]].item()) ** 0.5
        total = 0.0
        for x, e in zip(x0[row].tolist(), noise[row].tolist(), strict=True):
            wanted = {"noise": e, "x0": x, "v": a * e - s * x}[prediction]
            total += (0.3 * (a * x + s * e) + 0.01 * t[row].item() - wanted) ** 2
        assert losses[row].item() == pytest.approx(total / 3, rel=1e-12)


@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_the_loss_of_a_network_that_knows_is_zero(prediction: Prediction) -> None:
    diffusion = Diffusion(linear_schedule(10), prediction)
    x0, noise, t = draws(6, 4), draws(6, 4, seed=1), torch.arange(6)
    losses = diffusion.simple_loss(lambda x_t, t: diffusion.target(x0, t, noise), x0, t, noise)
    assert (losses == 0).all()


def test_a_low_precision_network_still_gives_a_loss_in_the_precision_of_the_data() -> None:
    diffusion = Diffusion(linear_schedule(10))
    x0, noise, t = draws(6, 4).float(), draws(6, 4, seed=1).float(), torch.arange(6)
    losses = diffusion.simple_loss(lambda x_t, t: x_t.bfloat16(), x0, t, noise)
    exact = diffusion.simple_loss(lambda x_t, t: x_t, x0, t, noise)
    assert losses.dtype == torch.float32
    torch.testing.assert_close(losses, exact, rtol=0.05, atol=1e-3)


def test_vectors_of_any_dtype_and_shape() -> None:
    diffusion = Diffusion(linear_schedule(10))
    x0, noise, t = draws(6, 2, 3), draws(6, 2, 3, seed=1), torch.arange(6)
    exact = diffusion.q_sample(x0, t, noise)
    for dtype in (torch.float32, torch.bfloat16, torch.float64):  # of one object, in turn
        x_t = diffusion.q_sample(x0.to(dtype), t, noise.to(dtype))
        assert x_t.dtype == dtype
        eps = torch.finfo(dtype).eps
        torch.testing.assert_close(x_t.double(), exact, rtol=4 * eps, atol=4 * eps)
        assert diffusion.simple_loss(lambda x_t, t: x_t, x0.to(dtype), t, noise.to(dtype)).shape == (6,)


@pytest.mark.parametrize("steps", [1, 2, 50])
def test_log_variances_are_those_of_the_variances_wherever_there_is_noise(steps: int) -> None:
    diffusion = Diffusion(linear_schedule(steps))
    torch.testing.assert_close(
        diffusion.posterior_log_variance("beta").exp(), diffusion.posterior_variance("beta")
    )
    tilde = diffusion.posterior_log_variance("beta_tilde").exp()
    torch.testing.assert_close(tilde[1:], diffusion.posterior_variance("beta_tilde")[1:])
    assert diffusion.posterior_variance("beta_tilde")[0] == 0  # asking for the logarithm changes nothing


def test_unknown_choices_are_refused() -> None:
    with pytest.raises(InputError, match=r"^prediction 'eps' is not known; choose one of noise, x0, v$"):
        Diffusion(linear_schedule(10), "eps")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"^variance 'large' is not known; choose one of beta, beta_tilde$"):
        Diffusion(linear_schedule(10)).posterior_variance("large")  # type: ignore[arg-type]
