"""What a strategy remembers about a module that it wrapped."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import nn

from parallel.ema import EMA
from parallel.plan import Plan


@dataclass(eq=False)
class Net:
    """A wrapped module.

    Attributes:
        state: what the engine keeps for it (DDP's reducer, say).
        pending: a backward has added gradients since the last step.
        reduced: the gradients are already sums over the ranks.
    """

    module: nn.Module
    plan: Plan
    state: Any = None
    emas: list[EMA] = field(default_factory=list)
    pending: bool = False
    reduced: bool = False
