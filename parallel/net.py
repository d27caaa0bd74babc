"""What a strategy remembers about a module that it wrapped."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import nn

from parallel.dropout import CurrentPart
from parallel.ema import EMA
from parallel.plan import Plan
from parallel.spectral import SpectralNorms
from parallel.splits import Split


@dataclass(eq=False)
class Net:
    """A wrapped module.

    Attributes:
        current: where its modules find the part being computed.
        spectral: its spectral norms.
        state: what the data engine keeps for it (DDP's reducer, say).
        splits: the tensor-parallel cut of each parameter and buffer that is cut, by name.
        pending: a backward has added gradients since the last step.
        reduced: the gradients are already sums over the ranks.
        name: the module's class, for messages.
    """

    module: nn.Module
    plan: Plan
    current: CurrentPart
    spectral: SpectralNorms
    state: Any = None
    splits: dict[str, Split] = field(default_factory=dict)
    emas: list[EMA] = field(default_factory=list)
    pending: bool = False
    reduced: bool = False
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.name = type(self.module).__name__  # before FSDP2 puts a class of its own in between
