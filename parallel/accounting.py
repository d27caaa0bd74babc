"""What a rank holds and what it sends, counted from the tensors themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
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
        optimizer: tensors of the optimizer's state, and the copies of the weights that it steps where it has any.
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
    pieces: dict[int, Tensor] = {}
    gathered = 0
    for net in nets:
        own = net.pieces()
        for name, parameter in net.module.named_parameters():
            pieces[id(parameter)] = own[name]
            if name in net.held:
                gathered += _bytes(parameter)  # holds nothing but while it is put together
        for piece, whole in _gathered(net.module):
            pieces.pop(id(whole), None)
            pieces[id(piece)] = local(piece)
            gathered += local(whole).untyped_storage().nbytes()
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
        optimizer=sum(_bytes(value) for value in states if value.dim())  # step counters have no axes
        + sum(_bytes(flat.tensor) for net in nets for flat in net.stepped.values()),
        gathered=gathered,
    )


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _gathered(module: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
    """(piece, whole) of the parameters that FSDP2 has put together; the storage of a freed one is empty."""
    for part in module.modules():
        if isinstance(part, FSDPModule):
            group = part._get_fsdp_state()._fsdp_param_group
            for parameter in group.fsdp_params if group is not None else ():
                whole = getattr(parameter, "_unsharded_param", None)
                if whole is not None:
                    yield parameter.sharded_param, whole


@contextmanager
def count_traffic() -> Iterator[Traffic]:
    """Counts the collectives that this thread, and the backward passes it calls, start within the context."""
    traffic = Traffic()
    with _Count(traffic):
        yield traffic


# Operator -> (kind, position of the argument that holds the whole tensor or tensors). The first are what
# torch.distributed and the C++ of DDP and FSDP2 call, the others what DTensor does.
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
    "all_reduce": ("all_reduce", 0),
    "all_gather_into_tensor": ("all_gather", 0),
    "reduce_scatter_tensor": ("reduce_scatter", 0),
}
_SILENT = ("wait_tensor",)  # of an operator that was counted


class _Count(TorchDispatchMode):
    def __init__(self, traffic: Traffic) -> None:
        super().__init__()
        self.traffic = traffic

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if func.namespace in ("c10d", "_c10d_functional") and name not in _SILENT:
            kind, place = _KINDS.get(name, (name, 0))
            pieces = args[1] if name == "all_gather_into_tensor" else 1  # it is given one rank's piece
            self.traffic.add(kind, pieces * sum(_bytes(tensor) for tensor in _tensors(args[place])))
        return func(*args, **(kwargs or {}))


def _tensors(nest: Any) -> Iterator[Tensor]:
    if isinstance(nest, Tensor):
        yield nest
    elif isinstance(nest, list | tuple):
        for member in nest:
            yield from _tensors(member)
