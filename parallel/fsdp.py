"""Parameters, gradients and optimizer states sharded by torch's FSDP2 (``fully_shard``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)

from parallel.batch import Nest, map_nest
from parallel.engine import Engine
from parallel.net import Net
from parallel.plan import match
from parallel.refusals import TIES_ACROSS_UNITS


@dataclass
class _State:
    sharded: list[FSDPModule]
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
        net.state = state = _State([part for part in net.module.modules() if isinstance(part, FSDPModule)])
        for module in state.sharded:
            module.set_gradient_divide_factor(1.0)  # gradients are sums,
            module.set_force_sum_reduction_for_comms(True)  # in fp32 by no operation that gloo lacks
        _redirect(net.module)

    def shard_root(self, module: nn.Module, options: dict[str, Any]) -> None:
        """Cuts what no unit holds: needed last in forward and first in backward, it stays gathered in between."""
        fully_shard(module, reshard_after_forward=False, **options)

    def before_backward(self, nets: Sequence[Net], loss: Tensor, last: bool) -> None:
        for net in nets:
            if net.state.reduces is not last:
                net.module.set_requires_gradient_sync(last)  # type: ignore[operator]
                net.state.reduces = last

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


def _no_views(nest: Nest) -> Nest:
    """FSDP2 gathers for backward from a hook on what a forward returns; an in-place operation on a view would lose it."""
    return map_nest(lambda t: t.clone() if t.requires_grad and t._base is not None else t, nest)


def _hook(module: nn.Module, args: Any, output: Nest) -> Nest:
    return _no_views(output)


def _returning_no_views(method: Callable[..., Nest]) -> Callable[..., Nest]:
    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Nest:
        return _no_views(method(*args, **kwargs))

    return call


def _redirect(module: nn.Module) -> None:
    """Makes public methods gather the root's parameters, as forward does; but not within forward, which would free them."""
    inside = False

    def entering(method: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal inside
            if inside:
                return plain(*args, **kwargs)
            inside = True
            try:
                return method(*args, **kwargs)
            finally:
                inside = False

        return call

    names = own_methods(module)
    if names:
        module.forward = entering(module.forward, module.forward)
    for name in names:
        plain = getattr(module, name)
        setattr(module, name, _returning_no_views(plain))
        register_fsdp_forward_method(module, name)
        setattr(module, name, entering(getattr(module, name), plain))


def own_methods(module: nn.Module) -> list[str]:
    """Public methods of the model's own classes: called directly, they must find whole parameters, as forward does."""
    names: list[str] = []
    for cls in type(module).__mro__:
        if cls is nn.Module:
            break
        if not issubclass(cls, FSDPModule) or cls.__module__.split(".")[0] != "torch":
            names += [
                name
                for name, value in vars(cls).items()
                if callable(value)
                and not name.startswith("_")
                and name != "forward"
                and not hasattr(nn.Module, name)
                and not hasattr(FSDPModule, name)
                and not isinstance(value, staticmethod | classmethod | type)
            ]
    return list(dict.fromkeys(names))


def _refuse_ties(module: nn.Module, units: Sequence[nn.Module]) -> None:
    owner: dict[int, tuple[str, nn.Module]] = {}
    for path, holder in module.named_modules():
        unit = next((unit for unit in units if any(part is holder for part in unit.modules())), module)
        for name, parameter in holder.named_parameters(recurse=False, remove_duplicate=False):
            full = f"{path}.{name}" if path else name
            first, other = owner.setdefault(id(parameter), (full, unit))
            if other is not unit:
                raise TIES_ACROSS_UNITS.error(f"weights {first!r} and {full!r}")
