"""The forward process, its posterior and the training loss of a diffusion model.

Ho, Jain, Abbeel 2020 (arXiv:2006.11239), with steps t = 0 .. T-1 and the data as `x0` (see schedule.py).
With a = sqrt(alpha_bar_t) and s = sqrt(1 - alpha_bar_t), every noisy vector is x_t = a x0 + s noise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias, TypeVar, get_args

import torch
from torch import Tensor

from zoo.models.ddpm.schedule import Schedule
from zoo_datasets.errors import InputError

Prediction: TypeAlias = Literal["noise", "x0", "v"]
Variance: TypeAlias = Literal["beta", "beta_tilde"]
Network: TypeAlias = Callable[
    [Tensor, Tensor], Tensor
]  # (x_t [batch, ...], t [batch]) -> output [batch, ...]

Number = TypeVar("Number", float, Tensor)  # these formulas hold for one step and for tables of steps alike


def posterior_weights(alpha_bar: Number, alpha_bar_prev: Number) -> tuple[Number, Number]:
    """Weights of x0 and of x_t in the mean of q(x_prev | x_t, x0) (eq. 7).

    `alpha_bar_prev` may be that of any earlier step: alpha is then the product over the steps between.
    """
    alpha = alpha_bar / alpha_bar_prev
    of_x0 = alpha_bar_prev**0.5 * (1 - alpha) / (1 - alpha_bar)
    of_x_t = alpha**0.5 * (1 - alpha_bar_prev) / (1 - alpha_bar)
    return of_x0, of_x_t


def reverse_variance(alpha_bar: Number, alpha_bar_prev: Number, choice: Variance) -> Number:
    """Variance of a reverse step: "beta", or "beta_tilde" (eq. 7); section 3.2 says which data each suits."""
    check_choice("variance", choice, get_args(Variance))
    beta = 1 - alpha_bar / alpha_bar_prev
    return beta if choice == "beta" else beta * (1 - alpha_bar_prev) / (1 - alpha_bar)


def output_to_x0(prediction: Prediction, output: Number, x_t: Number, a: Number, s: Number) -> Number:
    """x0 from what the network says about x_t (for "noise": eq. 15)."""
    if prediction == "noise":
        return (x_t - s * output) / a
    if prediction == "x0":
        return output
    return a * x_t - s * output


def output_to_noise(prediction: Prediction, output: Number, x_t: Number, a: Number, s: Number) -> Number:
    """The noise from what the network says about x_t."""
    if prediction == "noise":
        return output
    if prediction == "x0":
        return (x_t - a * output) / s
    return s * x_t + a * output


class Diffusion:
    """One diffusion model's formulas: its schedule, and what its network predicts.

    `prediction` is "noise" (Ho et al., section 3.2), "x0", or "v" = a noise - s x0 (Salimans, Ho 2022,
    arXiv:2202.00512, section 4). Methods take vectors [batch, ...] and a step for each, t int64 [batch]; they
    work in the vectors' dtype and on their device.
    """

    def __init__(self, schedule: Schedule, prediction: Prediction = "noise") -> None:
        check_choice("prediction", prediction, get_args(Prediction))
        self.schedule = schedule
        self.prediction = prediction
        of_x0, of_x_t = posterior_weights(schedule.alpha_bar, schedule.alpha_bar_prev)
        self._tables = {
            "a": schedule.alpha_bar.sqrt(),
            "s": (1 - schedule.alpha_bar).sqrt(),
            "of_x0": of_x0,
            "of_x_t": of_x_t,
        }
        self._cast: dict[tuple[str, torch.device, torch.dtype], Tensor] = {}

    def q_sample(self, x0: Tensor, t: Tensor, noise: Tensor) -> Tensor:
        """x_t ~ q(x_t | x0), all steps up to t in one go (eq. 4)."""
        return self._at("a", t, x0) * x0 + self._at("s", t, x0) * noise

    def posterior_mean(self, x0: Tensor, x_t: Tensor, t: Tensor) -> Tensor:
        """Mean of q(x_{t-1} | x_t, x0) (eq. 7). At t = 0 that is x0."""
        return self._at("of_x0", t, x_t) * x0 + self._at("of_x_t", t, x_t) * x_t

    def posterior_variance(self, choice: Variance) -> Tensor:
        """Variance of every reverse step, float64 [T]. beta_tilde is 0 at t = 0, the step to the data."""
        return reverse_variance(self.schedule.alpha_bar, self.schedule.alpha_bar_prev, choice)

    def posterior_log_variance(self, choice: Variance) -> Tensor:
        """Logarithm of `posterior_variance`, float64 [T], finite.

        Where beta_tilde is 0 (t = 0), the next step's stands in, or beta where there is no next step.
        """
        variance = self.posterior_variance(choice)
        if choice == "beta_tilde":
            variance[0] = variance[1] if self.schedule.steps > 1 else self.schedule.beta[0]
        return variance.log()

    def target(self, x0: Tensor, t: Tensor, noise: Tensor) -> Tensor:
        """What the network should say about x_t = q_sample(x0, t, noise)."""
        if self.prediction == "noise":
            return noise
        if self.prediction == "x0":
            return x0
        return self._at("a", t, x0) * noise - self._at("s", t, x0) * x0

    def to_x0(self, output: Tensor, x_t: Tensor, t: Tensor) -> Tensor:
        """x0 from the network's output."""
        return output_to_x0(self.prediction, output, x_t, self._at("a", t, x_t), self._at("s", t, x_t))

    def to_noise(self, output: Tensor, x_t: Tensor, t: Tensor) -> Tensor:
        """The noise from the network's output."""
        return output_to_noise(self.prediction, output, x_t, self._at("a", t, x_t), self._at("s", t, x_t))

    def simple_loss(self, network: Network, x0: Tensor, t: Tensor, noise: Tensor) -> Tensor:
        """L_simple (eq. 14), one number per sample, [batch].

        The squared error's mean over a vector's numbers, where the paper sums: vectors of any width then give
        losses of one size.
        """
        output = network(self.q_sample(x0, t, noise), t)
        error = output - self.target(x0, t, noise)
        return error.square().flatten(1).mean(dim=1)

    def _at(self, table: str, t: Tensor, like: Tensor) -> Tensor:
        """A table's entry for each sample, [batch, 1, ...], ready to multiply `like`."""
        key = (table, like.device, like.dtype)
        if key not in self._cast:
            self._cast[key] = self._tables[table].to(like.dtype).to(like.device)
        return self._cast[key][t].view(-1, *[1] * (like.ndim - 1))


def check_choice(what: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise InputError where `value` is none of `choices`."""
    if value not in choices:
        raise InputError(f"{what} {value!r} is not known; choose one of {', '.join(choices)}")
