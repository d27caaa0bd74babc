"""Lightning Fabric: it sets modules and optimizers up, runs backward and steps; the contract is DDP's and FSDP's here.

Fabric joins the process group that is there; its launcher starts nothing. Its precision is "32-true", which leaves modules
as they are given: its loss scaler is one for all optimizers, its "64-true" changes torch's default dtype within a forward,
and ``ModelParallelStrategy`` has none for fp64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins.environments import ClusterEnvironment
from lightning_fabric.strategies import DDPStrategy, ModelParallelStrategy, Strategy
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from parallel.adapters.environment import as_launched
from parallel.ddp import DDP, DDP_OPTIONS
from parallel.fsdp import FSDP
from parallel.launcher import Options
from parallel.mesh import World
from parallel.net import Net


class FabricDDP(DDP):
    """Fabric's ``DDPStrategy``."""

    def configure(self, options: Options) -> None:
        # DDP's options are the strategy's, not the module's: one Fabric for each.
        self._fabrics = {
            find_unused: _launched(DDPStrategy(find_unused_parameters=find_unused, **DDP_OPTIONS), self.world)
            for find_unused in (False, True)
        }

    def replicate(self, module: nn.Module, find_unused: bool) -> DistributedDataParallel:
        ddp = self._fabrics[find_unused].setup_module(module)._forward_module
        assert isinstance(ddp, DistributedDataParallel)
        return ddp

    def backward(self, nets: Sequence[Net], loss: Tensor, seed: Tensor) -> None:
        self._fabrics[False].backward(loss, gradient=seed)

    def make_optimizer(
        self, cls: type[torch.optim.Optimizer], groups: list[dict[str, Any]], options: dict[str, Any]
    ) -> torch.optim.Optimizer:
        return self._fabrics[False].setup_optimizers(cls(groups, **options))

    def close(self) -> None:
        self._fabrics.clear()


class FabricFSDP(FSDP):
    """Fabric's ``ModelParallelStrategy`` with ``fully_shard``; its "fsdp" is FSDP1, and for GPUs only."""

    def configure(self, options: Options) -> None:
        self._placing: Net | None = None
        strategy = ModelParallelStrategy(
            self._parallelize, data_parallel_size=self.world.size, tensor_parallel_size=1
        )
        self._fabric = _launched(strategy, self.world)

    def place(self, net: Net) -> None:
        self._placing = net
        self._fabric.setup_module(net.module, move_to_device=False)
        self._placing = None

    def _parallelize(self, module: nn.Module, mesh: DeviceMesh) -> nn.Module:
        assert self._placing is not None
        self.shard(self._placing, mesh["data_parallel"])
        if any(parameter.is_meta for parameter in module.parameters()):
            module.to_empty(device=self.world.device)  # else Fabric would initialise it, for nothing
        return module

    def backward(self, nets: Sequence[Net], loss: Tensor, seed: Tensor) -> None:
        self._fabric.backward(loss, gradient=seed)

    def make_optimizer(
        self, cls: type[torch.optim.Optimizer], groups: list[dict[str, Any]], options: dict[str, Any]
    ) -> torch.optim.Optimizer:
        return self._fabric.setup_optimizers(cls(groups, **options))


class _Ranks(ClusterEnvironment):
    """The ranks as they are, each with the one device that is its own."""

    def __init__(self, world: World) -> None:
        self._world = world

    @property
    def creates_processes_externally(self) -> bool:
        return True

    @property
    def main_address(self) -> str:
        raise AssertionError("the process group is there already")

    @property
    def main_port(self) -> int:
        raise AssertionError("the process group is there already")

    @staticmethod
    def detect() -> bool:
        return False

    def world_size(self) -> int:
        return self._world.size

    def set_world_size(self, size: int) -> None:
        """Fabric counts the devices that it was given, which is one."""

    def global_rank(self) -> int:
        return self._world.rank

    def set_global_rank(self, rank: int) -> None:
        """See :meth:`set_world_size`."""

    def local_rank(self) -> int:
        return 0  # of the devices given to Fabric

    def node_rank(self) -> int:
        return 0


def _launched(strategy: Strategy, world: World) -> Fabric:
    """A Fabric that has joined the ranks."""
    with as_launched(world, hidden=("LT_",)):
        fabric = Fabric(
            accelerator="cuda" if world.device.type == "cuda" else "cpu",
            devices=[world.device.index] if world.device.type == "cuda" else 1,
            strategy=strategy,
            plugins=[_Ranks(world)],
        )
        fabric.launch()
    assert (fabric.world_size, fabric.global_rank) == (world.size, world.rank)
    return fabric
