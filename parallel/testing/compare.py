"""What a run leaves to compare, and how far from one process's run it may be."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class Trace:
    """Losses and gradient norms of each step; at the end the weights (and averages), and what the nets answer."""

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    lrs: list[float] = field(default_factory=list)
    weights: dict[str, Tensor] = field(default_factory=dict)
    answers: dict[str, Tensor] = field(default_factory=dict)


# Guarantee 1: losses and gradient norms, then final weights (fp32 amplifies rounding where a true gradient is
# zero, so its weights are reported and not held to a limit). Lower precisions are compared with one process
# at that precision, and may be ten of their roundings apart.
TOLERANCES: dict[str, tuple[float, float | None]] = {
    "fp64": (1e-9, 1e-8),
    "fp32": (1e-5, None),
    "bf16-mixed": (10 * 2.0**-8, None),
    "fp16-mixed": (10 * 2.0**-11, None),
}


def distances(want: Trace, got: Trace) -> dict[str, float]:
    """The largest relative difference of losses, of gradient norms, and per tensor of weights and answers."""
    if len(want.losses) != len(got.losses) or want.weights.keys() != got.weights.keys():
        raise ValueError(f"the runs differ in steps or names: {len(want.losses)} and {len(got.losses)} steps")
    return {
        "loss": max(map(_relative, want.losses, got.losses), default=0.0),
        "grad_norm": max(map(_relative, want.norms, got.norms), default=0.0),
        "lr": max(map(_relative, want.lrs, got.lrs), default=0.0),
        "weights": max((_norm(want.weights[name], got.weights[name]) for name in want.weights), default=0.0),
        "answers": max((_norm(want.answers[name], got.answers[name]) for name in want.answers), default=0.0),
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


def _norm(want: Tensor, got: Tensor) -> float:
    if want.shape != got.shape:
        return float("inf")
    want, got = want.to(torch.float64), got.to(torch.float64)
    return float((want - got).norm() / want.norm().clamp_min(1e-12))
