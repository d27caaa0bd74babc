"""What a rank holds of models, averages and optimizers, as pieces of whole tensors under plain names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from parallel.checkpoint.regions import Region, piece_shape, region_of, whole_region
from parallel.errors import ParallelError
from parallel.tensors import local

if TYPE_CHECKING:
    from parallel.ema import EMA
    from parallel.net import Net
    from parallel.optimizer import Optimizer, Slot


@dataclass(frozen=True)
class Piece:
    """This rank's part of a whole tensor.

    Attributes:
        tensor: the part itself, whose memory the model or the optimizer goes on using.
        shape: of the whole.
    """

    tensor: Tensor
    shape: tuple[int, ...]
    region: Region


def net_pieces(net: Net) -> dict[str, Piece]:
    """Parameters and buffers by the names of the module's state dict; tied ones under each of their names."""
    state = net.module.state_dict(keep_vars=True)  # its hooks bring FSDP2's parameters back to shards
    return {name: _piece(net, name, tensor.detach()) for name, tensor in state.items()}


def ema_pieces(net: Net, ema: EMA) -> dict[str, Piece]:
    """The averages in place of the parameters."""
    pieces = net_pieces(net)
    by_tensor = {id(value): name for name, value in net.module.named_parameters()}
    for name, value in net.module.state_dict(keep_vars=True).items():
        first = by_tensor.get(id(value))  # the name under which a tied tensor is averaged
        if first is not None:
            pieces[name] = Piece(ema.average[first], pieces[name].shape, pieces[name].region)
    return pieces


def ties(net: Net) -> dict[str, str]:
    """Names of the state dict that are another name's tensor, and whose."""
    first: dict[int, str] = {}
    found: dict[str, str] = {}
    for name, tensor in net.module.state_dict(keep_vars=True).items():
        original = first.setdefault(id(tensor), name)
        if original != name:
            found[name] = original
    return found


def optimizer_parameters(optimizer: Optimizer, names: Mapping[int, str]) -> Iterator[tuple[str, Any]]:
    """The optimizer's slots with the names that they have in a checkpoint: "net/blocks.0.weight".

    Args:
        names: of the models, by ``id`` of their :class:`Net`.
    """
    for slot in optimizer.slots:
        model = names.get(id(slot.net))
        if model is None:
            raise ParallelError(
                f"an optimizer of {slot.net.name} is saved or loaded without it: name it in models"
            )
        yield f"{model}/{slot.name}", slot


def optimizer_pieces(optimizer: Optimizer, names: Mapping[int, str]) -> dict[str, Piece]:
    """The states this rank holds: "net/blocks.0.weight/exp_avg", laid out as the parameter is, and step counters."""
    state = optimizer.inner.state
    pieces: dict[str, Piece] = {}
    for name, slot in optimizer_parameters(optimizer, names):
        for key, value in state.get(slot.shard, {}).items():
            if value is None:  # SGD's momentum before the first step
                continue
            if not isinstance(value, Tensor):
                raise ParallelError(f"{type(optimizer.inner).__name__} keeps {key!r}, which is no tensor")
            if value.dim() and value.shape == slot.shard.shape:
                shape, region = slot_layout(slot)
            else:
                shape = tuple(value.shape)
                region = whole_region(shape)
            pieces[f"{name}/{key}"] = Piece(value.detach(), shape, region)
    return pieces


def slot_layout(slot: Slot) -> tuple[tuple[int, ...], Region]:
    """The shape of the whole tensor that a slot's shard is a piece of, and which of its numbers it holds."""
    if slot.flat is not None:
        return slot.flat.shape, slot.flat.region
    return tuple(whole_shape(slot.parameter, slot.split)), region_of(slot.parameter, slot.split)


def whole_shape(tensor: Tensor, split: Any) -> torch.Size:
    """The shape of the whole that a parameter or buffer is cut from."""
    return tensor.shape if split is None else split.whole_shape(tensor.shape)


def _piece(net: Net, name: str, tensor: Tensor) -> Piece:
    if name in net.held:
        flat = net.held[name]
        return Piece(flat.tensor, flat.shape, flat.region)
    split = net.splits.get(name)
    region = region_of(tensor, split)
    held = local(tensor)
    assert tuple(held.shape) == piece_shape(region), (name, held.shape, region)
    return Piece(held, tuple(whole_shape(tensor, split)), region)
