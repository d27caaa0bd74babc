"""The reverse process: from noise, or from a given vector at a given step, down to the data.

DDPM: Algorithm 2 of Ho, Jain, Abbeel 2020 (arXiv:2006.11239).
DDIM: Song, Meng, Ermon 2020 (arXiv:2010.02502).

Both visit a descending list of steps. The previous step is the next of that list, whatever its distance;
after the last comes the data, whose alpha_bar is 1. Every reverse step is linear in x_t, the network's output
and the noise, so its factors are computed beforehand, in float64, and the loop only multiplies and adds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from zoo.models.ddpm.diffusion import (
    Diffusion,
    Network,
    Variance,
    check_choice,
    output_to_noise,
    output_to_x0,
    posterior_weights,
    reverse_variance,
)
from zoo_datasets.errors import InputError

Sampler: TypeAlias = Literal["ddpm", "ddim"]
NoiseSource: TypeAlias = Callable[[str, int, torch.Size], Tensor]  # (name, step t, shape) -> draws of N(0, 1)
OnStep: TypeAlias = Callable[[int, Tensor], None]  # (the step t just undone, the vectors after it)


@dataclass(frozen=True)
class SamplerConfig:
    """How to walk back to the data. Raises InputError for a value that is none.

    sampler: "ddpm" or "ddim".
    sampling_steps: how many steps to visit, evenly spaced from the start down to 0; None visits all.
    variance: of DDPM, "beta_tilde" or "beta" (Ho et al., section 3.2).
    eta: of DDIM, from 0 (no fresh noise) to 1 (as much as DDPM with beta_tilde) (Song et al., eq. 16).
    """

    sampler: Sampler = "ddpm"
    sampling_steps: int | None = None
    variance: Variance = "beta_tilde"
    eta: float = 0.0

    def __post_init__(self) -> None:
        check_choice("sampler", self.sampler, get_args(Sampler))
        check_choice("variance", self.variance, get_args(Variance))
        if not 0 <= self.eta <= 1:
            raise InputError(f"eta must lie between 0 and 1, got {self.eta:g}")


@dataclass(frozen=True)
class ReverseStep:
    """x_previous = of_x_t * x_t + of_output * network(x_t, t) + of_noise * z."""

    t: int
    of_x_t: float
    of_output: float
    of_noise: float


@torch.no_grad()  # not inference_mode: FSDP2 keeps the buffers of a first forward and could not train after
def sample(
    network: Network,
    diffusion: Diffusion,
    x: Tensor,
    config: SamplerConfig,
    *,
    noise: NoiseSource,
    start_step: int | None = None,
    on_step: OnStep | None = None,
) -> Tensor:
    """Denoise `x` [batch, ...] down to data.

    `x` is taken as x_t at t = `start_step`; without one, as pure noise at the last step.
    `noise("z", t, x.shape)` is asked at every step t that adds noise, so the caller can key draws to samples.
    `on_step(t, x)` sees the vectors after every step.
    Raises InputError for a start outside 0 .. T-1, or more sampling steps than there are.
    """
    start = diffusion.schedule.steps - 1 if start_step is None else start_step
    steps = reverse_steps(diffusion, config, start)
    times = torch.tensor([step.t for step in steps], device=x.device)[:, None].expand(-1, len(x)).unbind()
    for step, t in zip(steps, times, strict=True):
        x = torch.add(step.of_x_t * x, network(x, t), alpha=step.of_output)
        if step.of_noise:
            x = torch.add(x, noise("z", step.t, x.shape), alpha=step.of_noise)
        if on_step is not None:
            on_step(step.t, x)
    return x


def sampling_times(schedule_steps: int, sampling_steps: int | None, start_step: int) -> list[int]:
    """The steps to visit: `sampling_steps` of them, evenly spaced from `start_step` down to 0, or all (None).

    A single one is `start_step`, from which the data is predicted in one go.
    """
    if not 0 <= start_step < schedule_steps:
        raise InputError(f"start step must lie in 0..{schedule_steps - 1} for this model, got {start_step}")
    if sampling_steps is None:
        return list(range(start_step, -1, -1))
    if not 1 <= sampling_steps <= start_step + 1:
        raise InputError(
            f"sampling steps must lie in 1..{start_step + 1} from step {start_step}, got {sampling_steps}"
        )
    if sampling_steps == 1:
        return [start_step]
    gaps = sampling_steps - 1
    return [(i * start_step + gaps // 2) // gaps for i in range(gaps, -1, -1)]


def reverse_steps(diffusion: Diffusion, config: SamplerConfig, start_step: int) -> list[ReverseStep]:
    """The factors of every step from `start_step` to the data, in the order they are taken."""
    schedule = diffusion.schedule
    times = sampling_times(schedule.steps, config.sampling_steps, start_step)
    alpha_bars = [*schedule.alpha_bar[times].tolist(), 1.0]
    step = _ddpm_step if config.sampler == "ddpm" else _ddim_step
    return [
        step(diffusion, config, t, alpha_bar, alpha_bar_prev)
        for t, alpha_bar, alpha_bar_prev in zip(times, alpha_bars[:-1], alpha_bars[1:], strict=True)
    ]


def _ddpm_step(
    diffusion: Diffusion, config: SamplerConfig, t: int, alpha_bar: float, alpha_bar_prev: float
) -> ReverseStep:
    """Line 4 of Algorithm 2: the posterior's mean at the predicted x0, and noise unless data comes next."""
    a, s = math.sqrt(alpha_bar), math.sqrt(1 - alpha_bar)
    of_x0, of_x_t = posterior_weights(alpha_bar, alpha_bar_prev)

    def mean(x_t: float, output: float) -> float:
        return of_x0 * output_to_x0(diffusion.prediction, output, x_t, a, s) + of_x_t * x_t

    variance = reverse_variance(alpha_bar, alpha_bar_prev, config.variance)
    sigma = 0.0 if alpha_bar_prev == 1 else math.sqrt(variance)
    # A linear function's factors are its values at (1, 0) and (0, 1).
    return ReverseStep(t, mean(1.0, 0.0), mean(0.0, 1.0), sigma)


def _ddim_step(
    diffusion: Diffusion, config: SamplerConfig, t: int, alpha_bar: float, alpha_bar_prev: float
) -> ReverseStep:
    """Song et al., eq. 12: the predicted x0, the direction back to x_t, and noise of eq. 16's sigma."""
    a, s = math.sqrt(alpha_bar), math.sqrt(1 - alpha_bar)
    sigma = config.eta * math.sqrt(reverse_variance(alpha_bar, alpha_bar_prev, "beta_tilde"))
    direction = math.sqrt(max(1 - alpha_bar_prev - sigma**2, 0.0))  # rounding may leave less than 0

    def mean(x_t: float, output: float) -> float:
        x0 = output_to_x0(diffusion.prediction, output, x_t, a, s)
        x_t_noise = output_to_noise(diffusion.prediction, output, x_t, a, s)
        return math.sqrt(alpha_bar_prev) * x0 + direction * x_t_noise

    return ReverseStep(t, mean(1.0, 0.0), mean(0.0, 1.0), sigma)
