"""Reads a checkpoint into any layout: each rank the slices that it holds, and its share of the checksums."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from safetensors import safe_open
from torch import Tensor

from parallel.checkpoint.contents import Contents, average_file, state_group, weights_file
from parallel.checkpoint.manifest import CheckpointError, Manifest, check_sizes, check_sums, read_manifest
from parallel.checkpoint.pieces import Piece, ema_pieces, net_pieces, optimizer_parameters, slot_layout
from parallel.checkpoint.plan import deal
from parallel.checkpoint.regions import Region, boxes, piece_shape, whole_region
from parallel.collectives import Group, broadcast_object
from parallel.errors import ParallelError
from parallel.mesh import World
from parallel.optimizer import Optimizer

Value = TypeVar("Value")


def load(folder: Path, contents: Contents, world: World) -> dict[str, Any]:
    """Called on every rank; see :meth:`parallel.interface.Parallel.load`."""
    manifest = _together(lambda: _read(folder, contents) if world.rank == 0 else None, world.all)
    manifest = broadcast_object(manifest, world.all)
    with ExitStack() as stack, ThreadPoolExecutor(1) as thread, torch.no_grad():
        checked = thread.submit(_check_share, folder, manifest, contents, world)
        source = _Source(folder, stack)
        matched = _attempt(lambda: list(_match(source, manifest, contents)))  # meanwhile
        _together(
            checked.result, world.all
        )  # first: what is wrong with damaged bytes is that they are damaged
        for put in _together(matched, world.all):
            put()
    for name, loader in contents.loaders.items():
        loader.load_state_dict(manifest.loaders[name])
    return manifest.extra


class _Source:
    """The tensors of a checkpoint's files, opened when first asked for."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self._stack = stack
        self._open: dict[str, Any] = {}

    def tensors(self, files: list[str]) -> dict[str, Any]:
        """Slices by name: of each, ``get_shape()``, and ``[...]`` reads."""
        found: dict[str, Any] = {}
        for name in files:
            if name not in self._open:
                try:
                    self._open[name] = self._stack.enter_context(safe_open(self.folder / name, "pt"))
                except Exception as error:  # its own exception class, and OSError
                    raise CheckpointError(f"{self.folder / name}: cannot be read: {error}") from None
            file = self._open[name]
            found |= {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118
        return found


def _read(folder: Path, contents: Contents) -> Manifest:
    manifest = read_manifest(folder)
    for kind in ("models", "emas", "optimizers", "loaders"):
        held = getattr(manifest, kind)
        for name in getattr(contents, kind):
            if name not in held:
                has = ", ".join(held) or "none"
                raise CheckpointError(f"{folder}: {kind} has no {name!r}; it has {has}")
    check_sizes(folder, manifest)
    return manifest


def _files(manifest: Manifest, contents: Contents) -> list[str]:
    wanted = [weights_file(name) for name in contents.models]
    wanted += [average_file(name) for name in contents.emas]
    groups = tuple(state_group(name) for name in contents.optimizers)
    return [name for name in manifest.files if name in wanted or _group_of(name) in groups]


def _group_of(file: str) -> str:
    """The group of an optimizer's file: all but its number."""
    return file[: file.rfind("-") + 1]


def _check_share(folder: Path, manifest: Manifest, contents: Contents, world: World) -> None:
    files = _files(manifest, contents)
    owners = deal([manifest.files[name].bytes for name in files], world.size)
    own = [name for name, owner in zip(files, owners, strict=True) if owner == world.rank]
    check_sums(folder, manifest, own)


def _match(source: _Source, manifest: Manifest, contents: Contents) -> Iterator[Callable[[], None]]:
    """Compares all that is to be loaded with what there is, reads optimizer states, and yields what puts all in place."""
    for name, net in contents.models.items():
        yield _into(source, weights_file(name), net_pieces(net))
    for name, ema in contents.emas.items():
        yield _into(source, average_file(name), ema_pieces(contents.models[name], ema))
    for name, optimizer in contents.optimizers.items():
        files = [file for file in manifest.files if _group_of(file) == state_group(name)]
        yield _into_optimizer(source, files, name, optimizer, manifest.optimizers[name], contents)


def _into(source: _Source, file: str, pieces: Mapping[str, Piece]) -> Callable[[], None]:
    saved = source.tensors([file])
    shapes = {name: tuple(value.get_shape()) for name, value in saved.items()}
    check_match(f"{source.folder / file}", {name: piece.shape for name, piece in pieces.items()}, shapes)

    def put() -> None:
        for name, piece in pieces.items():
            _fill(piece.tensor, piece.region, saved[name])

    return put


def check_match(
    what: str, wanted: Mapping[str, tuple[int, ...]], given: Mapping[str, tuple[int, ...]]
) -> None:
    """Raises a :class:`CheckpointError` of one line that names the tensors that are missing, extra or of other shapes."""
    missing = sorted(wanted.keys() - given.keys())
    extra = sorted(given.keys() - wanted.keys())
    differ = [
        f"{name} {given[name]} in the file, {shape} in the model"
        for name, shape in wanted.items()
        if name in given and given[name] != shape
    ]
    found = (("missing", missing), ("not in the model", extra), ("other shapes", differ))
    problems = [f"{kind}: {_listed(names)}" for kind, names in found if names]
    if problems:
        raise CheckpointError(f"{what}: {'; '.join(problems)}")


def _listed(names: list[str]) -> str:
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")


def _into_optimizer(
    source: _Source,
    files: list[str],
    name: str,
    optimizer: Optimizer,
    stated: Mapping[str, Any],
    contents: Contents,
) -> Callable[[], None]:
    slots = dict(optimizer_parameters(optimizer, contents.names))
    where = f"{source.folder}: optimizer {name!r}"
    if stated["class"] != optimizer.name:
        raise CheckpointError(f"{where} is {stated['class']}, and {optimizer.name} is to be loaded")
    check_match(where, dict.fromkeys(slots, ()), dict.fromkeys(stated["parameters"], ()))
    saved: dict[str, dict[str, Any]] = {}
    for full, value in source.tensors(files).items():
        parameter, _, key = full.rpartition("/")
        saved.setdefault(parameter, {})[key] = value

    inner = optimizer.inner
    members = [parameter for group in inner.param_groups for parameter in group["params"]]
    places = {id(parameter): place for place, parameter in enumerate(members)}
    state: dict[int, dict[str, Tensor]] = {}
    for parameter, slot in slots.items():
        if id(slot.shard) in places and parameter in saved:  # under ZeRO-1 a rank steps some of them
            whole, own = slot_layout(slot)
            held: dict[str, Tensor] = {}
            for key, value in saved[parameter].items():
                shape = tuple(value.get_shape())
                cut = bool(shape) and shape == whole
                region = own if cut else whole_region(shape)
                held[key] = torch.empty(piece_shape(region), dtype=_dtype(value))
                _fill(held[key], region, value)
            state[places[id(slot.shard)]] = held

    def put() -> None:
        # torch puts each where the optimizer wants it: moments as the parameter is, step counters on the host.
        inner.load_state_dict({"state": state, "param_groups": inner.state_dict()["param_groups"]})
        optimizer.steps = stated["steps"]
        if optimizer.scaler is not None and stated["scaler"] is not None:
            optimizer.scaler.scale = stated["scaler"]["scale"]
            optimizer.scaler.good_steps = stated["scaler"]["good_steps"]

    return put


def _fill(piece: Tensor, region: Region, saved: Any) -> None:
    shape = saved.get_shape()
    if len(region) == 1 and len(shape) != 1:
        piece.copy_(_numbers(saved, shape, *region[0][0]))
        return
    for there, here in boxes(region):
        piece[here].copy_(saved[there if there else ...])


def _numbers(saved: Any, shape: list[int], start: int, stop: int) -> Tensor:
    """The numbers of a tensor's place ``start`` to ``stop``, read with no more rows than they lie in."""
    if not shape or start == stop:
        return saved[...].reshape(-1)[start:stop]
    row = math.prod(shape[1:])
    first, last = start // row, -(-stop // row)
    return saved[first:last].reshape(-1)[start - first * row : stop - first * row]


def _dtype(saved: Any) -> torch.dtype:
    return saved[...].dtype if not saved.get_shape() else saved[:0].dtype


def _attempt(function: Callable[[], Value]) -> Callable[[], Value]:
    """Calls ``function`` now; what is returned gives its value, or raises what it raised."""
    outcome: Future[Value] = Future()
    try:
        outcome.set_result(function())
    except Exception as error:
        outcome.set_exception(error)
    return outcome.result


def _together(function: Callable[[], Value], group: Group) -> Value:
    """The value of ``function``; where it raises a ParallelError on any rank, every rank raises the first one's."""
    problem: ParallelError | None = None
    value: Any = None
    try:
        value = function()
    except ParallelError as error:
        problem = error
    problems: list[ParallelError | None] = [problem]
    if group is not None:
        problems = [None] * dist.get_world_size(group)
        dist.all_gather_object(problems, problem, group=group)
    for found in problems:
        if found is not None:
            raise found
    return value
