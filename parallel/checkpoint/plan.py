"""Which files a checkpoint has, who writes each, and from whom the pieces come: the same conclusion on every rank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from parallel.checkpoint.files import TensorInfo, in_file_order
from parallel.checkpoint.regions import Region, volume

FILE_BYTES = 256 * 2**20  # of an optimizer's files; the layout of files must not depend on the ranks


class Held(NamedTuple):
    """What a rank tells the others of a piece it holds."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    region: Region


Holding = Mapping[str, Mapping[str, Held]]  # by group of files, by tensor


@dataclass(frozen=True)
class PlannedTensor:
    """A tensor of a file.

    Attributes:
        sources: the pieces that make it up, and the rank that gives each.
    """

    info: TensorInfo
    sources: tuple[tuple[Region, int], ...]


@dataclass(frozen=True)
class PlannedFile:
    """A file, and the rank that writes it."""

    path: str
    group: str
    owner: int
    tensors: tuple[PlannedTensor, ...]


def make_plan(holdings: Sequence[Holding]) -> list[PlannedFile]:
    """The files of a checkpoint, from what every rank holds."""
    files: list[tuple[str, str, list[TensorInfo]]] = []
    holders: dict[tuple[str, str], dict[Region, list[int]]] = {}
    for group in holdings[0]:
        infos: dict[str, TensorInfo] = {}
        for rank, holding in enumerate(holdings):
            for name, held in holding[group].items():
                info = infos.setdefault(name, TensorInfo(name, held.dtype, held.shape))
                assert info == TensorInfo(name, held.dtype, held.shape), f"ranks differ in {name}"
                holders.setdefault((group, name), {}).setdefault(held.region, []).append(rank)
        ordered = in_file_order(infos.values())
        if group.endswith("-"):
            for number, chunk in enumerate(_chunks(ordered), start=1):
                files.append((f"{group}{number:05d}.safetensors", group, chunk))
        else:
            files.append((group, group, ordered))
    owners = deal([sum(info.bytes for info in infos) for _, _, infos in files], len(holdings))
    planned = []
    for (path, group, ordered), owner in zip(files, owners, strict=True):
        tensors = tuple(
            PlannedTensor(info, _sources(info, holders[group, info.name], owner)) for info in ordered
        )
        planned.append(PlannedFile(path, group, owner, tensors))
    return planned


def deal(sizes: Sequence[int], ranks: int) -> list[int]:
    """A rank for each size: the largest first, each to the rank with the least so far (Graham 1969)."""
    loads = [0] * ranks
    owners = [0] * len(sizes)
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        owners[index] = loads.index(min(loads))
        loads[owners[index]] += sizes[index]
    return owners


def _chunks(tensors: Iterable[TensorInfo]) -> list[list[TensorInfo]]:
    chunks: list[list[TensorInfo]] = []
    size = 0
    for info in tensors:
        if not chunks or size + info.bytes > FILE_BYTES:
            chunks.append([])
            size = 0
        chunks[-1].append(info)
        size += info.bytes
    return chunks


def _sources(
    info: TensorInfo, holders: Mapping[Region, Sequence[int]], owner: int
) -> tuple[tuple[Region, int], ...]:
    """One holder of each piece, the owner itself where it can."""
    sources = [
        (region, owner if owner in ranks else ranks[0]) for region, ranks in holders.items() if volume(region)
    ]
    assert sum(volume(region) for region, _ in sources) == torch.Size(info.shape).numel(), info.name
    return tuple(sorted(sources))
