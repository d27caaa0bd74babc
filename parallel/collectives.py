"""Collectives over a process group that may be absent: with none, one process is the whole group."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

Group = dist.ProcessGroup | None


def all_reduce(value: Tensor, group: Group) -> Tensor:
    """Sums ``value`` over the group, in place."""
    if group is not None:
        dist.all_reduce(value, group=group)
    return value


class _Sum(torch.autograd.Function):
    """A sum over ranks whose gradient is the sum of the ranks' gradients; differentiable as often as one likes."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return all_reduce(value.clone(memory_format=torch.contiguous_format), group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _Sum.apply(grads[0], ctx.group), None


def differentiable_sum(value: Tensor, group: Group) -> Tensor:
    """The sum of ``value`` over the group, through which gradients flow to every rank's summand."""
    return value if group is None else _Sum.apply(value, group)


def gather_rows(value: Tensor, group: Group) -> Tensor:
    """Concatenates the ranks' rows, [rows_of_rank, ...], in rank order; ranks may hold different numbers of rows."""
    if group is None:
        return value
    size = dist.get_world_size(group)
    counts = torch.zeros(size, dtype=torch.int64, device=value.device)
    counts[dist.get_rank(group)] = value.shape[0]
    rows = all_reduce(counts, group).tolist()
    padded = value.new_zeros((max(rows), *value.shape[1:]))
    padded[: value.shape[0]] = value
    gathered = [torch.empty_like(padded) for _ in range(size)]
    dist.all_gather(gathered, padded, group=group)
    return torch.cat([part[:count] for part, count in zip(gathered, rows, strict=True)])


def broadcast_object(value: Any, group: Group) -> Any:
    """Rank 0's object, on every rank of the run."""
    if group is None:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0, group=group)
    return box[0]
