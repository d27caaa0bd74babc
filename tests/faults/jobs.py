"""What the ranks of the tests beside do: train a little, and fail at a given place."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from parallel.interface import Parallel
from parallel.plan import Plan
from parallel.signals import StoppedError


class Rows(Dataset[Tensor]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Tensor:
        return torch.full((3,), float(index))


class BoomError(Exception):
    """No builtin, so that it must find its way back by itself."""


def job(p: Parallel, folder: Path, place: str, how: str, workers: int = 0) -> int:
    """Three steps, an evaluation, a save; rank 1 fails ``how`` at ``place``. Leaves the ids of its processes."""
    (folder / f"rank-{p.rank}").write_text(str(os.getpid()))
    fail = Fail(p, place, how)
    fail.at("start")
    net = p.wrap(nn.Linear(3, 2))
    opt = p.optimizer(net, torch.optim.Adam, lr=0.1)
    data = p.loader(Rows(), 8, workers=workers)
    steps = 0
    for batch in data:
        for part in p.parts(batch):
            p.backward(net(part.x).square().sum() / batch.size, opt)
        p.step(opt)
        steps += 1
        if steps == 2:
            note_workers(folder)
            fail.at("step")
    with torch.no_grad():
        rows = net(torch.full((p.rank + 1, 3), 1.0))
        fail.at("evaluation")
        p.gather(rows, torch.arange(p.rank + 1))
    if place == "save" and p.rank == 1:
        opt.inner.state[opt.slots[0].shard]["exp_avg"] = Cracked()
    p.save(folder / "checkpoint", {"net": net}, optimizers={"net": opt})
    return steps


class Fail:
    def __init__(self, p: Parallel, place: str, how: str) -> None:
        self.p, self.place, self.how = p, place, how

    def at(self, place: str) -> None:
        if place != self.place or self.p.rank != 1:
            return
        if self.how == "raise":
            raise BoomError(f"at {place}")
        if self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        stuck_here()


def stuck_here() -> None:
    time.sleep(600)


class Cracked:
    """No tensor, which saving does not expect."""


def note_workers(folder: Path) -> None:
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    for child in children.read_text().split():
        (folder / f"worker-{child}").write_text(child)


def poison(p: Parallel, spec_step: int, steps: int) -> tuple[list[bool], list[Any]]:
    """Steps of which one has a NaN in its data; which were skipped, and the weights."""
    torch.manual_seed(0)
    net = p.wrap(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1)))
    opt = p.optimizer(net, torch.optim.SGD, lr=0.01)
    x = torch.ones(8 * steps, 3)
    x[8 * spec_step + 5] = float("nan")
    skipped = []
    for batch in p.loader(x, 8):
        for part in p.parts(batch):
            p.backward(net(part.x).square().sum() / batch.size, opt)
        skipped.append(p.step(opt).skipped)
    return skipped, [bool(value.isfinite().all()) for value in p.state_dict(net).values()]


def unequal(p: Parallel, folder: Path, how: str) -> int:
    """Rank 1 has 8 rows more, or draws 8 more of them, or leaves its loop early; the steps that this rank did."""
    (folder / f"rank-{p.rank}").write_text(str(os.getpid()))
    plan = Plan(units=("0",), tensor={"0": "column", "1": "row"})
    net = p.wrap(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), plan)
    opt = p.optimizer(net, torch.optim.Adam, lr=0.1)
    rows = 24 + 8 * p.rank
    sampler = (lambda epoch: torch.arange(rows)) if how == "draws" else None
    steps = 0
    for batch in p.loader(torch.ones(rows if how == "rows" else 40, 3), 8, sampler=sampler):
        if how == "leaves" and p.rank == 1 and steps == 1:
            break
        for part in p.parts(batch):
            p.backward(net(part.data).square().sum() / batch.size, opt)
        p.step(opt)
        steps += 1
    return steps


def interrupted(p: Parallel, number: signal.Signals) -> tuple[int, int, bool]:
    """An evaluation in whose second batch the last rank gets a signal.

    Returns:
        how many of its 8 batches were seen, what the next notice says to stop, whether one of the next says to save.
    """
    p.notice()
    seen = 0
    try:
        with p.interruptible():
            for _ in p.loader(Rows(), 5):
                seen += 1
                if seen == 1:
                    time.sleep(0.5)  # so slow that the ranks ask one another after each
                elif seen == 2 and p.rank == p.world_size - 1:
                    os.kill(os.getpid(), number)
    except StoppedError:
        pass
    first = p.notice()
    return seen, first.stop, first.save or any(p.notice().save for _ in range(100))
