"""One way of spreading models over one part of the ranks. A strategy is one engine, or two on a two-dimensional mesh."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from parallel.mesh import World
from parallel.net import Net

if TYPE_CHECKING:
    from parallel.launcher import Options


class Engine:
    """What differs from one process. The base class is one process: override what your way does otherwise.

    Attributes:
        axes: the mesh axes it spreads over: "replicate" and "shard" cut the global batch, "tensor" does not.
        adds: a second backward on the last part adds right to gradients that are sums already; else ``reduce_late``.
        shards: parameters are cut, so that a model is best built without memory.
        splits_forward: one forward is several, each of some of the rows.
    """

    axes: ClassVar[tuple[str, ...]] = ()
    adds: ClassVar[bool] = False
    shards: ClassVar[bool] = False
    splits_forward: ClassVar[bool] = False

    def __init__(self, world: World) -> None:
        self.world = world

    def configure(self, options: Options) -> None:
        """Called once, before anything is placed: what ``launch`` was asked for.

        Raises:
            ParallelError: the engine cannot do so here, or its own configuration contradicts the contract.
        """

    def place(self, net: Net) -> None:
        """Spreads the module's parameters, in place; every rank holds rank 0's weights when it is called."""

    def bind(self, nets: Sequence[Net]) -> None:
        """Called right before an optimizer of these nets is made: for an engine that holds them together from then on."""

    def before_backward(self, nets: Sequence[Net], loss: Tensor, last: bool) -> None:
        """Called before each backward through ``nets``; gradients are to be summed over ranks when ``last``."""

    def backward(self, nets: Sequence[Net], loss: Tensor, seed: Tensor) -> None:
        """Adds ``seed`` times the loss's gradients to the parameters'; ``seed`` (0-d) carries all factors and scales."""
        loss.backward(gradient=seed)

    def after_backward(self, nets: Sequence[Net], last: bool) -> None:
        """Called after it."""

    def reduce_late(self, parameters: Sequence[Tensor]) -> None:
        """Sums over ranks what a second backward of the last part added, where the engine does not do so by itself."""

    def collect(self, nets: Sequence[Net]) -> None:
        """Called before a step, once the last gradient is there: for an engine that sums only then."""

    def settle(self, net: Net) -> None:
        """Puts parameters back to the pieces kept between steps: called before they are looked at or changed."""

    def grad_factor(self) -> float:
        """What the engine's reduction divides by: a backward starts from it, so that gradients are sums."""
        return 1.0

    def make_optimizer(
        self, cls: type[torch.optim.Optimizer], groups: list[dict[str, Any]], options: dict[str, Any]
    ) -> torch.optim.Optimizer:
        """The torch optimizer over this rank's parameters."""
        return cls(groups, **options)

    def close(self) -> None:
        """Called when the run ends."""
