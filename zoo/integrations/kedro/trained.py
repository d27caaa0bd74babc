"""A trained model as nodes hand it on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.checkpoint import Checkpoint, read_checkpoint
from zoo.config import TrainConfig

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class TrainedModel:
    """A checkpoint on this machine. The weights are read when :attr:`module` is first asked for.

    What crosses to another process is the path.

    Attributes:
        folder: the checkpoint, which ``zoo predict`` and ``zoo.load`` take too.

    Raises:
        InputError: there is no complete checkpoint of a known model.
    """

    folder: Path

    def __post_init__(self) -> None:
        self.checkpoint  # noqa: B018 - checked now, not in the node after the next

    def __reduce__(self) -> tuple[type[TrainedModel], tuple[Path]]:
        return type(self), (self.folder,)

    def __call__(self, *args: Any) -> Any:
        """The network's answer."""
        return self.module(*args)

    @cached_property
    def module(self) -> nn.Module:
        """The network, on the CPU and in evaluation mode."""
        return self.checkpoint.module()

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """Model, options and description, without the weights."""
        return read_checkpoint(self.folder)

    @property
    def name(self) -> str:
        """The model, as ``zoo list`` names it."""
        return self.checkpoint.entry.name

    @property
    def config(self) -> TrainConfig:
        """The options of its training."""
        return self.checkpoint.config

    @property
    def description(self) -> Mapping[str, Any]:
        """What its trainer said of it: column names, for example."""
        return self.checkpoint.description
