"""How tensors cross the border of a region that ranks compute in slices (Shoeybi et al. 2019, section 3: f and g)."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from parallel.splits import Split


class Copy(torch.autograd.Function):
    """What every rank holds whole enters a cut region: the identity, whose gradient is the sum of the ranks'."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return Reduce.apply(grads[0], ctx.group), None


class Reduce(torch.autograd.Function):
    """Summands leave a cut region: their sum over the ranks, whose gradient every rank gets whole."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        x = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return Copy.apply(grads[0], ctx.group), None


class Gather(torch.autograd.Function):
    """Slices leave a cut region: the whole of them along ``axis``, on every rank; each gets its slice of the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: int, group: dist.ProcessGroup) -> Tensor:
        ctx.split = Split(axis, 1, group)
        return ctx.split.gather(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return ctx.split.take_own(grads[0]), None, None
