"""Joins this process to its process group and makes its strategy."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from parallel import registry
from parallel.errors import ParallelError, RankError
from parallel.launcher import Options, Place
from parallel.mesh import DATA_AXES, lay_out
from parallel.progress import Progress
from parallel.strategy import Strategy


def create(spec: str, options: Options, place: Place) -> Strategy:
    """The strategy of one rank; collective where there are several."""
    entries = registry.resolve(spec)
    classes = [entry.load() for entry in entries]
    device = choose_device(options.device, place.local_rank)
    axes = sorted((axis for cls in classes for axis in cls.axes), key=(*DATA_AXES, "tensor").index)
    if axes:
        _join(place, device, timedelta(seconds=options.timeout))
    elif place.size > 1:
        raise ParallelError(f"strategy {spec!r} is one process, and {place.found} started {place.size}")
    sizes = {"tensor": _tensor_size(spec, options.tp, place.size, len(axes))} if "tensor" in axes else {}
    if axes == list(DATA_AXES):
        sizes["replicate"] = 2
    try:
        world = lay_out(axes, place.rank, place.size, place.local_rank, device, sizes, options.replicas)
        engines = [cls(world) for cls in classes]
        for engine in engines:
            engine.configure(options)
        return Strategy(
            spec,
            engines,
            world,
            precision=options.precision,
            accumulate=options.accumulate,
            local_batchnorm=options.local_batchnorm,
            compile=options.compile,
            on_nan=options.on_nan,
            progress=Progress(_folder(place), place.rank) if place.address.startswith("file:") else None,
        )
    except BaseException:
        if dist.is_initialized():
            dist.destroy_process_group()
        raise


def choose_device(asked: str | None, local_rank: int) -> torch.device:
    """The device asked for, or a GPU of its own where there is one, or the CPU."""
    kind = asked or ("cuda" if torch.cuda.is_available() else "cpu")
    if kind == "cpu":
        return torch.device("cpu")
    if kind != "cuda":
        raise ParallelError(f"device {kind!r} is not known here; it is cpu or cuda")
    count = torch.cuda.device_count()
    if local_rank >= count:
        raise ParallelError(f"rank {local_rank} of this machine has no GPU of its own: there are {count}")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def _tensor_size(spec: str, tp: int | None, size: int, axes: int) -> int:
    if tp is None:
        return size if axes == 1 else 2
    return tp


def _join(place: Place, device: torch.device, timeout: timedelta) -> None:
    if dist.is_initialized():
        raise ParallelError("this process is in a process group already; a strategy makes its own")
    backend = "nccl" if device.type == "cuda" else "gloo"
    store: dist.Store
    if place.size == 1:
        store = dist.HashStore()
    elif place.found == "launch":
        store = _meet(_folder(place), place, timeout)
    else:  # torchrun's agent keeps the store; under SLURM rank 0 does
        agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        is_master = place.rank == 0 and not agent
        store = dist.TCPStore(
            place.address, place.port, place.size, is_master, timeout=timeout, multi_tenant=True
        )
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = dist.PrefixStore(f"attempt-{attempt}-turn-{place.turn}", store)
    dist.init_process_group(backend, store=store, rank=place.rank, world_size=place.size, timeout=timeout)


def _folder(place: Place) -> Path:
    """The folder that the ranks of this machine share while they live."""
    return Path(place.address.removeprefix("file:"))


def _meet(folder: Path, place: Place, timeout: timedelta) -> dist.Store:
    """A store that rank 0 opens on a port that the system picks, so that no two runs ever ask for the same one."""
    note = folder / f"port-{place.turn}"
    if place.rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, place.size, True, wait_for_workers=False, timeout=timeout)
        draft = note.with_suffix(".draft")
        draft.write_text(str(store.port))
        draft.rename(note)
        return store
    deadline = time.monotonic() + timeout.total_seconds()
    while not note.exists():
        if time.monotonic() > deadline:
            raise RankError(f"timed out: rank 0 has not begun within {timeout.total_seconds():g} s")
        time.sleep(0.01)
    return dist.TCPStore("127.0.0.1", int(note.read_text()), place.size, False, timeout=timeout)
