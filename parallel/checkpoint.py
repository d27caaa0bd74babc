"""Whole tensors under plain names, whatever the layout of the ranks that hold them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from parallel.collectives import Group, broadcast_object
from parallel.tensors import full, local


def full_state(module: nn.Module, is_main: bool) -> dict[str, Tensor]:
    """The module's state dict, whole and on CPU, on rank 0; the others take part, and get an empty one."""
    state: dict[str, Tensor] = {}
    for name, tensor in module.state_dict().items():
        whole = full(tensor.detach())
        if is_main:
            state[name] = whole.to("cpu", copy=True)
    return state


@torch.no_grad()
def load_full_state(module: nn.Module, state: Mapping[str, Tensor], group: Group) -> None:
    """Copies rank 0's whole tensors into the module, each rank its piece.

    Raises:
        ValueError: names or shapes differ; all of them are named.
    """
    own = module.state_dict(keep_vars=True)
    problem = broadcast_object(_mismatch(own, state), group)
    if problem:
        raise ValueError(problem)
    for name, tensor in own.items():
        held = local(tensor.detach())
        shape = tensor.shape
        whole = state[name].to(held.device, held.dtype) if name in state else held.new_empty(shape)
        if group is not None:
            whole = whole.contiguous()
            dist.broadcast(whole, src=0, group=group)
        if isinstance(tensor, DTensor):
            whole = distribute_tensor(whole, tensor.device_mesh, tensor.placements, src_data_rank=None).to_local()
        held.copy_(whole)


def _mismatch(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> str:
    missing = sorted(own.keys() - state.keys())
    extra = sorted(state.keys() - own.keys())
    shapes = [
        f"{name}: {tuple(state[name].shape)} given, {tuple(own[name].shape)} needed"
        for name in own
        if name in state and state[name].shape != own[name].shape
    ]
    found = (("missing", missing), ("not in the model", extra), ("other shapes", shapes))
    return "; ".join(f"{what}: {', '.join(names)}" for what, names in found if names)
