"""What a checkpoint is made of, and the files that its tensors go to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from parallel.checkpoint.pieces import Piece, ema_pieces, net_pieces, optimizer_pieces
from parallel.errors import ParallelError

if TYPE_CHECKING:
    from parallel.ema import EMA
    from parallel.loader import Loader
    from parallel.net import Net
    from parallel.optimizer import Optimizer

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")


@dataclass(frozen=True)
class Contents:
    """What is saved or loaded, each by a name that is good for a file."""

    models: Mapping[str, Net]
    emas: Mapping[str, EMA]
    optimizers: Mapping[str, Optimizer]
    loaders: Mapping[str, Loader]

    def __post_init__(self) -> None:
        for name in (*self.models, *self.optimizers):
            if not _NAME.fullmatch(name):
                raise ParallelError(f"{name!r} cannot name a file: use letters, digits, - and _")
        for name, ema in self.emas.items():
            if name not in self.models or self.models[name].module is not ema.net:
                raise ParallelError(f"the average {name!r} goes with a model of that name, which it averages")

    @property
    def names(self) -> dict[int, str]:
        """The models' names by ``id`` of their :class:`Net`."""
        return {id(net): name for name, net in self.models.items()}

    def pieces(self) -> dict[str, dict[str, Piece]]:
        """This rank's pieces by the group of files that they go to."""
        groups: dict[str, dict[str, Piece]] = {}
        for name, net in self.models.items():
            groups[weights_file(name)] = net_pieces(net)
        for name, ema in self.emas.items():
            groups[average_file(name)] = ema_pieces(self.models[name], ema)
        for name, optimizer in self.optimizers.items():
            groups[state_group(name)] = optimizer_pieces(optimizer, self.names)
        return groups


def weights_file(model: str) -> str:
    return f"weights/{model}.safetensors"


def average_file(model: str) -> str:
    return f"weights/{model}.ema.safetensors"


def state_group(optimizer: str) -> str:
    """The files of an optimizer are numbered: ``state/NAME-00001.safetensors``."""
    return f"state/{optimizer}-"


def scaler_state(optimizer: Optimizer) -> dict[str, Any] | None:
    scaler = optimizer.scaler
    return None if scaler is None else {"scale": scaler.scale, "good_steps": scaler.good_steps}
