"""Gradients summed over ranks by the reducer of torch's DistributedDataParallel, overlapped with backward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from parallel.collectives import all_reduce
from parallel.engine import Engine
from parallel.net import Net
from parallel.refusals import NO_GRADIENT

DDP_OPTIONS: dict[str, Any] = {
    "init_sync": False,
    "gradient_as_bucket_view": True,  # else the buckets are a second copy of all gradients
}


@dataclass
class _State:
    """``expected`` have a gradient after every backward; listed once, since walking a net takes its time."""

    ddp: DistributedDataParallel
    expected: dict[str, nn.Parameter]


class DDP(Engine):
    """Replicas of the model on the ranks of the "replicate" axis.

    The reducer is armed before each reducing backward, not by a wrapper's forward: so any method of the net,
    several forwards, and nets that another optimizer's backward runs through need no care. Until it is armed it
    ignores gradients.
    """

    axes: ClassVar[tuple[str, ...]] = ("replicate",)

    def place(self, net: Net) -> None:
        trainable = {
            name: parameter for name, parameter in net.module.named_parameters() if parameter.requires_grad
        }
        if not trainable:
            return
        ddp = self.replicate(net.module, bool(net.plan.optional))
        if not net.plan.optional:
            _fix_buckets(ddp, list(trainable.values()))
        net.state = _State(ddp, {} if net.plan.optional else trainable)

    def replicate(self, module: nn.Module, find_unused: bool) -> DistributedDataParallel:
        """The module in DDP's hands; every rank's replica is the same already."""
        return DistributedDataParallel(
            module, process_group=self.world.data, find_unused_parameters=find_unused, **DDP_OPTIONS
        )

    def grad_factor(self) -> float:
        return float(self.world.data_size)

    def before_backward(self, nets: Sequence[Net], loss: Tensor, last: bool) -> None:
        if last:
            for net in nets:
                if net.state is not None:
                    _arm(net.state.ddp, loss)

    def after_backward(self, nets: Sequence[Net], last: bool) -> None:
        if not last:
            return
        for net in nets:
            if net.state is not None:
                for name, parameter in net.state.expected.items():
                    if parameter.grad is None and parameter.requires_grad:
                        raise NO_GRADIENT.error(f"parameter {name!r} of {net.name}")

    def reduce_late(self, parameters: Sequence[Tensor]) -> None:
        for parameter in parameters:
            if parameter.grad is not None:
                all_reduce(parameter.grad.div_(self.world.data_size), self.world.data)


def _arm(ddp: DistributedDataParallel, loss: Tensor) -> None:
    ddp.reducer.prepare_for_backward([loss] if ddp.find_unused_parameters else [])


def _fix_buckets(ddp: DistributedDataParallel, trainable: Sequence[nn.Parameter]) -> None:
    """Lets the reducer settle its buckets now, by a backward in the parameters' order, instead of after the first step.

    Otherwise the first step of a resumed run sums in another order than the same step of an unbroken one.
    """
    _arm(ddp, trainable[0])
    torch.stack([parameter.sum() * 0.0 for parameter in trainable]).sum().backward()
    ddp.reducer._rebuild_buckets()
    for parameter in trainable:
        parameter.grad = None
