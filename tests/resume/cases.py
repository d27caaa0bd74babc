"""The contract's cases, stopped after some steps and taken up again."""

from __future__ import annotations

from pathlib import Path

from case_run import Run
from safetensors.torch import load_file
from torch import Tensor

from parallel.interface import Parallel


def train_and_save(p: Parallel, name: str, folder: Path, steps: int, more: int = 0) -> list[list[float]]:
    """What the ``more`` steps after the save gave."""
    run = Run(p, name)
    run.train(steps)
    p.save(folder, **run.parts, extra={"steps": steps})
    return run.train(more)


def load_and_train(p: Parallel, name: str, folder: Path, more: int) -> list[list[float]]:
    run = Run(p, name, seed=99)  # other weights, which loading must replace
    extra = p.load(folder, **run.parts)
    assert extra["steps"] >= 0
    return run.train(more)


def load_train_save(p: Parallel, name: str, folder: Path, more: int, to: Path) -> list[list[float]]:
    """The middle of a chain of runs: what ``more`` steps give, and a checkpoint for the next run."""
    run = Run(p, name, seed=99)
    extra = p.load(folder, **run.parts)
    numbers = run.train(more)
    p.save(to, **run.parts, extra={"steps": extra["steps"] + more})
    return numbers


def load_and_save(p: Parallel, name: str, folder: Path, to: Path) -> None:
    run = Run(p, name, seed=99)
    extra = p.load(folder, **run.parts)
    p.save(to, **run.parts, extra=extra)


def tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of a checkpoint, weights by file and name, states by optimizer and name."""
    found: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*/*.safetensors")):
        group = file.stem.rpartition("-")[0] if file.parent.name == "state" else file.stem
        found |= {f"{file.parent.name}/{group}:{name}": value for name, value in load_file(file).items()}
    return found
