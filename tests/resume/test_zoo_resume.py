"""``zoo train --resume``: the run directory of a run that stopped and went on is that of one that never did."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch

from zoo.checkpoint import checkpoints_of
from zoo.commands import main

TOY_PACKAGE = Path(__file__).parents[1] / "toy_package"
TRAIN = ("train", "toy", "--precision", "fp64", "--steps", "11", "--log-every", "3")  # 4 steps an epoch


@pytest.fixture(scope="module", autouse=True)
def toy_package() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(TOY_PACKAGE))
        yield


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*argv: object) -> Any:
    """What a command prints on the last line under --json."""
    with redirect_stdout(out := StringIO()):
        assert main([*map(str, argv), "--json"]) == 0
    return json.loads(out.getvalue().splitlines()[-1])


def steps_of(folder: str | Path) -> list[int]:
    return [int(checkpoint.name.removeprefix("step-")) for checkpoint in checkpoints_of(Path(folder))]


def lines(folder: str | Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]


def cut(folder: str | Path, step: int) -> None:
    """Leaves a run as if it had been killed some steps after a save: later checkpoints are not there."""
    for checkpoint in checkpoints_of(Path(folder)):
        if int(checkpoint.name.removeprefix("step-")) > step:
            shutil.rmtree(checkpoint)
    with (Path(folder) / "metrics.jsonl").open("a") as file:
        file.write('{"step": 12, "los')  # it was writing when it was killed


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unbroken") / "run"
    run(*TRAIN, "--out", folder, "--eval-every", 1)
    return folder


@pytest.mark.parametrize("form", ["--resume RUN", "--resume --out run"])
@pytest.mark.parametrize("stop", [3, 4, 5, 8])  # within an epoch, and at its end
def test_a_run_goes_on_as_if_it_had_not_stopped(unbroken: Path, stop: int, form: str) -> None:
    run(*TRAIN, "--out", "run", "--eval-every", 1, "--save-every", 1, "steps", "--keep", 20)
    assert steps_of("run") == list(range(1, 12))
    cut("run", stop)
    result = run(
        *(("train", "toy", "--resume", "run") if form == "--resume RUN" else (*TRAIN, *form.split()))
    )
    assert (result["run"], result["steps"], result["stopped"]) == ("run", 11, None)
    assert (Path("run") / "metrics.jsonl").read_text() == (unbroken / "metrics.jsonl").read_text()
    for file in ("weights/net.safetensors", "state/net-00001.safetensors"):
        ours, theirs = (folder / "checkpoints/step-00000011" / file for folder in (Path("run"), unbroken))
        if theirs.exists():  # plain SGD has no state
            assert ours.read_bytes() == theirs.read_bytes()
    assert f"after step {stop}" in (Path("run") / "log.txt").read_text()
    assert result["best"] == run("train", "toy", "--resume", unbroken)["best"]


def test_a_run_goes_on_on_other_ranks(unbroken: Path) -> None:
    run(
        *TRAIN,
        "--out",
        "run",
        "--eval-every",
        1,
        "--save-every",
        "5",
        "steps",
        "--parallel",
        "ddp",
        "--nproc",
        3,
    )
    cut("run", 5)
    run("train", "toy", "--resume", "run", "--parallel", "single")
    for ours, theirs in zip(lines("run"), lines(unbroken), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-12)


def test_a_run_that_was_killed_before_it_saved_begins_again(unbroken: Path) -> None:
    run(*TRAIN, "--out", "run", "--eval-every", 1)
    cut("run", 0)
    run("train", "toy", "--resume", "run")
    assert lines("run") == lines(unbroken)


def test_resume_without_a_run_begins_one(unbroken: Path) -> None:
    """So that a job script may say the same at its first start and after each requeue."""
    for _ in range(2):
        assert run(*TRAIN, "--out", "run", "--eval-every", 1, "--resume")["steps"] == 11
        assert lines("run") == lines(unbroken)


def test_more_steps_than_were_asked_at_first(unbroken: Path) -> None:
    run(*TRAIN[:-4], "--steps", 7, "--log-every", 3, "--out", "run", "--eval-every", 1)
    assert steps_of("run") == [7]
    assert run("train", "toy", "--resume", "run", "--steps", 11)["steps"] == 11
    ours = [
        line for line in lines("run") if line["step"] != 7 or "eval_mse" not in line
    ]  # it had been the last
    assert ours == lines(unbroken)


def test_in_another_directory_from_a_checkpoint_in_the_middle(unbroken: Path) -> None:
    run(*TRAIN, "--out", "run", "--eval-every", 1, "--save-every", 2, "steps", "--keep", 9)
    before = (Path("run") / "metrics.jsonl").read_text()
    run("train", "toy", "--resume", "run/checkpoints/step-00000006", "--out", "other")
    assert lines("other") == [line for line in lines(unbroken) if line["step"] > 6]
    assert (Path("run") / "metrics.jsonl").read_text() == before


def test_from_a_checkpoint_kept_apart_from_its_run(unbroken: Path) -> None:
    run(*TRAIN, "--out", "run", "--eval-every", 1, "--save-every", 2, "steps", "--keep", 9)
    shutil.copytree("run/checkpoints/step-00000006", "kept")
    new = run("train", "toy", "--resume", "kept")["run"]
    assert Path(new).parent == Path("runs/toy")
    assert lines(new) == [line for line in lines(unbroken) if line["step"] > 6]
    assert main(["train", "devnet", "--resume", "kept"]) == 2
    assert main(["train", "toy", "--resume", "kept", "--out", "run"]) == 2  # holds another run


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_taken(
    unbroken: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(*TRAIN, "--out", "run", "--eval-every", 1, "--save-every", 2, "steps", "--keep", 9)
    cut("run", 8)
    file = Path("run/checkpoints/step-00000008/weights/net.safetensors")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    assert main(["checkpoints", "run", "--verify"]) == 1
    assert f"DAMAGED: {file}" in capsys.readouterr().out
    run("train", "toy", "--resume", "run")
    said = capsys.readouterr().err
    assert f"{file}: damaged, its checksum differs; going on from the checkpoint before it" in said
    assert lines("run") == lines(unbroken)
    assert main(["checkpoints", "run", "--verify"]) == 0  # it was saved anew
    (Path("run/checkpoints/step-00000011") / "manifest.json").write_text("{}")
    assert main(["train", "toy", "--resume", "run/checkpoints/step-00000011"]) == 2
    assert "not the manifest of a checkpoint" in capsys.readouterr().err


def test_the_latest_and_the_best_are_kept() -> None:
    options = ("--lr", 0.9, "--eval-every", 1, "--epochs", 6, "--save-every", 3, "steps", "--keep", 1)
    result = run("train", "toy", "--out", "run", *options, "--keep-best")
    assert steps_of("run") == sorted({result["best"]["step"], 24})
    assert {folder.name for folder in Path("run/checkpoints").iterdir()} == {
        folder.name for folder in checkpoints_of(Path("run"))
    }
    run("train", "toy", "--out", "plain", *options)
    assert steps_of("plain") == [24]
    rows = run("checkpoints", "run")["checkpoints"]
    assert [row["step"] for row in rows] == steps_of("run")
    assert rows[-1]["metrics"] == result["metrics"]


@pytest.mark.parametrize(
    ("every", "steps"),
    [
        (("2", "epochs"), [8, 16, 18]),
        (("1", "epoch"), [4, 8, 12, 16, 18]),
        (("7", "steps"), [7, 14, 18]),
        (("5", "minutes"), [18]),
    ],
)
def test_when_to_save(every: tuple[str, str], steps: list[int]) -> None:
    run("train", "toy", "--steps", 18, "--out", "run", "--save-every", *every, "--keep", 99)
    assert steps_of("run") == steps


def test_minutes_are_counted_on_one_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A minute passes every second step."""
    import time

    import parallel.signals

    class Clock:
        now = 0.0

        def monotonic(self) -> float:
            self.now += 30.0
            return self.now

        def __getattr__(self, name: str) -> Any:
            return getattr(time, name)

    monkeypatch.setattr(parallel.signals, "time", Clock())
    run("train", "toy", "--steps", 9, "--out", "run", "--save-every", 2, "minutes", "--keep", 99)
    assert steps_of("run") == [4, 8, 9]


def test_saving_in_the_background_leaves_the_same(unbroken: Path) -> None:
    options = ("--out", "run", "--eval-every", 1, "--save-every", 1, "steps", "--keep", 3)
    run(*TRAIN, *options, "--async-save")
    assert steps_of("run") == [9, 10, 11]
    assert main(["checkpoints", "run", "--verify"]) == 0
    for name in ("weights/net.safetensors",):
        ours, theirs = (folder / "checkpoints/step-00000011" / name for folder in (Path("run"), unbroken))
        assert ours.read_bytes() == theirs.read_bytes()
    cut("run", 9)
    run("train", "toy", "--resume", "run")
    assert lines("run") == lines(unbroken)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--resume"], "--resume goes on with the run in --out DIR; give that, or --resume RUN"),
        (["--resume", "nowhere"], "--resume nowhere: no run, nor a checkpoint of one"),
        (["--save-every", "3"], "--save-every must be N epochs, N steps or N minutes, not '3'"),
        (
            ["--save-every", "0", "steps"],
            "--save-every must be N epochs, N steps or N minutes, not '0 steps'",
        ),
        (
            ["--save-every", "2", "weeks"],
            "--save-every must be N epochs, N steps or N minutes, not '2 weeks'",
        ),
        (["--keep", "0"], "--keep must be at least 1, not 0"),
    ],
)
def test_what_cannot_be(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "toy", *argv]) == 2
    assert capsys.readouterr().err == f"zoo: {message}\n"


def test_an_earlier_checkpoint_needs_a_directory_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    run(*TRAIN, "--out", "run", "--save-every", 5, "steps", "--keep", 9)
    capsys.readouterr()
    assert main(["train", "toy", "--resume", "run/checkpoints/step-00000005"]) == 2
    assert "run has later checkpoints; give --out DIR" in capsys.readouterr().err
    assert main(["train", "toy", "--resume", "run", "--batch-size", "5", "--steps", "20"]) == 2
    assert "which batch_size 5 does not divide" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("bogus: 1", "unknown key 'bogus'"),
        ("batch_size: abc", "key batch_size: must be a whole number, not 'abc'"),
    ],
)
def test_options_of_a_run_that_were_changed_by_hand(
    line: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run("train", "toy", "--steps", 2, "--out", "run")
    file = Path("run/config.yaml")
    kept = [x for x in file.read_text().splitlines() if not x.startswith(line.split(":")[0])]
    file.write_text("\n".join([*kept, line]))
    capsys.readouterr()
    assert main(["train", "toy", "--resume", "run", "--steps", "4"]) == 2
    assert capsys.readouterr().err.startswith(
        f"zoo: run/config.yaml{': ' if 'unknown' in said else ', '}{said}"
    )


def test_weights_are_read_by_plain_torch(unbroken: Path) -> None:
    from safetensors.torch import load_file
    from toy_trainer import ToyLine

    net = ToyLine(1).double()
    net.load_state_dict(
        load_file(unbroken / "checkpoints/step-00000011/weights/net.safetensors"), strict=True
    )
    assert torch.isfinite(net.line.weight).all()
