"""What signals, crashes and numbers that are none do to ``zoo train``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from zoo.checkpoint import checkpoints_of
from zoo.commands import main, train
from zoo.commands.train import _with_restarts

ROOT = Path(__file__).resolve().parents[2]
TOY_PACKAGE = ROOT / "tests" / "toy_package"
PATHS = [str(ROOT), str(ROOT / "datasets"), str(TOY_PACKAGE), str(Path(__file__).parent)]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TOY_PACKAGE))
    monkeypatch.setenv("UNLUCKY", str(tmp_path / "happened"))
    monkeypatch.chdir(tmp_path)


def lines(folder: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(folder, "metrics.jsonl").read_text().splitlines()]


def verified(folder: str) -> None:
    assert main(["checkpoints", folder, "--verify"]) == 0


@contextmanager
def training(*options: object) -> Iterator[subprocess.Popen[str]]:
    """``zoo train`` in a process of its own, with the trainer to which things happen."""
    code = (
        f"import sys; sys.path[:0] = {PATHS!r}\n"
        "import unlucky, zoo.commands.train as train; from zoo.commands import main\n"
        "train.model_of = lambda *_: unlucky.ENTRY\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    argv = [sys.executable, "-c", code, "train", "toy", "--precision", "fp64", "--log-every", "1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [*argv, *map(str, options)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for(process: subprocess.Popen[str], is_so: Callable[[], bool]) -> None:
    while not is_so():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


def steps_done(folder: str) -> int:
    return len(lines(folder)) if Path(folder, "metrics.jsonl").exists() else 0


@pytest.mark.parametrize(
    ("number", "ranks"),
    [
        (signal.SIGTERM, ("--parallel", "ddp", "--nproc", 2)),
        pytest.param(signal.SIGINT, (), marks=pytest.mark.slow),
    ],
)
def test_a_warning_saves_and_goes_on_and_a_signal_to_stop_finishes_the_step_and_saves(
    number: signal.Signals, ranks: tuple[object, ...]
) -> None:
    with training("--steps", 100000, "--out", "run", "--data", "slow", *ranks) as process:
        wait_for(process, lambda: steps_done("run") > 2)
        process.send_signal(signal.SIGUSR1)
        wait_for(process, lambda: bool(checkpoints_of(Path("run"))))
        (warned,) = checkpoints_of(Path("run"))
        before = steps_done("run")
        wait_for(process, lambda: steps_done("run") > before + 2)
        process.send_signal(number)
        _, said = process.communicate(timeout=120)
    assert process.returncode == 75
    done = lines("run")[-1]["step"]
    assert f"stopped by {number.name} after step {done}; --resume run goes on" in said
    assert [folder.name for folder in checkpoints_of(Path("run"))] == [warned.name, f"step-{done:08d}"]
    verified("run")
    total = str(done + 5)
    assert main(["train", "toy", "--resume", "run", "--steps", total, "--parallel", "single"]) == 0
    options = ["--precision", "fp64", "--steps", total, "--log-every", "1", "--out", "unbroken"]
    assert main(["train", "toy", *options]) == 0
    for ours, theirs in zip(lines("run"), lines("unbroken"), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-12)


def test_a_second_ctrl_c_ends_it_at_once() -> None:
    """The ranks sleep, so they never come to the end of their step."""
    with training("--steps", 9, "--out", "run", "--data", "sleep 2", "--parallel", "ddp") as process:
        wait_for(process, lambda: steps_done("run") == 1)
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert said.endswith("zoo: interrupted\n")
    assert not checkpoints_of(Path("run"))


@pytest.mark.parametrize(
    ("how", "ranks"),
    [
        ("kill", ("ddp", 2)),
        pytest.param("raise", ("fsdp", 2), marks=pytest.mark.slow),
        pytest.param("kill", ("single", 1), marks=pytest.mark.slow),
    ],
)
def test_a_crash_restarts_from_the_last_checkpoint(
    how: str, ranks: tuple[str, int], capfd: pytest.CaptureFixture[str]
) -> None:
    import unlucky
    from toy_config import ToyConfig

    options = {"precision": "fp64", "steps": 11, "log_every": 2, "save_every": ("3", "steps")}
    spec, n = ranks
    config = ToyConfig(
        **options,
        data=f"{how} 8",
        out=Path("run"),
        parallel=spec,
        nproc=n,
        max_restarts=1,  # type: ignore[arg-type]
    )
    result = _with_restarts(unlucky.ENTRY, config)
    assert result is not None
    said = capfd.readouterr().err
    assert Path("happened").exists()
    assert said.count("Traceback (most recent call last)") == 1
    assert "zoo: going on from the last checkpoint; 0 restarts are left" in said
    assert "going on from run/checkpoints/step-00000006, after step 6" in said
    assert main(["train", "toy", "--precision", "fp64", "--steps", "11", "--out", "unbroken"]) == 0
    for ours, theirs in zip(lines("run"), lines("unbroken"), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-12)


def test_restarts_come_to_an_end(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    import unlucky

    monkeypatch.setenv("UNLUCKY", "/nowhere/happened")  # so that it happens each time
    monkeypatch.setattr(train, "model_of", lambda *_: unlucky.ENTRY)
    argv = ["train", "toy", "--steps", "9", "--data", "raise 2", "--out", "run", "--max-restarts", "1"]
    assert main(argv) == 1
    assert capfd.readouterr().err.count("restarts are left") == 1


def test_each_restart_goes_on_and_is_counted(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str | None] = []

    def crash(main: object, config: Any, *args: object, **options: object) -> None:
        begun.append(config.resume)
        raise ArithmeticError("bad luck again")

    monkeypatch.setattr(train, "on_ranks", crash)
    assert main(["train", "toy", "--out", "run", "--max-restarts", "2"]) == 1
    assert begun == [None, "", ""]
    said = capfd.readouterr().err
    assert [line.split("; ")[1] for line in said.splitlines() if "going on" in line] == [
        "1 restarts are left",
        "0 restarts are left",
    ]


@pytest.mark.parametrize(
    "ranks", [(), pytest.param(("--parallel", "ddp", "--nproc", "2"), marks=pytest.mark.slow)]
)
def test_a_nan_is_named_and_the_last_checkpoint_is_the_last_good(
    ranks: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import unlucky

    monkeypatch.setattr(train, "model_of", lambda *_: unlucky.ENTRY)
    options = ["--steps", "9", "--data", "nan 6", "--save-every", "2", "steps", "--precision", "fp64", *ranks]
    assert main(["train", "toy", *options, "--out", "run", "--max-restarts", "3"]) == 1
    said = capsys.readouterr().err
    assert "zoo: step 6: the gradient of line.weight of ToyLine is NaN or infinite" in said
    assert "Traceback" not in said
    assert [folder.name for folder in checkpoints_of(Path("run"))] == ["step-00000002", "step-00000004"]
    verified("run")
    assert main(["train", "toy", *options, "--out", "skip", "--on-nan", "skip", "--log-every", "1"]) == 0
    assert [line["step"] for line in lines("skip") if line.get("skipped")] == [6]
    assert all(line["grad_norm"] is not None for line in lines("skip")[:5])
    assert lines("skip")[-2]["loss"] is not None


def test_a_full_disk_names_the_last_checkpoint(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno

    import parallel.checkpoint.save as save

    class Full(save.TensorFile):
        def close(self) -> Any:
            if "step-00000004" in str(self._path):
                self.abandon()
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
            return super().close()

    monkeypatch.setattr(save, "TensorFile", Full)
    argv = ["train", "toy", "--steps", "9", "--out", "run", "--save-every", "2", "steps"]
    for extra in ([], ["--resume", "--async-save"]):
        assert main([*argv, *extra]) == 1
        said = capsys.readouterr().err
        assert "step-00000004/weights/net.safetensors: No space left on device; " in said
        assert said.endswith("the last checkpoint is run/checkpoints/step-00000002\n")
        assert "Traceback" not in said
    verified("run")


@pytest.mark.slow
def test_torchrun_restarts_what_goes_on() -> None:
    """torch's elastic agent starts the ranks anew; ``--resume`` finds the last checkpoint."""
    script = Path("train.py")
    script.write_text(
        f"import sys; sys.path[:0] = {PATHS!r}\n"
        "import unlucky, zoo.commands.train as train; from zoo.commands import main\n"
        "train.model_of = lambda *_: unlucky.ENTRY\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    options = ["--steps", "11", "--save-every", "2", "steps", "--precision", "fp64", "--log-every", "1"]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1"]
    argv = [*launcher, str(script), "train", "toy", *options, "--parallel", "ddp", "--data", "raise 8"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ended = subprocess.run(
        [*argv, "--out", "run", "--resume"], env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert "ArithmeticError: bad luck at step 8" in ended.stderr
    assert "going on from run/checkpoints/step-00000006, after step 6" in ended.stderr
    assert main(["train", "toy", *options, "--out", "unbroken"]) == 0
    for ours, theirs in zip(lines("run"), lines("unbroken"), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-12)
