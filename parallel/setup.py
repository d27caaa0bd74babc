"""Joins this process to its process group and makes its strategy."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from parallel import registry
from parallel.errors import ParallelError
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
    """A store in a file, not behind a port: torch asks the name server who each of a TCPStore's connections is from."""
    store = dist.FileStore(str(folder / f"store-{place.turn}"), place.size)
    store.set_timeout(timeout)
    return store
