"""Writes a checkpoint: each rank some of the files, rank 0 the manifest once all others are on the disk."""

from __future__ import annotations

import platform
import queue
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from parallel.checkpoint import manifest as manifests
from parallel.checkpoint.contents import Contents, scaler_state, weights_file
from parallel.checkpoint.disk import FileSum, sync_folder
from parallel.checkpoint.files import TensorFile, TensorInfo
from parallel.checkpoint.manifest import CheckpointError, Manifest, clear, is_complete
from parallel.checkpoint.pieces import Piece, optimizer_parameters, ties
from parallel.checkpoint.plan import Held, PlannedFile, make_plan
from parallel.checkpoint.regions import boxes, laid_out, piece_shape
from parallel.collectives import Group
from parallel.mesh import World

_AHEAD = 2  # tensors put together before they are written, so that both go on at once


class Saver:
    """Saves one run's state; at most one save is under way."""

    def __init__(self, spec: str, world: World) -> None:
        self.spec = spec
        self.world = world
        self._group: Group = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._saving: Future[None] | None = None
        self._copies = _Copies()

    def save(self, folder: Path, contents: Contents, extra: Mapping[str, Any], background: bool) -> None:
        """Called on every rank; see :meth:`parallel.interface.Parallel.save`."""
        self.wait()
        if self.world.all is not None and self._group is None:
            # A group of its own, on CPU: its collectives may run beside those of training.
            self._group = dist.new_group(backend="gloo")  # type: ignore[assignment]
        pieces = contents.pieces()
        holding = {
            group: {name: Held(piece.tensor.dtype, piece.shape, piece.region) for name, piece in held.items()}
            for group, held in pieces.items()
        }
        problem = _make_room(folder) if self.world.rank == 0 else None
        found = self._gather((problem, holding))
        if found[0][0] is not None:
            raise found[0][0]
        files = make_plan([holding for _, holding in found])
        manifest = self._manifest(contents, extra)
        arriving: queue.Queue[_Item] = queue.Queue(0 if background else _AHEAD)
        metadata = {
            weights_file(name): {"format": "pt", **tied} for name, tied in manifest.models.items() if tied
        }
        write = partial(self._write, folder, arriving, manifest, metadata)
        if not background:
            self._saving = self._thread.submit(write)
        try:
            for item in self._exchange(files, pieces, self._copies if background else None):
                arriving.put(item)
        except BaseException as error:
            arriving.put(error)
            raise
        arriving.put(None)
        if background:
            # Not before: it would compete with the copying that training waits for.
            self._saving = self._thread.submit(write)
        else:
            self.wait()

    def wait(self) -> None:
        """Returns once the last save is on the disk, on all ranks.

        Raises:
            OSError: it could not be written; the folder is no checkpoint then.
        """
        if self._saving is not None:
            saving, self._saving = self._saving, None
            saving.result()

    def close(self) -> None:
        self._thread.shutdown(wait=False)

    def _manifest(self, contents: Contents, extra: Mapping[str, Any]) -> Manifest:
        return Manifest(
            models={name: ties(net) for name, net in contents.models.items()},
            emas={name: {"decay": ema.decay} for name, ema in contents.emas.items()},
            optimizers={
                name: {
                    "class": optimizer.name,
                    "steps": optimizer.steps,
                    "scaler": scaler_state(optimizer),
                    "parameters": [slot for slot, _ in optimizer_parameters(optimizer, contents.names)],
                }
                for name, optimizer in contents.optimizers.items()
            },
            loaders={name: loader.state_dict() for name, loader in contents.loaders.items()},
            extra=dict(extra),
            written={
                "strategy": self.spec,
                "ranks": self.world.size,
                "torch": torch.__version__,
                "python": platform.python_version(),
            },
        )

    def _exchange(
        self,
        files: list[PlannedFile],
        pieces: Mapping[str, Mapping[str, Piece]],
        copies: _Copies | None,
    ) -> Iterator[PlannedFile | Tensor]:
        """Sends this rank's pieces to the writers of their files, and yields the tensors of its own files, whole.

        Args:
            copies: what is yielded is used after training has gone on, so that it must not be the model's own.
        """
        own = self.world.rank
        sends: list[tuple[dist.Work, Tensor]] = []  # the tensors live as long as they are sent
        for file in files:
            for tensor in file.tensors if file.owner != own else ():
                if any(source == own for _, source in tensor.sources):
                    piece = _bytes(pieces[file.group][tensor.info.name].tensor.cpu().contiguous())
                    work = dist.isend(piece, file.owner, group=self._group)
                    assert work is not None
                    sends.append((work, piece))
        for file in files:
            if file.owner != own:
                continue
            yield file
            for tensor in file.tensors:
                info = tensor.info
                if len(tensor.sources) == 1 and tensor.sources[0][1] == own:
                    held = pieces[file.group][info.name].tensor
                    yield held if copies is None else copies.room(file.group, info).copy_(held)
                    continue
                whole = (copies or _Copies()).room(file.group, info)
                for region, source in tensor.sources:
                    self._place(whole, region, source, pieces[file.group].get(info.name))
                yield whole
        for work, _ in sends:
            work.wait()

    def _place(self, whole: Tensor, region: Any, source: int, held: Piece | None) -> None:
        """Puts one piece of a tensor where it belongs, receiving it if another rank holds it."""
        places = list(boxes(region))
        whole = laid_out(whole, region)
        if source == self.world.rank:
            assert held is not None
            piece = held.tensor
        elif len(places) == 1 and whole[places[0][0]].is_contiguous():
            dist.recv(_bytes(whole[places[0][0]]), source, group=self._group)
            return
        else:
            piece = torch.empty(piece_shape(region), dtype=whole.dtype)
            dist.recv(_bytes(piece), source, group=self._group)
        for there, here in places:
            whole[there] = piece[here]

    def _write(
        self,
        folder: Path,
        arriving: queue.Queue[_Item],
        manifest: Manifest,
        metadata: Mapping[str, Mapping[str, str]],
    ) -> None:
        """Writes this rank's files as their tensors arrive, then the manifest: in the saver's thread."""
        sums: dict[str, FileSum] = {}
        problem: OSError | None = None
        items = _until_end(arriving)
        try:
            sums = _write_files(folder, items, metadata)
        except OSError as error:
            problem = _named(error, folder, self.world.rank)
            for _ in items:
                pass  # the exchange goes on to its end on all ranks
        outcomes = self._gather((problem, sums))
        if self.world.rank == 0:
            problem = next((problem for problem, _ in outcomes if problem is not None), None)
            if problem is None:
                files = {name: value for _, written in outcomes for name, value in written.items()}
                try:
                    for inner in {(folder / name).parent for name in files}:
                        sync_folder(inner)
                    sync_folder(folder.parent)
                    manifests.write_manifest(folder, replace(manifest, files=dict(sorted(files.items()))))
                except OSError as error:
                    problem = _named(error, folder, 0)
            if problem is not None:
                clear(folder)
        problem = self._gather(problem)[0]
        if problem is not None:
            raise problem

    def _gather(self, value: Any) -> list[Any]:
        if self._group is None:
            return [value]
        values: list[Any] = [None] * self.world.size
        dist.all_gather_object(values, value, group=self._group)
        return values


class _Copies:
    """Memory for the tensors of a save in the background.

    The next one uses it again: new pages cost the training loop three times what the copying does.
    """

    def __init__(self) -> None:
        self._held: dict[tuple[str, str], Tensor] = {}

    def room(self, group: str, info: TensorInfo) -> Tensor:
        """An uninitialised tensor on the CPU, the same one each time."""
        held = self._held.get((group, info.name))
        if held is None or (held.shape, held.dtype) != (info.shape, info.dtype):
            held = self._held[group, info.name] = torch.empty(info.shape, dtype=info.dtype)
        return held


@dataclass
class _Open:
    path: str
    file: TensorFile


_Item = (
    PlannedFile | Tensor | BaseException | None
)  # a file begins; a tensor of it; the exchange failed; the end


def _until_end(arriving: queue.Queue[_Item]) -> Iterator[PlannedFile | Tensor]:
    while (item := arriving.get()) is not None:
        if isinstance(item, BaseException):
            raise RuntimeError("the checkpoint's tensors did not arrive") from item
        yield item


def _write_files(
    folder: Path, items: Iterator[PlannedFile | Tensor], metadata: Mapping[str, Mapping[str, str]]
) -> dict[str, FileSum]:
    sums: dict[str, FileSum] = {}
    current: _Open | None = None
    try:
        for item in items:
            if isinstance(item, PlannedFile):
                if current is not None:
                    sums[current.path] = current.file.close()
                infos = [tensor.info for tensor in item.tensors]
                comment = metadata.get(item.path, {"format": "pt"})
                current = _Open(item.path, TensorFile(folder / item.path, infos, comment))
            else:
                assert current is not None
                current.file.add(item)
        if current is not None:
            sums[current.path] = current.file.close()
    except OSError:
        if current is not None:
            current.file.abandon()
        raise
    return sums


def _make_room(folder: Path) -> Exception | None:
    """Makes the folder, clearing what an interrupted save left in it."""
    try:
        if is_complete(folder):
            return CheckpointError(f"{folder}: holds a checkpoint already; save to another folder")
        clear(folder)
        for name in ("weights", "state"):
            (folder / name).mkdir(parents=True)
    except OSError as error:
        return _named(error, folder, 0)
    return None


def _named(error: OSError, folder: Path, rank: int) -> OSError:
    reason = error.strerror or str(error)
    where = error.filename or folder
    return OSError(error.errno, f"checkpoint not saved: rank {rank} could not write {where}: {reason}")


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).view(torch.uint8)
