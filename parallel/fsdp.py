"""Parameters, gradients and optimizer states sharded by torch's FSDP2 (``fully_shard``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from parallel.batch import Nest
from parallel.engine import Engine
from parallel.gathered import Gathered
from parallel.net import Net
from parallel.plan import match
from parallel.redirect import no_views, redirect
from parallel.refusals import PIECE_IN_LOSS, TIES_ACROSS_UNITS


@dataclass
class _State:
    sharded: list[FSDPModule]
    gathered: Gathered
    reduces: bool = True  # whether a backward sums over the ranks


class FSDP(Engine):
    """Each wrap unit is gathered for its forward, freed, and gathered again for its backward.

    Attributes:
        reshard: free a unit's parameters after its forward.
        offload: keep shards and optimizer states in host memory.
    """

    axes: ClassVar[tuple[str, ...]] = ("shard",)
    adds: ClassVar[bool] = True
    shards: ClassVar[bool] = True
    reshard: ClassVar[bool] = True
    offload: ClassVar[bool] = False

    def place(self, net: Net) -> None:
        assert self.world.mesh is not None
        self.shard(net, self.world.mesh[self.axes] if len(self.axes) > 1 else self.world.mesh[self.axes[0]])

    def shard(self, net: Net, mesh: DeviceMesh) -> None:
        """Cuts the module over the ranks of the mesh, unit by unit."""
        units = [module for _, module in match(net.module, *net.plan.units)]
        _refuse_ties(net.module, units)
        options: dict[str, Any] = {
            "mesh": mesh,
            "offload_policy": CPUOffloadPolicy(pin_memory=self.world.device.type == "cuda")
            if self.offload
            else OffloadPolicy(),
        }
        for unit in (*units, net.module):
            unit.register_forward_hook(_hook)
        for unit in units:
            fully_shard(unit, reshard_after_forward=self.reshard, **options)
        self.shard_root(net.module, options)
        assert isinstance(net.module, FSDPModule)
        sharded: list[FSDPModule] = [part for part in net.module.modules() if isinstance(part, FSDPModule)]
        for module in sharded:
            module.set_gradient_divide_factor(1.0)  # gradients are sums,
            module.set_force_sum_reduction_for_comms(True)  # in fp32 by no operation that gloo lacks
        redirect(net.module)
        net.state = _State(sharded, Gathered(net.module, [net.module] if self.reshard else sharded))

    def shard_root(self, module: nn.Module, options: dict[str, Any]) -> None:
        """Cuts what no unit holds: needed last in forward and first in backward, it stays gathered in between."""
        fully_shard(module, reshard_after_forward=False, **options)

    def before_backward(self, nets: Sequence[Net], loss: Tensor, last: bool) -> None:
        if isinstance(loss, DTensor):
            for net in nets:
                self.settle(net)
            raise PIECE_IN_LOSS.error(_piece_in(loss, nets))
        for net in nets:
            if net.state.reduces is not last:
                net.module.set_requires_gradient_sync(last)  # type: ignore[operator]
                net.state.reduces = last
            net.state.gathered.hold()

    def after_backward(self, nets: Sequence[Net], last: bool) -> None:
        for net in nets:
            net.state.gathered.release(reduce=last)

    def settle(self, net: Net) -> None:
        # A forward without backward leaves the root gathered, and what is gathered sees no change of the pieces.
        for module in net.state.sharded:
            module.reshard()


class ZeRO2(FSDP):
    """Parameters are gathered once a step and kept until its backward is done; gradients and states stay sharded."""

    reshard: ClassVar[bool] = False


class ZeRO3(FSDP):
    """What FSDP does, by ZeRO's name (Rajbhandari et al. 2020, section 5)."""


class ZeRO3Offload(FSDP):
    """ZeRO-3 with shards and optimizer states in host memory."""

    offload: ClassVar[bool] = True


class HSDP(FSDP):
    """Sharded within the ranks of the "shard" axis, replicated over those of "replicate"."""

    axes: ClassVar[tuple[str, ...]] = ("replicate", "shard")


def _hook(module: nn.Module, args: Any, output: Nest) -> Nest:
    return no_views(output)


def _refuse_ties(module: nn.Module, units: Sequence[nn.Module]) -> None:
    owner: dict[int, tuple[str, nn.Module]] = {}
    for path, holder in module.named_modules():
        unit = next((unit for unit in units if any(part is holder for part in unit.modules())), module)
        for name, parameter in holder.named_parameters(recurse=False, remove_duplicate=False):
            full = f"{path}.{name}" if path else name
            first, other = owner.setdefault(id(parameter), (full, unit))
            if other is not unit:
                raise TIES_ACROSS_UNITS.error(f"weights {first!r} and {full!r}")


def _piece_in(loss: Tensor, nets: Sequence[Net]) -> str:
    """Which sharded parameter a loss was computed from."""
    names = {
        id(parameter): f"parameter {name!r} of {net.name}"
        for net in nets
        for name, parameter in net.module.named_parameters()
    }
    seen: set[Any] = set()
    waiting: list[Any] = [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if isinstance(variable, DTensor) and id(variable) in names:
            return names[id(variable)]
        waiting += [earlier for earlier, _ in node.next_functions]
    return "the loss"
