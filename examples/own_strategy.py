"""A strategy of one's own: every gradient in one flat tensor, summed by one all-reduce after the last backward.

    python examples/own_strategy.py 3        # every case of the contract, on 3 ranks and in one process

An installed package brings it to `zoo train --parallel flat` with two lines in its pyproject.toml:

    [project.entry-points."parallel_zoo.strategies"]
    flat = "own_strategy:FLAT"
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from parallel import Parallel, launch_each
from parallel.engine import Engine
from parallel.net import Net
from parallel.registry import StrategyEntry, register
from parallel.testing import CASES, Trace, differences, run_case


class Flat(Engine):
    """An engine says what differs from one process: here, what happens once gradients are there."""

    axes: ClassVar[tuple[str, ...]] = ("replicate",)  # its ranks share the global batch

    def after_backward(self, nets: Sequence[Net], last: bool) -> None:
        if last:  # of a global batch's parts
            self.reduce_late([parameter for net in nets for parameter in net.module.parameters()])

    def reduce_late(self, parameters: Sequence[Tensor]) -> None:
        grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
        flat = torch.cat([grad.flatten() for grad in grads])
        dist.all_reduce(flat, group=self.world.data)
        for grad, total in zip(grads, flat.split([grad.numel() for grad in grads]), strict=True):
            grad.copy_(total.view_as(grad))


FLAT = StrategyEntry("flat", "gradients summed in one flat tensor after backward", Flat)


def contract(p: Parallel) -> dict[str, Trace]:
    return {name: run_case(p, name) for name in CASES}


if __name__ == "__main__":
    register(FLAT)
    one, flat = launch_each(contract, ["single", "flat"], nproc=int(sys.argv[1]), precision="fp64")
    for name in CASES:
        print(f"{name:<15}", differences(one[name], flat[name], "fp64") or "the numbers of one process")
