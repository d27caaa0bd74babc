"""What a run leaves on disk, and what it never does."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import save_file
from signed import sign

import zoo
from parallel import Parallel, launch
from zoo.checkpoint import find_checkpoint, read_checkpoint
from zoo.fill import from_yaml
from zoo.recorder import Record
from zoo.run import RunRecorder, check_free, create_folder, keep_metrics, to_json, train
from zoo_datasets.errors import InputError

TOY_PACKAGE = Path(__file__).parents[1] / "toy_package"


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TOY_PACKAGE))
    monkeypatch.chdir(tmp_path)


def run(**options: Any) -> dict[str, Any]:
    """Trains the toy in this process."""
    from toy_config import MODEL, ToyConfig

    result = launch(train, "single", MODEL, ToyConfig(**options))
    assert result is not None
    return result


def recorded(use: Callable[[RunRecorder], object], **options: Any) -> Path:
    """The folder of a recorder that was told something."""
    from toy_config import ToyConfig

    def main(p: Parallel) -> Path | None:
        with RunRecorder("toy", ToyConfig(out=Path("out"), **options), p) as recorder:
            use(recorder)
        return recorder.folder

    launch(main, "single")
    return Path("out")


def test_a_folder_of_its_own_for_each_of_many_runs_of_one_second() -> None:
    with ThreadPoolExecutor(16) as pool:
        folders = list(pool.map(lambda _: create_folder(None, "toy"), range(48)))
    assert len(set(folders)) == 48
    assert all(folder.is_dir() and folder.parent == Path("runs/toy") for folder in folders)
    assert all(re.fullmatch(r"\d{8}-\d{6}(-\d+)?", folder.name) for folder in folders)


@contextmanager
def held(file: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that has the run."""
    code = (
        "import fcntl, sys; file = open(sys.argv[1], 'a'); fcntl.lockf(file, 6); print(flush=True); input()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code, str(file)], **pipes) as process:  # type: ignore[call-overload]
        process.stdout.readline()
        yield process
        process.kill()


def test_one_process_at_a_time_writes_a_run() -> None:
    run(steps=2, out=Path("out"))
    before = {file: file.read_bytes() for file in Path("out").rglob("*") if file.is_file()}
    message = "^--out out: another process is training there; stop that first, or give another folder$"
    with held(Path("out/config.yaml")), pytest.raises(InputError, match=message):
        run(steps=4, out=Path("out"), resume="")
    assert {file: file.read_bytes() for file in Path("out").rglob("*") if file.is_file()} == before
    assert run(steps=4, out=Path("out"), resume="")["steps"] == 4  # it was killed, and the lock went with it


def test_of_two_that_found_the_folder_empty_one_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    run(steps=2, out=Path("out"))
    monkeypatch.setattr("zoo.run.check_free", lambda folder: None)  # as it was a moment ago
    before = Path("out/config.yaml").read_bytes()
    with pytest.raises(InputError, match="--out out: holds another run; give"):
        run(steps=4, out=Path("out"))
    assert Path("out/config.yaml").read_bytes() == before


def test_a_file_system_without_locks(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def lockf(file: object, what: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr("zoo.run.fcntl.lockf", lockf)
    assert run(steps=2, out=Path("out"))["steps"] == 2
    assert "out/config.yaml cannot be locked (Function not implemented)" in Path("out/log.txt").read_text()


def test_nothing_is_written_over() -> None:
    check_free(None)
    check_free(Path("new/folder"))
    Path("empty").mkdir()
    check_free(Path("empty"))
    assert create_folder(Path("empty"), "toy") == Path("empty")
    Path("file").write_text("mine")
    Path("other").mkdir()
    Path("other/notes.txt").write_text("mine")
    Path("run").mkdir()
    Path("run/config.yaml").write_text("model: toy")
    said_of_run = "holds another run; --resume goes on with it, or"
    for name, said in {"file": "is a file;", "other": "is not empty;", "run": said_of_run}.items():
        for refuse in (check_free, lambda folder: create_folder(folder, "toy")):
            with pytest.raises(
                InputError, match=rf"^--out {name}: {said} give a folder that is new or empty$"
            ):
                refuse(Path(name))
        with pytest.raises(InputError, match=r"^--out file/run: file is a file; give a folder that is new"):
            refuse(Path("file/run"))
    with pytest.raises(InputError, match=r"^--out n{300}: cannot be made: File name too long$"):
        create_folder(Path("n" * 300), "toy")
    assert Path("file").read_text() == Path("other/notes.txt").read_text() == "mine"


def test_the_run_directory() -> None:
    from toy_config import ToyConfig

    result = run(epochs=2, eval_every=1, log_every=3, out=Path("here"), rows=9)
    folder = Path(result["run"])
    assert sorted(path.name for path in folder.iterdir()) == [
        "checkpoints",
        "config.yaml",
        "log.txt",
        "metrics.jsonl",
        "report",
    ]
    assert (result["model"], result["steps"], result["run"]) == ("toy", 6, "here")
    assert result["checkpoint"] == "here/checkpoints/step-00000006"
    assert from_yaml(ToyConfig, folder / "config.yaml", model="toy") == ToyConfig(
        epochs=2, eval_every=1, log_every=3, out=Path("here"), rows=9
    )
    assert yaml.safe_load((folder / "config.yaml").read_text())["model"] == "toy"
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], line["epoch"]) for line in lines] == [
        (1, 1), (2, 1), (3, 1), (3, 1), (4, 2), (5, 2), (6, 2), (6, 2)
    ]  # fmt: skip
    assert [set(line) - {"step", "epoch"} for line in lines[2:4]] == [
        {"loss", "grad_norm", "lr"},
        {"eval_mse"},
    ]
    assert result["metrics"] == {"mse": lines[-1]["eval_mse"]}
    assert result["best"] == {"step": 6, "mse": min(lines[3]["eval_mse"], lines[-1]["eval_mse"])}
    assert len((folder / "report/answers.txt").read_text().splitlines()) == 9
    log = (folder / "log.txt").read_text()
    assert "toy: single on 1 rank, fp32; 6 steps, 3 an epoch" in log
    assert "evaluation after step 3: mse " in log


def test_bad_data_leaves_nothing_behind() -> None:
    with pytest.raises(InputError, match="row 3"):
        run(data="bad")
    with pytest.raises(InputError, match="row 3"):
        run(data="bad", out=Path("out"))
    assert list(Path().iterdir()) == []


def test_a_failure_on_the_way_is_in_the_log_and_leaves_no_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    import toy_trainer

    def fail(self: Any) -> None:
        raise RuntimeError("no more points")

    monkeypatch.setattr(toy_trainer.ToyTrainer, "evaluate", fail)
    with pytest.raises(RuntimeError, match="no more points"):
        run(out=Path("out"), epochs=1)
    assert "stopped by RuntimeError no more points" in Path("out/log.txt").read_text()
    assert len(Path("out/metrics.jsonl").read_text().splitlines()) == 4
    with pytest.raises(InputError, match=r"^out: holds no complete checkpoint"):
        find_checkpoint(Path("out"))


def test_what_is_said_before_the_folder_is_there_is_in_its_log() -> None:
    def use(recorder: RunRecorder) -> None:
        logging.getLogger("zoo").info("13 rows")
        recorder.begin(1, 1)

    assert [line.split("  ", 1)[1] for line in (recorded(use) / "log.txt").read_text().splitlines()] == [
        "13 rows",
        "toy: single on 1 rank, fp32; 1 steps, 1 an epoch",
    ]
    assert logging.getLogger("zoo").handlers == []
    assert logging.getLogger("zoo").level == logging.NOTSET


def test_numbers_that_json_lacks_become_null_and_are_said_once() -> None:
    def use(recorder: RunRecorder) -> None:
        recorder.begin(3, 3)
        recorder.steps(
            [Record(step, 1, {"loss": value}) for step, value in enumerate([1.5, float("nan"), float("inf")])]
        )
        recorder.evaluation(Record(3, 1, {"mse": float("-inf")}))

    folder = recorded(use)
    assert (folder / "metrics.jsonl").read_text().splitlines() == [
        '{"step": 0, "epoch": 1, "loss": 1.5}',
        '{"step": 1, "epoch": 1, "loss": null}',
        '{"step": 2, "epoch": 1, "loss": null}',
        '{"step": 3, "epoch": 1, "eval_mse": null}',
    ]
    assert (folder / "log.txt").read_text().count("step 1: loss is nan") == 1
    assert "step 2" not in (folder / "log.txt").read_text()
    assert to_json({"a": [float("nan"), {"b": float("inf")}], "c": (1, None)}) == (
        '{"a": [null, {"b": null}], "c": [1, null]}'
    )


def tell(recorder: RunRecorder) -> None:
    recorder.begin(300, 100)
    for step in range(1, 301):
        recorder.tick(step)
        recorder.steps([Record(step, 1, {"loss": 0.25})])
    logging.getLogger("zoo").info("all [said]")


def test_a_pipe_gets_plain_lines_and_not_a_flood(capsys: pytest.CaptureFixture[str]) -> None:
    begun = time.monotonic()
    recorded(tell)
    lines = capsys.readouterr().err.splitlines()
    assert lines[1] == "step 1/300  epoch 1  loss 0.25"
    assert "step 300/300  epoch 1  loss 0.25" in lines
    assert lines[-1] == "all [said]"
    assert len(lines) <= 6 + (time.monotonic() - begun)


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    recorded(tell)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())
    assert "300/300" in shown
    assert "loss 0.25" in shown
    assert "all [said]" in shown


def test_the_last_complete_checkpoint_of_a_run_is_found() -> None:
    result = run(steps=2, out=Path("out"))
    checkpoint = Path(result["checkpoint"])
    assert find_checkpoint(Path("out")) == find_checkpoint(checkpoint) == checkpoint
    later = checkpoint.with_name("step-00000010")
    checkpoint.rename(later)
    checkpoint.mkdir()
    checkpoint.with_name("step-00000011").mkdir()  # no manifest: it was not finished
    assert find_checkpoint(Path("out")) == later
    with pytest.raises(InputError, match=r"^nowhere: no such run"):
        find_checkpoint(Path("nowhere"))


def test_weights_of_another_shape_are_named() -> None:
    checkpoint = Path(run(steps=1, out=Path("out"))["checkpoint"])
    weights = checkpoint / "weights/net.safetensors"
    save_file({"line.weight": torch.zeros(1, 2), "line.bias": torch.zeros(1)}, weights)
    sign(checkpoint)
    with pytest.raises(InputError, match=r"do not fit toy: .*line\.weight.*\[1, 2\]") as error:
        zoo.load("out")
    assert "\n" not in str(error.value)
    weights.write_bytes(b"no safetensors file, whatever its checksum")
    sign(checkpoint)
    with pytest.raises(InputError, match=r"net\.safetensors: cannot be read: "):
        zoo.load("out")


def test_the_weights_in_use_are_the_averages() -> None:
    checkpoint = Path(run(steps=1, out=Path("out"))["checkpoint"])
    averages = {"line.weight": torch.tensor([[7.0]]), "line.bias": torch.tensor([8.0])}
    save_file(averages, checkpoint / "weights/net.ema.safetensors")
    sign(checkpoint)
    assert read_checkpoint("out").weights() == averages


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"extra": {}}', '{"extra": {"model": "toy"}}'])
def test_a_manifest_that_is_not_ours(text: str) -> None:
    Path("manifest.json").write_text(text)
    with pytest.raises(
        InputError, match=r"manifest\.json: (cannot be read: .*|not the manifest of a checkpoint)$"
    ):
        read_checkpoint(".")


@pytest.mark.parametrize("extra", [{}, {"model": "toy", "step": 3}])
def test_a_checkpoint_of_somebody_else_s_loop(extra: dict[str, Any]) -> None:
    """Good, but it does not say which model it is of, or with what options."""
    checkpoint = Path(run(steps=1, out=Path("out"))["checkpoint"])
    sign(checkpoint, extra=extra)
    with pytest.raises(InputError, match=r"manifest\.json: not the manifest of a checkpoint that zoo wrote$"):
        read_checkpoint("out")


@pytest.mark.parametrize("line", ["garbage", "[1]", "3", "{}", '{"step": "x"}', '{"step": null}'])
def test_a_line_that_no_run_wrote_is_named(line: str, tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1}\n' + line + '\n{"step": 2}\n')
    before = file.read_bytes()
    with pytest.raises(InputError, match=r"metrics\.jsonl, line 2: is no record of a step; remove the line$"):
        keep_metrics(file, 1)
    assert file.read_bytes() == before


def test_a_run_that_begins_again_evaluates_its_start_once(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 0, "eval_mse": 1.0}\n{"step": 1, "loss": 1.0}\n')
    keep_metrics(file, 0)
    assert file.read_text() == ""
