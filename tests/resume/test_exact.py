"""A run that goes on is the run that never stopped: bit for bit on the same layout, with all that draws at random."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from pool import Pool
from torch import Tensor, nn
from torch.utils.data import Dataset

from parallel import Plan, launch
from parallel.interface import Parallel

STOP, END = 5, 9  # the stop is in the middle of the second epoch


class Noisy(Dataset[tuple[Tensor, Tensor]]):
    """Rows that are augmented at random whenever they are read."""

    def __len__(self) -> int:
        return 37

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x = torch.linspace(-1, 1, 128, dtype=torch.float64) * (index + 1) / 37
        return x + 0.1 * torch.randn(128, dtype=torch.float64), x.square().sum(0, keepdim=True)


class Wide(nn.Module):
    """More than the 1 MiB of the reducer's first bucket, and dropout."""

    def __init__(self) -> None:
        super().__init__()
        # Not in the order of use: there the reducer's guess of the order of gradients would be right by chance.
        self.second = nn.Linear(1024, 256)
        self.last = nn.Linear(1024, 1)
        self.first = nn.Linear(128, 1024)
        self.drop = nn.Dropout(0.1)
        self.third = nn.Linear(256, 1024)

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.drop(torch.tanh(self.first(x))))
        return self.last(torch.tanh(self.third(x)))


PLAN = Plan(
    units=("first", "second", "third"),
    tensor={"first": "column", "drop": "features", "second": "row", "third": "column", "last": "row"},
)


def job(p: Parallel, folder: Path, go_on: bool, workers: int = 0) -> list[float]:
    """Trains to the end, from the start (saving on the way) or from what that saved; the numbers after the stop."""
    torch.manual_seed(7 if go_on else 0)
    net = p.wrap(Wide(), PLAN)
    opt = p.optimizer(net, torch.optim.AdamW, lr=1e-3, clip_norm=1.0, schedule=lambda step: 1.0 / (1 + step))
    ema = p.ema(net, 0.9)
    data = p.loader(Noisy(), 10, shuffle=True, seed=3, workers=workers)
    parts: dict[str, Any] = {
        "models": {"net": net},
        "emas": {"net": ema},
        "optimizers": {"net": opt},
        "loaders": {"train": data},
    }
    done = p.load(folder / "half", **parts)["done"] if go_on else 0
    numbers: list[float] = []
    while done < END:
        for batch in data:
            loss = torch.zeros((), dtype=torch.float64)
            for part in p.parts(batch):
                losses = (net(part.x + 0.1 * part.noise("more", (128,))) - part.y).square().sum() / batch.size
                p.backward(losses, opt)
                loss += losses.detach()
            info = p.step(opt)
            done += 1
            if done > STOP:
                numbers += [float(p.sum(loss)), float(info.grad_norm), info.lr]
            if done == STOP and not go_on:
                p.save(folder / "half", **parts, extra={"done": done})
            if done == END:
                break
    p.save(folder / f"end-{go_on}", **parts)
    return numbers


@pytest.mark.parametrize(
    ("spec", "n"),
    [
        ("single", 1),
        ("ddp", 2),
        ("ddp", 3),
        ("fsdp", 3),
        ("zero1", 3),
        ("zero2", 2),
        ("zero3", 4),
        ("tp", 2),
        ("ddp+tp", 4),
        ("fsdp+tp", 4),
        ("hsdp", 4),
    ],
)
def test_bit_for_bit_in_new_processes(ranks: Pool, fresh: Pool, tmp_path: Path, spec: str, n: int) -> None:
    options = {"precision": "fp32", "accumulate": 2}
    unbroken = ranks.run(job, spec, n, tmp_path, False, **options)
    assert len(unbroken[0]) == 3 * (END - STOP)
    assert fresh.run(job, spec, n, tmp_path, True, **options) == unbroken
    same_files(tmp_path / "end-False", tmp_path / "end-True")


@pytest.mark.parametrize(("spec", "n"), [("single", 1), pytest.param("ddp", 2, marks=pytest.mark.slow)])
def test_bit_for_bit_with_worker_processes(tmp_path: Path, spec: str, n: int) -> None:
    unbroken = launch(job, spec, tmp_path, False, 1, nproc=n)
    assert launch(job, spec, tmp_path, True, 2, nproc=n) == unbroken
    same_files(tmp_path / "end-False", tmp_path / "end-True")


def same_files(one: Path, other: Path) -> None:
    files = [file.relative_to(one) for file in one.glob("*/*.safetensors")]
    assert len(files) == 3
    for file in files:
        assert (one / file).read_bytes() == (other / file).read_bytes(), file
