"""What a rank holds and what it sends, counted from the tensors themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.utils._python_dispatch import TorchDispatchMode

from parallel.net import Net
from parallel.optimizer import Optimizer
from parallel.tensors import local


@dataclass(frozen=True)
class Memory:
    """Bytes on one rank.

    Attributes:
        parameters: the pieces this rank keeps between steps.
        gradients: the pieces it had at the last step.
        optimizer: tensors of the optimizer's state.
        gathered: parameters put together at the moment, beyond the pieces.
    """

    parameters: int
    gradients: int
    optimizer: int
    gathered: int


@dataclass
class Traffic:
    """Collectives by kind ("all_reduce", "all_gather", "reduce_scatter", "broadcast"), with their bytes.

    Bytes are those of the whole tensor that the collective is about: of what is reduced, or of what is
    gathered.
    """

    calls: dict[str, int] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)

    def add(self, kind: str, size: int) -> None:
        self.calls[kind] = self.calls.get(kind, 0) + 1
        self.bytes[kind] = self.bytes.get(kind, 0) + size


def memory(nets: list[Net], optimizers: list[Optimizer]) -> Memory:
    """What this rank holds now for these nets and optimizers."""
    pieces = {id(parameter): local(parameter) for net in nets for parameter in net.module.parameters()}
    states = [
        value
        for optimizer in optimizers
        for state in optimizer.local_states()
        for value in state.values()
        if isinstance(value, Tensor)
    ]
    return Memory(
        parameters=sum(_bytes(piece) for piece in pieces.values()),
        gradients=sum(optimizer.grad_bytes for optimizer in optimizers),
        optimizer=sum(
            _bytes(value) for value in states if value.dim()
        ),  # step counters are no states of a weight
        gathered=sum(_gathered(net) for net in nets),
    )


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _gathered(net: Net) -> int:
    total = 0
    for module in net.module.modules():
        if isinstance(module, FSDPModule):
            group = module._get_fsdp_state()._fsdp_param_group
            for parameter in group.fsdp_params if group is not None else ():
                whole = getattr(parameter, "_unsharded_param", None)
                if whole is not None:
                    total += local(whole).untyped_storage().nbytes()
    return total


@contextmanager
def count_traffic() -> Iterator[Traffic]:
    """Counts the collectives that this thread, and the backward passes it calls, start within the context."""
    traffic = Traffic()
    with _Count(traffic):
        yield traffic


# c10d operator -> (kind, position of the argument that holds the whole tensor or tensors)
_KINDS = {
    "allreduce_": ("all_reduce", 0),
    "allreduce_coalesced_": ("all_reduce", 0),
    "broadcast_": ("broadcast", 0),
    "allgather_": ("all_gather", 0),
    "_allgather_base_": ("all_gather", 0),
    "allgather_into_tensor_coalesced_": ("all_gather", 0),
    "_reduce_scatter_base_": ("reduce_scatter", 1),
    "reduce_scatter_": ("reduce_scatter", 1),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter", 1),
}


class _Count(TorchDispatchMode):
    def __init__(self, traffic: Traffic) -> None:
        super().__init__()
        self.traffic = traffic

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            kind, place = _KINDS.get(func.overloadpacket.__name__, (func.overloadpacket.__name__, 0))
            self.traffic.add(kind, sum(_bytes(tensor) for tensor in _tensors(args[place])))
        return func(*args, **(kwargs or {}))


def _tensors(nest: Any) -> Iterator[Tensor]:
    if isinstance(nest, Tensor):
        yield nest
    elif isinstance(nest, list | tuple):
        for member in nest:
            yield from _tensors(member)
