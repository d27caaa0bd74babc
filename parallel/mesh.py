"""Where the ranks are: this process's place among them, and the axes they are laid out in."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from parallel.collectives import Group
from parallel.errors import ParallelError

DATA_AXES = ("replicate", "shard")


@dataclass(frozen=True)
class World:
    """The ranks of a run as axes of a mesh.

    Attributes:
        mesh: named axes, the fastest last; None for one process without a process group.
        data: the group over which a global batch is cut; None for one share.
    """

    rank: int
    size: int
    local_rank: int
    device: torch.device
    mesh: DeviceMesh | None
    data: Group
    replicas: int = 1  # of a model within this one process

    @property
    def all(self) -> Group:
        return dist.group.WORLD if self.mesh is not None else None

    @property
    def data_rank(self) -> int:
        return 0 if self.data is None else dist.get_rank(self.data)

    @property
    def data_size(self) -> int:
        return 1 if self.data is None else dist.get_world_size(self.data)

    def leave(self) -> None:
        """Leaves the process group, and ends the threads of all groups: gloo's wake 100 times a second."""
        if not dist.is_initialized():
            return
        dist.destroy_process_group()
        if self.mesh is not None:
            # DTensor's caches keep a mesh for good, one for each shape that was ever cut.
            getattr(self.mesh, "_pg_registry", {}).clear()
        gc.collect()  # nets, hooks and engines are cycles


def lay_out(
    axes: Sequence[str],
    rank: int,
    size: int,
    local_rank: int,
    device: torch.device,
    sizes: dict[str, int],
    replicas: int = 1,
) -> World:
    """Lays ``size`` ranks out in ``axes``; the axis missing from ``sizes`` takes the ranks that are left.

    Raises:
        ParallelError: the sizes do not multiply to the number of ranks.
    """
    if not axes or not dist.is_initialized():
        return World(rank, size, local_rank, device, None, None, replicas)
    shape = axis_sizes(axes, size, sizes)
    mesh = init_device_mesh(device.type, tuple(shape), mesh_dim_names=tuple(axes))
    data_axes = tuple(axis for axis in axes if axis in DATA_AXES)
    data: Group
    if not data_axes:
        data = None
    elif len(data_axes) == len(axes):
        data = dist.group.WORLD
    elif len(data_axes) == 1:
        data = mesh[data_axes[0]].get_group()
    else:
        data = mesh[data_axes]._flatten().get_group()
    return World(rank, size, local_rank, device, mesh, data)


def axis_sizes(axes: Sequence[str], size: int, sizes: dict[str, int]) -> list[int]:
    """How many ranks each axis has, in the order of ``axes``."""
    free = [axis for axis in axes if axis not in sizes]
    taken = 1
    for axis in axes:
        taken *= sizes.get(axis, 1)
    if taken < 1 or size % taken or (not free and taken != size) or len(free) > 1:
        given = ", ".join(f"{axis} {sizes[axis]}" for axis in axes if axis in sizes)
        raise ParallelError(f"{size} ranks cannot be laid out with {given} on the axes {' x '.join(axes)}")
    return [sizes.get(axis, size // taken) for axis in axes]
