"""One of the contract's cases with all its state in hand, to be stopped and gone on with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

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
