"""The zoo's models go on under any strategy from one process's checkpoint, as if nothing had happened."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pool import Pool

from parallel.interface import Parallel
from zoo import registry
from zoo.fill import from_dict
from zoo.run import train

STEPS = {"steps": 9, "save_every": ["4", "steps"], "keep": 9, "log_every": 1, "precision": "fp64"}
SMALL: dict[str, dict[str, Any]] = {
    "devnet": {"batch_size": 32, "batches_per_epoch": 3},
    "ddpm": {"batch_size": 33, "batches_per_epoch": 3, "width": 24, "eval_samples": 0, "diffusion_steps": 20},
    "vit": {
        "data": "digits:0-2",
        "mixup": 0.3,
        "dropout": 0.1,
        "drop_path": 0.1,
        "ema": 0.9,
        "batch_size": 30,
    },
    "sean": {
        "image_size": 32,
        "filters": 4,
        "style_length": 4,
        "discriminator_filters": 4,
        "batch_size": 6,
        "flip": True,
    },
}
LAYOUTS = [("single", 1), ("ddp", 3), ("fsdp", 2), ("zero1", 2), ("zero2", 2), ("zero3", 4), ("hsdp", 4)]
CUT = [("tp", 2), ("fsdp+tp", 4)]
FEW = [("single", 1), ("ddp", 3), ("fsdp+tp", 4)]  # for the model that takes longest to build


def cells() -> Iterator[Any]:
    for spec, n in [*LAYOUTS, *CUT]:
        for name in SMALL:
            lean = name != "sean" and (name != "vit" or (spec, n) in FEW)
            yield pytest.param(spec, n, name, marks=() if lean else pytest.mark.slow)


def run(p: Parallel, name: str, options: dict[str, Any]) -> list[dict[str, float]] | None:
    """Trains; the lines of metrics.jsonl, on rank 0."""
    entry = registry.get(name)
    config = from_dict(entry.load("config"), {**SMALL[name], **STEPS, **options})
    train(p, entry, config)
    if not p.is_main:
        return None
    return [json.loads(line) for line in (Path(options["out"]) / "metrics.jsonl").read_text().splitlines()]


Unbroken = Callable[[str], tuple[Path, list[dict[str, float]]]]


@pytest.fixture(scope="module")
def unbroken(ranks: Pool, tmp_path_factory: pytest.TempPathFactory) -> Unbroken:
    """The folder and the lines of a model's run in one process."""

    @cache
    def run_of(name: str) -> tuple[Path, list[dict[str, float]]]:
        folder = tmp_path_factory.mktemp(name) / "run"
        return folder, ranks.run(run, "single", 1, name, {"out": str(folder)}, precision="fp64")[0]

    return run_of


@pytest.mark.parametrize(("spec", "n", "name"), list(cells()))
def test_the_next_steps_are_those_of_the_unbroken_run(
    fresh: Pool,
    unbroken: Unbroken,
    tmp_path: Path,
    name: str,
    spec: str,
    n: int,
) -> None:
    folder, lines = unbroken(name)
    options = {"resume": str(folder / "checkpoints/step-00000004"), "out": str(tmp_path / "run")}
    got = fresh.run(run, spec, n, name, options, precision="fp64")[0]
    want = [line for line in lines if line["step"] > 4]
    assert len({line["step"] for line in want}) == 5
    for ours, theirs in zip(got, want, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-11)
