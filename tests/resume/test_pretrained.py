"""``--pretrained``: a training begins from another's weights, whatever spread them, and its averages too."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from pool import Pool
from safetensors.torch import load_file, save_file
from torch import Tensor

import zoo
from parallel import launch
from parallel.interface import Parallel
from zoo import registry
from zoo.checkpoint import extra_of
from zoo.commands import main
from zoo.fill import from_dict

SMALL = {
    "devnet": {"batches_per_epoch": 3, "steps": 2},
    "ddpm": {"width": 8, "batches_per_epoch": 2, "batch_size": 8, "eval_samples": 0, "steps": 2, "ema": 0.5},
    "sean": {
        "image_size": 32, "filters": 2, "style_length": 4, "discriminator_filters": 4, "batch_size": 2, "steps": 1,
    },
}  # fmt: skip


def flags(model: str) -> list[str]:
    return [
        word for name, value in SMALL[model].items() for word in (f"--{name.replace('_', '-')}", str(value))
    ]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of each model, after a few steps."""
    folder = tmp_path_factory.mktemp("runs")
    for model in SMALL:
        launch(save, "single", model, folder / model)
    return folder


def save(p: Parallel, model: str, folder: Path) -> None:
    trainer = built(p, model)
    for batch in islice(trainer.train, trainer.config.steps):
        trainer.step(batch)
    extra = extra_of(model, 2, trainer.config, {})
    p.save(folder / "checkpoints" / "step-00000002", trainer.models, trainer.emas, extra=extra)


def built(p: Parallel, model: str, **options: Any) -> Any:
    entry = registry.get(model)
    trainer = entry.load("trainer")(p, from_dict(entry.load("config"), SMALL[model] | options))
    trainer.build()
    return trainer


def begun(p: Parallel, model: str, source: str, seed: int) -> dict[str, Mapping[str, Tensor]]:
    """The weights that a training of another seed has before its first step, and its averages."""
    trainer = built(p, model, seed=seed, pretrained=source)
    found = {name: dict(p.state_dict(net)) for name, net in trainer.models.items()}
    for name, average in trainer.emas.items():
        with average.applied():
            found[f"{name}.ema"] = dict(p.state_dict(trainer.models[name]))
    return found


def weights(run: Path, name: str) -> dict[str, Tensor]:
    (file,) = run.glob(f"checkpoints/*/weights/{name}.safetensors")
    return load_file(file)


def assert_same(found: Mapping[str, Tensor], want: Mapping[str, Tensor]) -> None:
    assert found.keys() == want.keys()
    for name, tensor in want.items():
        assert torch.equal(found[name].cpu(), tensor), name


@pytest.mark.parametrize(
    ("model", "spec", "n"),
    [
        ("devnet", "single", 1),
        ("ddpm", "single", 1),
        ("ddpm", "fsdp", 3),
        ("ddpm", "zero3", 2),
        ("ddpm", "tp", 2),
        ("sean", "ddp", 2),
        pytest.param("sean", "fsdp+tp", 4, marks=pytest.mark.slow),
    ],
)
def test_a_training_begins_from_a_runs_weights(
    ranks: Pool, runs: Path, model: str, spec: str, n: int
) -> None:
    found = ranks.run(begun, spec, n, model, str(runs / model), 7)[0]
    want = {"net": weights(runs / model, "net.ema" if model == "ddpm" else "net")}
    if model == "ddpm":
        want["net.ema"] = want["net"]
    if model == "sean":
        want["discriminator"] = weights(runs / model, "discriminator")
    assert found.keys() == want.keys()
    for name in want:
        assert_same(found[name], want[name])


@pytest.mark.parametrize("kind", ["safetensors", "pth", "nested.pth"])
def test_or_from_a_file(ranks: Pool, runs: Path, tmp_path: Path, kind: str) -> None:
    state, file = weights(runs / "sean", "net"), tmp_path / f"net.{kind}"
    if kind == "safetensors":
        save_file(state, file)
    else:
        named = {f"module.{name}": tensor for name, tensor in state.items()}
        torch.save({"state_dict": named, "epoch": 3} if kind == "nested.pth" else state, file)
    found = ranks.run(begun, "ddp", 2, "sean", str(file), 7)[0]
    fresh = ranks.run(begun, "single", 1, "sean", "none", 7)[0]
    assert_same(found["net"], state)
    assert_same(found["discriminator"], fresh["discriminator"])
    assert any(not torch.equal(found["net"][name], fresh["net"][name]) for name in state)


class Unwelcome:
    def __reduce__(self) -> Any:
        return os.mkdir, (os.environ["UNWELCOME"],)


def test_what_cannot_begin_one_is_one_line_and_leaves_nothing(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UNWELCOME", "ran")
    torch.save({"state_dict": Unwelcome()}, "code.pth")
    torch.save([1, 2], "list.pth")
    save_file({"a": torch.zeros(1)}, "other.safetensors")
    Path("empty").mkdir()
    before = sorted(Path().iterdir())
    for source, said in {
        "nowhere.pth": "nowhere.pth: no such file of weights",
        "empty": "empty: holds no complete checkpoint; give a run directory or a checkpoint in it",
        "code.pth": "code.pth: not a torch checkpoint of tensors alone, which is all that is read; ",
        "list.pth": "list.pth: holds no weights by name",
        "other.safetensors": "--pretrained other.safetensors: does not fit this DevNet; give the options it was trained ",
        str(runs / "ddpm"): f"--pretrained {runs / 'ddpm'}: a run of ddpm, not of devnet",
    }.items():
        assert main(["train", "devnet", *flags("devnet"), "--pretrained", source, "--out", "run"]) == 2, (
            source
        )
        (line,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("zoo: "))
        assert line.startswith(f"zoo: {said}")
        assert len(line) < 500
    assert sorted(Path().iterdir()) == before


def test_a_run_that_goes_on_needs_them_no_more(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(runs / "devnet", "theirs")
    options = [*flags("devnet"), "--precision", "fp64", "--pretrained", "theirs"]
    for out, steps in (("unbroken", 4), ("run", 2)):
        assert (
            main(["train", "devnet", *options, "--steps", str(steps), "--out", out, "--log-every", "1"]) == 0
        )
    shutil.rmtree("theirs")
    assert main(["train", "devnet", "--resume", "run", "--steps", "4"]) == 0
    ours, theirs = (
        [json.loads(line) for line in Path(out, "metrics.jsonl").read_text().splitlines()]
        for out in ("run", "unbroken")
    )
    assert [line for line in ours if "loss" in line] == [line for line in theirs if "loss" in line]
    assert zoo.load("run").state_dict().keys() == zoo.load("unbroken").state_dict().keys()
