"""A checkpoint that is damaged, of another model or hostile is refused by name, and nothing of it is loaded."""

from __future__ import annotations

import errno
import os
import pickle
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pool import CaseError, Pool
from signed import of_the_future, sign
from torch import nn

from parallel import launch
from parallel.checkpoint import CheckpointError, clear, is_complete, read_manifest, verify
from parallel.interface import Parallel


def parts_of(
    p: Parallel, width: int = 4, optimizer: type[torch.optim.Optimizer] = torch.optim.Adam
) -> dict[str, Any]:
    """A net with an average and an optimizer that has made a step."""
    torch.manual_seed(0)
    net = p.wrap(nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width), nn.Linear(width, 1)))
    opt = p.optimizer(net, optimizer, lr=0.1)
    ema = p.ema(net, 0.5)
    for batch in p.loader(torch.ones(4, 3), 4):
        for part in p.parts(batch):
            p.backward(net(part.x).square().sum() / batch.size, opt)
        p.step(opt)
    return {"models": {"net": net}, "emas": {"net": ema}, "optimizers": {"opt": opt}}


def save(p: Parallel, folder: Path, extra: dict[str, Any] | None = None) -> None:
    p.save(folder, **parts_of(p), extra=extra)


def load(p: Parallel, folder: Path, **options: Any) -> dict[str, Any]:
    """Loads; on failure asserts that nothing was changed."""
    parts = parts_of(p, **options)
    before = {name: value.clone() for name, value in p.state_dict(parts["models"]["net"]).items()}
    try:
        return p.load(folder, **parts)
    except CheckpointError:
        after = p.state_dict(parts["models"]["net"])
        assert all(torch.equal(before[name], after[name]) for name in before)
        raise


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good") / "checkpoint"
    launch(save, "single", folder, {"note": ["é", 1, None, 1.5e-300, {"deep": True}]})
    return folder


@pytest.fixture
def folder(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "checkpoint"))


def test_what_was_given_comes_back(good: Path) -> None:
    assert launch(load, "single", good) == {"note": ["é", 1, None, 1.5e-300, {"deep": True}]}
    assert list(verify(good).files) == [
        "state/opt-00001.safetensors",
        "weights/net.ema.safetensors",
        "weights/net.safetensors",
    ]


FILES = ["weights/net.safetensors", "weights/net.ema.safetensors", "state/opt-00001.safetensors"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda file: file.write_bytes(file.read_bytes()[:-3]), r"\d+ bytes, and \d+ were written"),
        (lambda file: file.unlink(), "missing"),
        (lambda file: flip(file, -5), "damaged, its checksum differs"),
        (lambda file: flip(file, 12), "damaged, its checksum differs"),
    ],
    ids=["truncated", "missing", "byte of a tensor", "byte of the header"],
)
def test_a_damaged_file_is_named(
    folder: Path, name: str, harm: Callable[[Path], object], message: str
) -> None:
    harm(folder / name)
    for act in (lambda: launch(load, "single", folder), lambda: verify(folder)):
        with pytest.raises(CheckpointError, match=rf"^{folder / name}: {message}$"):
            act()


def flip(file: Path, place: int) -> None:
    data = bytearray(file.read_bytes())
    data[place] ^= 0x10
    file.write_bytes(data)


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_changed_byte_of_the_manifest_is_noticed(good: Path, data: st.DataObject) -> None:
    text = bytearray((good / "manifest.json").read_bytes())
    place = data.draw(st.integers(0, len(text) - 1))
    text[place] ^= data.draw(st.integers(1, 255))
    other = good.parent / "other"
    other.mkdir(exist_ok=True)
    (other / "manifest.json").write_bytes(text)
    try:
        found = read_manifest(other)
    except CheckpointError as error:
        assert "manifest.json: " in str(error)
        assert "\n" not in str(error)
    else:
        assert found == read_manifest(good)  # white space


def test_a_later_version_is_named_and_not_guessed_at(folder: Path) -> None:
    of_the_future(folder)
    with pytest.raises(
        CheckpointError, match=r"manifest\.json: of version 7, and this release reads up to 1: upgrade"
    ):
        launch(load, "single", folder)


def test_an_interrupted_save_is_no_checkpoint_and_is_cleared(folder: Path) -> None:
    (folder / "manifest.json").unlink()
    (folder / "weights" / "old.safetensors").write_bytes(b"left behind")
    assert not is_complete(folder)
    with pytest.raises(CheckpointError, match=r"no checkpoint, since it holds no manifest\.json$"):
        launch(load, "single", folder)
    launch(save, "single", folder)
    verify(folder)
    assert not (folder / "weights" / "old.safetensors").exists()


def test_a_checkpoint_is_not_written_over(folder: Path) -> None:
    with pytest.raises(CheckpointError, match="holds a checkpoint already"):
        launch(save, "single", folder)
    verify(folder)


def test_what_does_not_fit_is_named(folder: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"other shapes: 0\.weight \(4, 3\) in the file, \(5, 3\) in the model"
    ) as error:
        launch(partial(load, width=5), "single", folder)
    assert "\n" not in str(error.value)
    with pytest.raises(CheckpointError, match="optimizer 'opt' is Adam, and SGD is to be loaded"):
        launch(partial(load, optimizer=torch.optim.SGD), "single", folder)
    with pytest.raises(CheckpointError, match=r"models has no 'other'; it has net$"):
        launch(load_other, "single", folder)
    with pytest.raises(
        CheckpointError, match=r"net\.safetensors: missing: 3\.bias, 3\.weight; not in the model: 1\.bias"
    ):
        launch(load_smaller, "single", folder)


def load_other(p: Parallel, folder: Path) -> None:
    p.load(folder, {"other": p.wrap(nn.Linear(3, 4))})


def load_smaller(p: Parallel, folder: Path) -> None:
    p.load(folder, {"net": p.wrap(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.ReLU(), nn.Linear(4, 1)))})


def load_on_ranks(p: Parallel, folder: Path) -> str:
    """Every rank hears of the damage that only one of them sees."""
    try:
        load(p, folder)
    except CheckpointError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", FILES)
def test_every_rank_raises_what_one_found(ranks: Pool, folder: Path, name: str) -> None:
    flip(folder / name, -1)
    found = ranks.run(load_on_ranks, "fsdp", 3, folder)
    assert found == [f"{folder / name}: damaged, its checksum differs"] * 3


class Bomb:
    """What runs a command when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.file}",)


@pytest.mark.parametrize("name", [*FILES, "manifest.json", ".metadata", "state/opt-00002.safetensors"])
@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_does_not_run(folder: Path, tmp_path: Path, name: str, zipped: bool) -> None:
    bomb = Bomb(tmp_path / "went-off")
    if zipped:
        with (folder / name).open("wb") as file:
            torch.save({"net": bomb}, file)
    else:
        (folder / name).write_bytes(pickle.dumps(bomb))
    if name in FILES:  # as somebody who means harm would leave it: with good checksums
        sign(folder)
    if name in (".metadata", "state/opt-00002.safetensors"):
        launch(load, "single", folder)  # no file of ours
    else:
        with pytest.raises(CheckpointError, match=r"(safetensors|manifest\.json): (cannot be read|damaged)"):
            launch(load, "single", folder)
    assert not bomb.file.exists()
    pickle.loads(pickle.dumps(bomb))
    assert bomb.file.exists()  # it would have


@contextmanager
def full_disk(room: int) -> Iterator[None]:
    """No file may grow beyond ``room`` bytes; as on a full disk, the write fails and not the process."""
    import signal

    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def save_on_full_disk(p: Parallel, folder: Path, room: int, background: bool) -> tuple[int, str]:
    parts = parts_of(p)
    p.save(folder.with_name("before"), **parts)  # there was room yet; and the ranks know one another now
    with full_disk(room) if p.rank == p.world_size - 1 else full_disk(2**30):
        try:
            p.save(folder, **parts, background=background)
            p.wait_for_saves()
        except OSError as error:
            return error.errno or 0, error.strerror
    return 0, ""


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize(("spec", "n"), [("single", 1), ("ddp", 2), ("fsdp", 3)])
def test_a_save_that_has_no_room_fails_on_all_ranks_and_leaves_nothing(
    ranks: Pool, tmp_path: Path, spec: str, n: int, background: bool
) -> None:
    for code, text in ranks.run(save_on_full_disk, spec, n, tmp_path / "checkpoint", 100, background):
        assert code == errno.EFBIG
        assert text.startswith(
            f"checkpoint not saved: rank {n - 1} could not write {tmp_path / 'checkpoint'}"
        )
        assert text.endswith(".safetensors: File too large")
    assert not (tmp_path / "checkpoint").exists()


def test_no_room_for_the_manifest(tmp_path: Path) -> None:
    """The last file of all: bigger than those before it, so that only it meets the limit."""
    with pytest.raises(OSError, match=r"could not write .*manifest\.json"), full_disk(3000):
        launch(save, "single", tmp_path / "checkpoint", {"long": "x" * 5000})
    assert not (tmp_path / "checkpoint").exists()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"checkpoint not saved: rank 0 could not write .*: Not a directory"):
        launch(save, "single", tmp_path / "file" / "checkpoint")


def test_a_small_disk_that_is_full(tmp_path: Path) -> None:
    """A real one, where the machine lets us mount it."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.system(f"mount -t tmpfs -o size=16k none {disk} 2>/dev/null"):
        pytest.skip("a small tmpfs cannot be mounted here (not root)")
    try:
        launch(save, "single", disk / "first")
        with pytest.raises(OSError, match="No space left on device"):
            for number in range(10):
                launch(save, "single", disk / f"next-{number}")
        verify(disk / "first")
    finally:
        os.system(f"umount {disk}")


def test_a_read_only_folder(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.system(f"mount -t tmpfs -o ro,size=64k none {disk} 2>/dev/null"):
        pytest.skip("a read-only tmpfs cannot be mounted here (not root)")
    try:
        with pytest.raises(OSError, match=r"could not write .*: Read-only file system"):
            launch(save, "single", disk / "checkpoint")
    finally:
        os.system(f"umount {disk}")


def test_clearing_removes_the_manifest_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped after any of its steps, what is left is no checkpoint."""
    real = Path.unlink
    left: list[bool] = []

    def unlink(self: Path, missing_ok: bool = False) -> None:
        real(self, missing_ok)
        left.append(is_complete(folder))

    monkeypatch.setattr(Path, "unlink", unlink)
    clear(folder)
    assert len(left) == 5
    assert not any(left)
    assert not folder.exists()


def test_a_bad_name_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'\.\./net' cannot name a file"):
        launch(save_badly, "single", tmp_path / "checkpoint")
    assert not (tmp_path / "checkpoint").exists()


def save_badly(p: Parallel, folder: Path) -> None:
    p.save(folder, {"../net": p.wrap(nn.Linear(1, 1))})


def test_extra_that_json_cannot_hold(ranks: Pool, tmp_path: Path) -> None:
    for value in (object(), float("nan")):
        with pytest.raises((CaseError, ValueError, TypeError), match="JSON"):
            launch(save, "single", tmp_path / "checkpoint", {"value": value})
        assert not is_complete(tmp_path / "checkpoint")
