"""The norm of a gradient whose pieces lie on several ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from parallel.flat import Flat
from parallel.splits import Split
from parallel.tensors import sharded_axes


class GradNorm:
    """The 2-norm over all of an optimizer's parameters, each number counted once.

    Parameters fall into kinds by the process groups over which they are cut (none for plain ones); the
    squares of a kind are summed over its groups, one small all-reduce each.
    """

    def __init__(self, parameters: Sequence[tuple[Tensor, Split | None, Flat | None]]) -> None:
        self._kind_of: list[int] = []
        self._kinds: list[tuple[dist.ProcessGroup, ...]] = []
        for parameter, split, flat in parameters:
            groups: tuple[dist.ProcessGroup, ...] = () if split is None else (split.group,)
            if flat is not None and flat.group is not None:
                groups += (flat.group,)
            if isinstance(parameter, DTensor):
                groups += tuple(parameter.device_mesh.get_group(axis) for axis in sharded_axes(parameter))
            if groups not in self._kinds:
                self._kinds.append(groups)
            self._kind_of.append(self._kinds.index(groups))
        self._device = parameters[0][0].device
        self._plain = self._kinds == [()]

    def __call__(self, which: Sequence[int], grads: list[Tensor]) -> Tensor:
        """The norm (0-d) of ``grads``, the local gradients of the parameters numbered ``which``."""
        if self._plain:
            if not grads:
                return torch.zeros((), device=self._device)
            return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
        dtype = torch.float64 if any(grad.dtype == torch.float64 for grad in grads) else torch.float32
        squares = torch.zeros(len(self._kinds), dtype=dtype, device=self._device)
        norms = torch._foreach_norm(grads) if grads else ()
        for index, norm in zip(which, norms, strict=True):
            squares[self._kind_of[index]] += norm.square().to(dtype)
        for kind, groups in enumerate(self._kinds):
            for group in groups:
                dist.all_reduce(squares[kind], group=group)
        return squares.sum().sqrt()
