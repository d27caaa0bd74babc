"""Whole tensors under plain names, whatever the layout of the ranks that hold them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from parallel.collectives import Group, broadcast_object
from parallel.net import Net
from parallel.tensors import full, local


def full_state(net: Net, is_main: bool) -> dict[str, Tensor]:
    """The net's state dict, whole and on CPU, on rank 0; the others take part, and get an empty one."""
    state: dict[str, Tensor] = {}
    for name, tensor in net.module.state_dict(keep_vars=True).items():
        whole = whole_tensor(net, name, tensor.detach())
        if is_main:
            state[name] = whole.to("cpu", copy=True)
    return state


def whole_tensor(net: Net, name: str, piece: Tensor) -> Tensor:
    """Puts the net's parameter or buffer ``name`` together; a collective where it is cut."""
    if name in net.held:
        return net.held[name].gather()
    whole = full(piece)
    return net.splits[name].gather(whole) if name in net.splits else whole


@torch.no_grad()
def load_full_state(net: Net, state: Mapping[str, Tensor], group: Group) -> None:
    """Copies rank 0's whole tensors into the net, each rank its piece.

    Raises:
        ValueError: names or shapes differ; all of them are named.
    """
    own = net.module.state_dict(keep_vars=True)
    shapes = {name: _shape(net, name, tensor) for name, tensor in own.items()}
    problem = broadcast_object(_mismatch(shapes, state), group)
    if problem:
        raise ValueError(problem)
    for name, tensor in own.items():
        held = net.held[name].tensor if name in net.held else local(tensor.detach())
        whole = state[name].to(held.device, held.dtype) if name in state else held.new_empty(shapes[name])
        if group is not None:
            whole = whole.contiguous()
            dist.broadcast(whole, src=0, group=group)
        if name in net.held:
            whole = net.held[name].take(whole)
        if name in net.splits:
            whole = net.splits[name].take_own(whole)
        if isinstance(tensor, DTensor):
            whole = distribute_tensor(
                whole, tensor.device_mesh, tensor.placements, src_data_rank=None
            ).to_local()
        held.copy_(whole)


def _shape(net: Net, name: str, tensor: Tensor) -> torch.Size:
    if name in net.held:
        return torch.Size(net.held[name].shape)
    return net.splits[name].whole_shape(tensor.shape) if name in net.splits else tensor.shape


def _mismatch(shapes: Mapping[str, torch.Size], state: Mapping[str, Tensor]) -> str:
    missing = sorted(shapes.keys() - state.keys())
    extra = sorted(state.keys() - shapes.keys())
    differ = [
        f"{name}: {tuple(state[name].shape)} given, {tuple(shape)} needed"
        for name, shape in shapes.items()
        if name in state and state[name].shape != shape
    ]
    found = (("missing", missing), ("not in the model", extra), ("other shapes", differ))
    return "; ".join(f"{what}: {', '.join(names)}" for what, names in found if names)
