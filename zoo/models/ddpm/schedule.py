"""Noise schedules: how much of the data is left after every step of the forward process.

Names follow Ho, Jain, Abbeel 2020 (arXiv:2006.11239), section 2. The paper counts noisy steps from 1 to T and
calls the data x_0; here they are t = 0 .. T-1, so that t = 0 is the first noisy step, and the data is `x0`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from zoo_datasets.errors import InputError

# Below this, float32 cannot hold what the formulas divide by, and every sample turns into inf or NaN.
SMALLEST_ALPHA_BAR = torch.finfo(torch.float32).tiny


@dataclass(frozen=True, eq=False)
class Schedule:
    """The forward process q(x_t | x_{t-1}) = N(sqrt(alpha_t) x_{t-1}, beta_t I) (eq. 2), one entry per step.

    All tensors are float64 [T] on the CPU: in float32, 1 - alpha_bar loses half its digits at first.
    Raises InputError where a beta is not inside (0, 1), or alpha_bar falls below what float32 can divide by.
    """

    beta: Tensor

    def __post_init__(self) -> None:
        beta = self.beta
        if beta.ndim != 1 or len(beta) == 0 or beta.dtype != torch.float64:
            raise InputError(f"schedule: beta must be float64 [T], got {beta.dtype} {list(beta.shape)}")
        bad = torch.nonzero(~((beta > 0) & (beta < 1)))
        if len(bad):
            t = int(bad[0])
            raise InputError(f"schedule: beta at step {t} is {float(beta[t]):g}; it must lie inside (0, 1)")
        lost = torch.nonzero(self.alpha_bar < SMALLEST_ALPHA_BAR)
        if len(lost):
            raise InputError(
                f"schedule: nothing is left of the data at step {int(lost[0])} of {len(beta)}; "
                "use fewer steps, smaller betas or the cosine schedule"
            )

    @property
    def steps(self) -> int:
        """T, the number of steps."""
        return len(self.beta)

    @cached_property
    def alpha(self) -> Tensor:
        """alpha_t = 1 - beta_t (text above eq. 4)."""
        return 1 - self.beta

    @cached_property
    def alpha_bar(self) -> Tensor:
        """alpha_bar_t, the product of the alphas up to t: what is left of the data's variance (eq. 4)."""
        return torch.cumprod(self.alpha, dim=0)

    @cached_property
    def alpha_bar_prev(self) -> Tensor:
        """alpha_bar of the step before. Before the first, nothing is lost yet: it is 1."""
        return torch.cat([torch.ones(1, dtype=torch.float64), self.alpha_bar[:-1]])


def linear_schedule(steps: int, beta_first: float = 1e-4, beta_last: float = 2e-2) -> Schedule:
    """Betas on a straight line between two values (section 4 of the paper). A single step has `beta_first`.

    The defaults are the paper's, for T = 1000; with far fewer steps the last x_t still shows the data.
    """
    _check_steps(steps)
    return Schedule(torch.linspace(beta_first, beta_last, steps, dtype=torch.float64))


def cosine_schedule(steps: int) -> Schedule:
    """Squared cosine for alpha_bar, betas up to 0.999 (Nichol, Dhariwal 2021, arXiv:2102.09672, eq. 17)."""
    _check_steps(steps)
    offset = 0.008  # keeps the first betas from vanishing (their section 3.2)
    time = torch.linspace(0, 1, steps + 1, dtype=torch.float64)
    alpha_bar = torch.cos((time + offset) / (1 + offset) * (math.pi / 2)) ** 2
    return Schedule((1 - alpha_bar[1:] / alpha_bar[:-1]).clamp(max=0.999))


SCHEDULES: dict[str, Callable[[int], Schedule]] = {"linear": linear_schedule, "cosine": cosine_schedule}


def make_schedule(name: str, steps: int) -> Schedule:
    """The schedule of that name ("linear" or "cosine"), with its paper's constants. Raises InputError."""
    if name not in SCHEDULES:
        raise InputError(f"schedule {name!r} is not known; choose one of {', '.join(SCHEDULES)}")
    return SCHEDULES[name](steps)


def _check_steps(steps: int) -> None:
    if steps < 1:
        raise InputError(f"schedule: the number of steps T must be at least 1, got {steps}")
