"""The contract's cases, stopped after some steps and taken up again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from parallel.interface import Parallel
from parallel.testing.cases import CASES

BATCH = 10  # of 37 rows: 4 batches an epoch, the last of 7


class Run:
    """A case with all its state in hand."""

    def __init__(self, p: Any, name: str, seed: int = 0) -> None:
        self.p = p
        case = CASES[name]
        torch.manual_seed(seed)
        self.one_step, _ = case.build(p)
        self.data = p.loader(case.data(), BATCH, shuffle=True, seed=5)
        nets = {f"net{number}": net for number, net in enumerate(p._nets)}
        self.parts = {
            "models": {key: net.module for key, net in nets.items()},
            "emas": {key: net.emas[0] for key, net in nets.items() if net.emas},
            "optimizers": {f"opt{number}": opt for number, opt in enumerate(p._optimizers)},
            "loaders": {"train": self.data},
        }
        self._batches = self._forever()

    def train(self, steps: int) -> list[list[float]]:
        """Loss and gradient norms of each step."""
        numbers = []
        for _ in range(steps):
            loss, infos = self.one_step(next(self._batches))
            numbers.append([float(self.p.sum(loss)), *(float(info.grad_norm) for info in infos)])
        return numbers

    def _forever(self) -> Iterator[Any]:
        while True:
            yield from self.data


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
