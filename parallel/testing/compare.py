"""What a run leaves to compare, and how far from one process's run it may be."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn


@dataclass
class Trace:
    """Losses and gradient norms of each step; at the end the weights (and averages), and what the nets answer.

    Attributes:
        gradients: the largest norm that the gradient of each of the weights had, if :func:`note_gradients` noted it.
    """

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    lrs: list[float] = field(default_factory=list)
    weights: dict[str, Tensor] = field(default_factory=dict)
    answers: dict[str, Tensor] = field(default_factory=dict)
    gradients: dict[str, float] = field(default_factory=dict)


def note_gradients(net: nn.Module) -> dict[str, float]:
    """Goes on noting the largest norm of each parameter's gradient, in one process, where gradients are whole."""
    norms: dict[str, float] = {}

    def note(name: str, parameter: Tensor) -> None:
        assert parameter.grad is not None
        norms[name] = max(norms.get(name, 0.0), float(parameter.grad.norm()))

    for name, parameter in net.named_parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(partial(note, name))
    return norms


# Guarantee 1: losses and gradient norms, then final weights (fp32 amplifies rounding where a true gradient is
# zero, so its weights are reported and not held to a limit). Lower precisions are compared with one process
# at that precision, and may be ten of their roundings apart.
TOLERANCES: dict[str, tuple[float, float | None]] = {
    "fp64": (1e-9, 1e-8),
    "fp32": (1e-5, None),
    "bf16-mixed": (10 * 2.0**-8, None),
    "fp16-mixed": (10 * 2.0**-11, None),
}

# A gradient is known to about the whole gradient's norm times eps, and some hundred times that after long sums. A tensor
# whose gradient never rises above it has none (softmax, say, does not see a bias that all keys share): it moves by
# noise, and a difference relative to noise says nothing.
ROUNDINGS = 512


def distances(want: Trace, got: Trace) -> dict[str, float]:
    """The largest relative difference of losses, of gradient norms, and per tensor of weights and answers."""
    if len(want.losses) != len(got.losses) or want.weights.keys() != got.weights.keys():
        raise ValueError(f"the runs differ in steps or names: {len(want.losses)} and {len(got.losses)} steps")
    return {
        "loss": _worst(map(_relative, want.losses, got.losses)),
        "grad_norm": _worst(map(_relative, want.norms, got.norms)),
        "lr": _worst(map(_relative, want.lrs, got.lrs)),
        "weights": _largest(want.weights, got.weights, _without_gradient(want)),
        "answers": _largest(want.answers, got.answers),
    }


def differences(want: Trace, got: Trace, precision: str) -> list[str]:
    """What is further apart than guarantee 1 allows; empty where all is well."""
    numbers, weights = TOLERANCES[precision]
    limits = {"loss": numbers, "grad_norm": numbers, "lr": 1e-12, "weights": weights, "answers": weights}
    found = distances(want, got)
    return [
        f"{what}: {found[what]:.3g} apart, {limit:.0e} allowed"
        for what, limit in limits.items()
        if limit is not None and not found[what] <= limit
    ]


def _relative(want: float, got: float) -> float:
    return abs(want - got) / max(abs(want), 1e-12)


def _largest(
    want: Mapping[str, Tensor], got: Mapping[str, Tensor], noise: frozenset[str] = frozenset()
) -> float:
    """Per tensor, the norm of the difference over the norm; over that of all tensors, for those that are noise.

    A single number may pass zero, and has no other to be relative to: all tensors of one number are taken as one vector.
    """
    sizes = {name: float(tensor.to(torch.float64).norm()) for name, tensor in want.items()}
    whole = _together(sizes.values())
    single = [name for name, tensor in want.items() if tensor.numel() == 1 and tensor.is_floating_point()]
    sizes |= dict.fromkeys(single, _together(sizes[name] for name in single))
    sizes |= dict.fromkeys(noise & sizes.keys(), whole)
    return _worst(_apart(want[name], got[name]) / max(size, 1e-12) for name, size in sizes.items())


def _apart(want: Tensor, got: Tensor) -> float:
    return math.inf if want.shape != got.shape else float((want.double() - got.double()).norm())


def _together(sizes: Iterable[float]) -> float:
    return math.hypot(*(size for size in sizes if math.isfinite(size)))


def _worst(distances: Iterable[float]) -> float:
    """The largest; NaN, which compares as nothing, is the worst there is."""
    return max((math.inf if math.isnan(distance) else distance for distance in distances), default=0.0)


def _without_gradient(want: Trace) -> frozenset[str]:
    whole = ROUNDINGS * math.hypot(*want.gradients.values())
    return frozenset(
        name
        for name, norm in want.gradients.items()
        if norm <= whole * torch.finfo(want.weights[name].dtype).eps
    )
