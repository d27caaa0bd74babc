"""What a strategy remembers about a module that it wrapped."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.utils.weak import TensorWeakRef

from parallel.dropout import CurrentPart
from parallel.ema import EMA
from parallel.flat import Flat
from parallel.plan import Plan
from parallel.spectral import SpectralNorms
from parallel.splits import Split
from parallel.tensors import local


@dataclass(eq=False)
class Net:
    """A wrapped module.

    Attributes:
        current: where its modules find the part being computed.
        spectral: its spectral norms.
        state: what the data engine keeps for it (DDP's reducer, say).
        splits: the tensor-parallel cut of each parameter and buffer that is cut, by name.
        held: the piece that this rank keeps of each parameter that is dealt out by numbers, by name.
        stepped: the piece that this rank steps of it, where an engine keeps such pieces apart from the weights.
        pending: a backward has added gradients since the last step.
        reduced: the gradients are already sums over the ranks.
        given: its parameters as they were before anything replaced them, for as long as others hold them.
        name: the module's class, for messages.
    """

    module: nn.Module
    plan: Plan
    current: CurrentPart
    spectral: SpectralNorms
    state: Any = None
    splits: dict[str, Split] = field(default_factory=dict)
    held: dict[str, Flat] = field(default_factory=dict)
    stepped: dict[str, Flat] = field(default_factory=dict)
    emas: list[EMA] = field(default_factory=list)
    pending: bool = False
    reduced: bool = False
    given: dict[str, TensorWeakRef] = field(init=False)
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.given = {name: TensorWeakRef(weight) for name, weight in self.module.named_parameters()}
        self.name = type(self.module).__name__  # before FSDP2 puts a class of its own in between

    def pieces(self) -> dict[str, Tensor]:
        """This rank's piece of every parameter by its plain name, sharing its memory."""
        return {
            name: self.held[name].tensor if name in self.held else local(parameter).detach()
            for name, parameter in self.module.named_parameters()
        }
