"""Which numbers of a whole tensor a rank's piece holds.

A piece is the whole cut along its axes: along each it holds some ranges of the whole, in order. That covers FSDP2's rows,
tensor parallelism's rows and columns (several ranges where fused blocks are cut one by one), and one within the other.
A region of one axis for a tensor of another number of axes is of the tensor flattened: DeepSpeed deals out numbers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard

from parallel.splits import Split

Range = tuple[int, int]
Region = tuple[tuple[Range, ...], ...]  # for each axis of the whole, the ranges that the piece holds
Box = tuple[slice, ...]


def whole_region(shape: Sequence[int]) -> Region:
    return tuple(((0, size),) for size in shape)


def piece_shape(region: Region) -> tuple[int, ...]:
    return tuple(sum(stop - start for start, stop in ranges) for ranges in region)


def volume(region: Region) -> int:
    return math.prod(piece_shape(region))


def laid_out(whole: Tensor, region: Region) -> Tensor:
    """The whole with the axes that the region speaks of, sharing its memory."""
    return whole.view(-1) if len(region) == 1 and whole.dim() != 1 else whole


def cut(region: Region, axis: int, start: int, stop: int) -> Region:
    """The part of a piece between its own positions ``start`` and ``stop`` along ``axis``."""
    kept: list[Range] = []
    position = 0
    for low, high in region[axis]:
        first, last = max(start, position), min(stop, position + high - low)
        if first < last:
            kept.append((low + first - position, low + last - position))
        position += high - low
    return (*region[:axis], tuple(kept), *region[axis + 1 :])


def boxes(region: Region) -> Iterator[tuple[Box, Box]]:
    """The rectangles that a piece consists of: (where in the whole, where in the piece)."""
    axes: list[list[tuple[slice, slice]]] = []
    for ranges in region:
        position, places = 0, []
        for start, stop in ranges:
            places.append((slice(start, stop), slice(position, position + stop - start)))
            position += stop - start
        axes.append(places)
    for places in itertools.product(*axes):  # type: ignore[assignment]
        yield tuple(there for there, _ in places), tuple(here for _, here in places)


def region_of(tensor: Tensor, split: Split | None) -> Region:
    """What this rank's piece of a parameter or buffer holds: a tensor-parallel cut, then that of its ``DTensor``."""
    shape = tensor.shape if split is None else split.whole_shape(tensor.shape)
    region = whole_region(shape)
    if split is not None:
        rank, degree = dist.get_rank(split.group), dist.get_world_size(split.group)
        block = shape[split.axis] // split.blocks
        width = block // degree
        starts = [number * block + rank * width for number in range(split.blocks)]
        ranges = tuple((start, start + width) for start in starts)
        region = (*region[: split.axis], ranges, *region[split.axis + 1 :])
    if isinstance(tensor, DTensor):
        for axis, placement in enumerate(tensor.placements):
            if isinstance(placement, Replicate):
                continue
            if type(placement) is not Shard:
                raise TypeError(f"a parameter placed as {placement} cannot be saved")
            size = piece_shape(region)[placement.dim]
            width = -(-size // tensor.device_mesh.size(axis))  # as torch.chunk cuts
            start = min(tensor.device_mesh.get_local_rank(axis) * width, size)
            region = cut(region, placement.dim, start, min(start + width, size))
    return region
