"""DDPM and DDIM sampling, against the algorithms written out step by step and against exact networks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from zoo.models.ddpm.diffusion import Diffusion, Prediction, Variance
from zoo.models.ddpm.model import DenoisingMLP
from zoo.models.ddpm.sampler import (
    NoiseSource,
    Sampler,
    SamplerConfig,
    reverse_steps,
    sample,
    sampling_times,
)
from zoo.models.ddpm.schedule import SCHEDULES, Schedule, linear_schedule, make_schedule
from zoo_datasets.errors import InputError

PREDICTIONS, VARIANCES, SAMPLERS = get_args(Prediction), get_args(Variance), get_args(Sampler)


def row_noise(rows: range) -> NoiseSource:
    """Draws that belong to a row and a step, whichever rows are asked for together."""

    def noise(name: str, t: int, shape: torch.Size) -> Tensor:
        assert name == "z"
        assert shape[0] == len(rows)
        seeds = (1000 * t + row for row in rows)
        return torch.stack(
            [
                torch.randn(shape[1:], generator=torch.Generator().manual_seed(s), dtype=torch.float64)
                for s in seeds
            ]
        )

    return noise


def network(x_t: Tensor, t: Tensor) -> Tensor:
    """Anything not linear that depends on the step."""
    return torch.tanh(x_t.flip(1) * 0.7) + 0.001 * t[:, None]


def start(rows: int) -> Tensor:
    return torch.randn(rows, 4, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


@pytest.mark.parametrize("variance", VARIANCES)
def test_ddpm_is_algorithm_2_down_to_the_data(variance: Variance) -> None:
    schedule = linear_schedule(50)
    beta = schedule.beta.tolist()
    noise = row_noise(range(3))
    x = start(3)
    for t in range(49, -1, -1):
        alpha = 1 - beta[t]
        alpha_bar = math.prod(1 - b for b in beta[: t + 1])
        before = math.prod(1 - b for b in beta[:t])
        sigma = beta[t] if variance == "beta" else (1 - before) / (1 - alpha_bar) * beta[t]
        z = noise("z", t, x.shape) if t > 0 else torch.zeros_like(x)
        step = torch.full((3,), t)
        x = (x - (1 - alpha) / math.sqrt(1 - alpha_bar) * network(x, step)) / math.sqrt(alpha)
        x = x + math.sqrt(sigma) * z
    config = SamplerConfig(variance=variance)
    torch.testing.assert_close(
        sample(network, Diffusion(schedule), start(3), config, noise=noise), x, rtol=1e-9, atol=1e-11
    )


@pytest.mark.parametrize("eta", [0.0, 0.4, 1.0])
def test_ddim_in_13_of_1000_steps_takes_the_previous_step_from_those_13(eta: float) -> None:
    schedule = linear_schedule(1000)
    noise = row_noise(range(3))
    # 999 / 12 = 83.25 apart
    times = [999, 916, 833, 749, 666, 583, 500, 416, 333, 250, 167, 83, 0]
    x = start(3)
    for t, before in zip(times, [*times[1:], None], strict=True):
        now = schedule.alpha_bar[t].item()
        then = 1.0 if before is None else schedule.alpha_bar[before].item()
        sigma = eta * math.sqrt((1 - then) / (1 - now)) * math.sqrt(1 - now / then)
        eps = network(x, torch.full((3,), t))
        x0 = (x - math.sqrt(1 - now) * eps) / math.sqrt(now)
        x = math.sqrt(then) * x0 + math.sqrt(1 - then - sigma**2) * eps
        if sigma:
            x = x + sigma * noise("z", t, x.shape)
    visited: list[int] = []
    config = SamplerConfig("ddim", sampling_steps=13, eta=eta)
    got = sample(
        network, Diffusion(schedule), start(3), config, noise=noise, on_step=lambda t, _: visited.append(t)
    )
    assert visited == times
    torch.testing.assert_close(got, x, rtol=1e-9, atol=1e-9)


@settings(deadline=None)
@given(st.integers(1, 2000), st.data())
def test_steps_are_spread_evenly_from_the_start_down_to_0(schedule_steps: int, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, schedule_steps - 1))
    count = data.draw(st.integers(1, first + 1))
    times = sampling_times(schedule_steps, count, first)
    assert len(times) == count
    assert times[0] == first
    if count > 1:
        gaps = [a - b for a, b in itertools.pairwise(times)]
        assert times[-1] == 0
        assert min(gaps) >= 1
        assert max(gaps) - min(gaps) <= 1
    assert sampling_times(schedule_steps, None, first) == sampling_times(schedule_steps, first + 1, first)


@pytest.mark.parametrize("prediction", PREDICTIONS)
@settings(deadline=None, max_examples=30)
@given(
    st.builds(make_schedule, st.sampled_from(list(SCHEDULES)), st.integers(1, 100)),
    st.data(),
)
def test_ddim_with_full_noise_is_ddpm(
    prediction: Prediction, schedule: Schedule, data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, schedule.steps))
    diffusion, last = Diffusion(schedule, prediction), schedule.steps - 1
    ddim = reverse_steps(diffusion, SamplerConfig("ddim", count, eta=1.0), last)
    ddpm = reverse_steps(diffusion, SamplerConfig("ddpm", count, variance="beta_tilde"), last)
    for one, other in zip(ddim, ddpm, strict=True):
        assert one.t == other.t
        for name in ("of_x_t", "of_output", "of_noise"):
            assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-7, abs=1e-9)


CONFIGS = [
    SamplerConfig("ddpm"),
    SamplerConfig("ddpm", variance="beta"),
    SamplerConfig("ddpm", sampling_steps=7),
    SamplerConfig("ddim"),
    SamplerConfig("ddim", sampling_steps=7, eta=0.5),
]


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_what_the_network_predicts_makes_no_difference(config: SamplerConfig) -> None:
    schedule = linear_schedule(50)
    x0_of, noise_of = Diffusion(schedule).to_x0, Diffusion(schedule).to_noise
    v_of = Diffusion(schedule, "v").target
    networks: dict[Prediction, Callable[[Tensor, Tensor], Tensor]] = {
        "noise": network,
        "x0": lambda x, t: x0_of(network(x, t), x, t),
        "v": lambda x, t: v_of(x0_of(network(x, t), x, t), t, noise_of(network(x, t), x, t)),
    }
    results = [
        sample(net, Diffusion(schedule, prediction), start(3), config, noise=row_noise(range(3)))
        for prediction, net in networks.items()
    ]
    torch.testing.assert_close(results[1], results[0], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(results[2], results[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("first", [None, 10])
def test_a_network_that_knows_the_only_data_point_ends_at_it(
    config: SamplerConfig, first: int | None
) -> None:
    """Stopping a step early, or an alpha_bar other than 1 for the data, leaves noise or moves the point."""
    schedule = linear_schedule(50)
    point = torch.tensor([[1.0, -2.0, 0.5, 3.0]], dtype=torch.float64)
    a, s = schedule.alpha_bar.sqrt()[:, None], (1 - schedule.alpha_bar).sqrt()[:, None]
    got = sample(
        lambda x, t: (x - a[t] * point) / s[t],
        Diffusion(schedule),
        start(3),
        config,
        noise=row_noise(range(3)),
        start_step=first,
    )
    torch.testing.assert_close(got, point.expand(3, 4), rtol=0, atol=1e-10)


@pytest.mark.parametrize("count", [None, 13])
def test_each_variance_is_exact_for_the_data_it_is_meant_for(count: int | None) -> None:
    """Section 3.2: beta for x0 ~ N(0, I), beta_tilde for a single point. Follows the spread of x_t."""
    schedule = linear_schedule(1000)
    for variance, slope in (("beta", lambda s: s), ("beta_tilde", lambda s: 1 / s)):
        steps = reverse_steps(Diffusion(schedule), SamplerConfig("ddpm", count, variance), 999)  # type: ignore[arg-type]
        left = [schedule.alpha_bar[step.t].item() for step in steps]
        spread = 1.0 if variance == "beta" else 1 - left[0]
        for step, now, before in zip(steps, left, [*left[1:], 1.0], strict=True):
            # The best guess of the noise in x_t is s x_t when x0 ~ N(0, I), x_t / s when x0 = 0.
            factor = step.of_x_t + step.of_output * slope(math.sqrt(1 - now))
            spread = factor**2 * spread + step.of_noise**2
            if before < 1:
                assert spread == pytest.approx(1.0 if variance == "beta" else 1 - before, rel=1e-9)
            elif variance == "beta_tilde":
                assert spread == pytest.approx(0, abs=1e-20)


@pytest.mark.parametrize("steps", [1, 2, 50])
@pytest.mark.parametrize("name", SCHEDULES)
def test_every_choice_is_finite(name: str, steps: int) -> None:
    torch.manual_seed(0)
    net = DenoisingMLP(steps=steps, width=8)
    configs = [SamplerConfig(variance=v) for v in VARIANCES] + [
        SamplerConfig("ddim", eta=e) for e in (0.0, 0.5, 1.0)
    ]
    for prediction, config in itertools.product(PREDICTIONS, configs):
        diffusion = Diffusion(make_schedule(name, steps), prediction)
        noise = row_noise(range(5))
        got = sample(net, diffusion, start(5).float(), config, noise=lambda *key, n=noise: n(*key).float())
        assert got.dtype == torch.float32
        assert got.isfinite().all()


@pytest.mark.parametrize("prediction", PREDICTIONS)
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("name", SCHEDULES)
def test_13_steps_of_1000_are_finite(name: str, sampler: Sampler, prediction: Prediction) -> None:
    diffusion = Diffusion(make_schedule(name, 1000), prediction)
    for variance, eta in itertools.product(VARIANCES, (0.0, 1.0)):
        config = SamplerConfig(sampler, 13, variance, eta)
        assert sample(network, diffusion, start(5), config, noise=row_noise(range(5))).isfinite().all()


def test_starting_from_a_step_visits_it_and_all_below_and_asks_noise_for_all_but_the_last() -> None:
    asked: list[int] = []
    called: list[list[int]] = []
    seen: list[tuple[int, Tensor]] = []

    def noise(name: str, t: int, shape: torch.Size) -> Tensor:
        asked.append(t)
        return torch.zeros(shape, dtype=torch.float64)

    def spy(x_t: Tensor, t: Tensor) -> Tensor:
        called.append(t.tolist())
        return network(x_t, t)

    x = start(2)
    got = sample(
        spy,
        Diffusion(linear_schedule(50)),
        x,
        SamplerConfig(),
        noise=noise,
        start_step=3,
        on_step=lambda t, x: seen.append((t, x)),
    )
    assert called == [[3, 3], [2, 2], [1, 1], [0, 0]]
    assert asked == [3, 2, 1]
    assert [t for t, _ in seen] == [3, 2, 1, 0]
    torch.testing.assert_close(seen[-1][1], got, rtol=0, atol=0)
    assert torch.equal(x, start(2))  # the caller's vectors are left alone
    assert len({x.data_ptr() for _, x in seen}) == 4  # and so is every vector handed to the callback


@pytest.mark.parametrize("config", [SamplerConfig(), SamplerConfig("ddim", 10, eta=1.0)], ids=str)
@pytest.mark.parametrize("cuts", [[5, 5], [4, 3, 3], [7, 3, 0]])
def test_samples_belong_to_their_rows_however_the_batch_is_cut(
    config: SamplerConfig, cuts: list[int]
) -> None:
    diffusion = Diffusion(linear_schedule(50))
    whole = sample(network, diffusion, start(10), config, noise=row_noise(range(10)))
    parts, first = [], 0
    for rows in cuts:
        x = start(10)[first : first + rows]
        if rows:
            parts.append(sample(network, diffusion, x, config, noise=row_noise(range(first, first + rows))))
        first += rows
    torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-12, atol=1e-12)


def test_ddim_without_noise_asks_for_none() -> None:
    def noise(name: str, t: int, shape: torch.Size) -> Tensor:
        raise AssertionError("deterministic")

    sample(network, Diffusion(linear_schedule(50)), start(2), SamplerConfig("ddim"), noise=noise)


def test_samples_carry_no_graph_and_may_be_trained_on() -> None:
    net = DenoisingMLP(steps=5, width=8).double()
    got = sample(net, Diffusion(linear_schedule(5)), start(2), SamplerConfig(), noise=row_noise(range(2)))
    assert not got.requires_grad
    net(got, torch.zeros(2, dtype=torch.int64)).sum().backward()
    assert net.fc1.weight.grad is not None


@pytest.mark.parametrize("first", [-1, 50, 1000])
def test_a_start_outside_the_schedule_is_refused(first: int) -> None:
    with pytest.raises(InputError, match=rf"^start step must lie in 0\.\.49 for this model, got {first}$"):
        sample(
            network,
            Diffusion(linear_schedule(50)),
            start(2),
            SamplerConfig(),
            noise=row_noise(range(2)),
            start_step=first,
        )


@pytest.mark.parametrize("count", [0, -1, 12])
def test_more_sampling_steps_than_there_are_are_refused(count: int) -> None:
    with pytest.raises(InputError, match=rf"^sampling steps must lie in 1\.\.11 from step 10, got {count}$"):
        reverse_steps(Diffusion(linear_schedule(50)), SamplerConfig("ddim", count), 10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampler": "pndm"}, "sampler 'pndm' is not known; choose one of ddpm, ddim"),
        ({"variance": "large"}, "variance 'large' is not known; choose one of beta, beta_tilde"),
        ({"eta": 1.5}, "eta must lie between 0 and 1, got 1.5"),
        ({"eta": -0.5}, "eta must lie between 0 and 1, got -0.5"),
        ({"eta": math.nan}, "eta must lie between 0 and 1, got nan"),
    ],
)
def test_configurations_that_mean_nothing_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}$"):
        SamplerConfig(**options)  # type: ignore[arg-type]
