"""A signal to stop ends an evaluation after the batch it is at; the run that goes on makes it again."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jobs import interrupted
from pool import Pool

from zoo.checkpoint import checkpoints_of
from zoo.commands import main

TOY_PACKAGE = Path(__file__).parents[1] / "toy_package"
TRAIN = ("train", "toy", "--precision", "fp64", "--steps", "11", "--eval-every", "1")  # 4 steps an epoch


@pytest.mark.parametrize(("spec", "n"), [("single", 1), ("ddp", 3), ("hsdp", 4), ("tp", 2)])
def test_all_ranks_leave_after_the_same_batch(ranks: Pool, spec: str, n: int) -> None:
    assert ranks.run(interrupted, spec, n, signal.SIGTERM) == [(2, signal.SIGTERM, False)] * n


def test_a_request_to_save_waits_for_the_end(ranks: Pool) -> None:
    assert ranks.run(interrupted, "ddp", 2, signal.SIGUSR1) == [(8, 0, True)] * 2


@pytest.fixture
def hears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Has the evaluation after a step send this process SIGTERM, in its first batch of 3; none with step 0."""
    monkeypatch.syspath_prepend(str(TOY_PACKAGE))
    monkeypatch.chdir(tmp_path)
    from toy_trainer import ToyLine, ToyTrainer

    forward, at = ToyLine.forward, 0

    def hearing(self: ToyTrainer, x: Any) -> Any:
        if self.optimizers["net"].steps == at:
            monkeypatch.setattr(ToyLine, "forward", killing)
        return answers(self, x)

    def killing(self: ToyLine, x: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        monkeypatch.setattr(ToyLine, "forward", forward)
        return forward(self, x)

    def hear(step: int) -> None:
        nonlocal at
        at = step

    answers = ToyTrainer.answers
    monkeypatch.setattr(ToyTrainer, "answers", hearing)
    return hear


def lines(folder: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(folder, "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("step", [4, 11])  # of one on the way, and the last
def test_the_run_saves_and_goes_on_as_if_nothing_had_happened(
    hears: Callable[[int], None], step: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*TRAIN, "--out", "unbroken", "--keep-best"]) == 0
    hears(step)
    assert main([*TRAIN, "--out", "run", "--keep-best"]) == 75
    assert f"stopped by SIGTERM after step {step}; --resume run goes on" in capsys.readouterr().err
    assert [folder.name for folder in checkpoints_of(Path("run"))][-1] == f"step-{step:08d}"
    assert not any("eval_mse" in line for line in lines("run") if line["step"] == step)
    hears(0)
    assert main(["train", "toy", "--resume", "run"]) == 0
    assert lines("run") == lines("unbroken")
    assert Path("run/report/answers.txt").read_text() == Path("unbroken/report/answers.txt").read_text()


def test_the_evaluation_is_made_once_however_often_it_is_tried(hears: Callable[[int], None]) -> None:
    """A run that makes up for it and is killed before it saves again has written the evaluation's line already."""
    assert main([*TRAIN, "--out", "unbroken"]) == 0
    hears(4)
    assert main([*TRAIN, "--out", "run"]) == 75
    hears(0)
    evaluation = next(line for line in lines("unbroken") if line["step"] == 4 and "eval_mse" in line)
    with Path("run/metrics.jsonl").open("a") as file:
        file.write(json.dumps(evaluation) + "\n")
    assert main(["train", "toy", "--resume", "run"]) == 0
    assert lines("run") == lines("unbroken")
