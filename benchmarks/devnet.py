"""DevNet against its peers, each pair measured back to back in one run, one thread a process.

detector   ``DevNetDetector.fit`` against ``pyod.models.devnet.DevNet.fit``: 20 epochs, 20 batches, 512 rows
           (PyOD makes no use of its number of batches: its epochs are passes over the rows). Both are one
           process and one thread, so CPU seconds are measured, into which a machine's other work enters less.
ddp        the trainer's steps under ``ddp`` against a loop written by hand on DistributedDataParallel that
           does the same work and is checked to give the same losses. Seconds by the clock.

    python benchmarks/devnet.py [--part detector|ddp] [--pairs 15] [--data annthyroid|FILE] [--json]
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from parallel.interface import Parallel
from parallel.launcher import launch
from parallel.rng import shared_generator
from zoo import DevNetDetector
from zoo.models.devnet.config import DevNetConfig
from zoo.models.devnet.model import DevNet
from zoo.models.devnet.reference import ReferenceScores
from zoo.models.devnet.sampler import BalancedSampler
from zoo.models.devnet.trainer import DevNetTrainer
from zoo_datasets import Table, load_tabular, read_table

EPOCHS, BATCHES, ROWS = 20, 20, 512
STEPS_OF_A_PAIR = 100


def pairs(
    ours: Callable[[], object], theirs: Callable[[], object], count: int, clock: Callable[[], float]
) -> list[tuple[float, float]]:
    """Seconds of each, after one pair to warm up; who goes first takes turns."""

    def timed(work: Callable[[], object]) -> float:
        begun = clock()
        work()
        return clock() - begun

    found = []
    for number in range(count + 1):
        if number % 2:
            their_time = timed(theirs)
            found.append((timed(ours), their_time))
        else:
            found.append((timed(ours), timed(theirs)))
    return found[1:]


def detector(table: Table, count: int) -> dict[str, Any]:
    """Seconds of a fit."""
    from pyod.models.devnet import DevNet as PyodDevNet

    assert table.y is not None
    x, y = table.x, table.y

    def ours() -> None:
        DevNetDetector(epochs=EPOCHS, batches_per_epoch=BATCHES, batch_size=ROWS).fit(x, y)

    def theirs() -> None:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings(action="ignore"):
            model = PyodDevNet(epochs=EPOCHS, nb_batch=BATCHES, batch_size=ROWS, known_outliers=int(y.sum()))
            model.fit(x, y)

    found = pairs(ours, theirs, count, time.process_time)
    return {"part": "detector", **summary(found)}


def ddp(table: Table, count: int) -> dict[str, Any]:
    """Seconds of ``STEPS_OF_A_PAIR`` steps on two ranks."""
    found = launch(steps, "ddp", table, count, nproc=2)
    return {"part": "ddp", **summary(found)}


def steps(p: Parallel, table: Table, count: int) -> list[tuple[float, float]]:
    torch.set_num_threads(1)
    config = DevNetConfig(batches_per_epoch=STEPS_OF_A_PAIR, batch_size=ROWS)
    trainer = DevNetTrainer(p, config, table)
    trainer.build()
    raw = RawLoop(p.rank, p.world_size, table, config)
    losses: dict[str, list[float]] = {"ours": [], "raw": []}

    def ours() -> None:
        p.barrier()
        kept = [trainer.step(batch) for batch in trainer.train]
        losses["ours"] += p.sum(torch.stack([numbers["loss"] for numbers in kept])).tolist()  # type: ignore[misc]

    def theirs() -> None:
        p.barrier()
        losses["raw"] += p.mean(torch.stack(raw.epoch())).tolist()

    found = pairs(ours, theirs, count, time.perf_counter)
    np.testing.assert_allclose(losses["ours"][:20], losses["raw"][:20], rtol=1e-4)
    return found


class RawLoop:
    """What one would write without the zoo."""

    def __init__(self, rank: int, world_size: int, table: Table, config: DevNetConfig) -> None:
        self.rank, self.world_size = rank, world_size
        self.x, self.anomaly = torch.tensor(table.x), torch.tensor(table.y == 1)
        self.sampler = BalancedSampler(self.anomaly, config.batch_size, config.batches_per_epoch, config.seed)
        self.reference, self.done = ReferenceScores(config.seed), 0
        net = DevNet(len(table.columns), config.network_depth, shared_generator(config.seed, "weights"))
        self.net = DistributedDataParallel(net)
        self.kernels = [kernel for name, kernel in net.named_parameters() if is_penalised(name)]
        self.optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-3, alpha=0.9, eps=1e-7)

    def epoch(self) -> list[torch.Tensor]:
        """Every step's loss of this rank's rows."""
        losses = []
        order = self.sampler(self.done // self.sampler.batches).reshape(self.sampler.batches, -1)
        for batch in order:
            rows = batch.chunk(self.world_size)[self.rank]
            reference = self.reference(self.done)
            dev = (self.net(self.x[rows]) - reference.mean) / reference.std
            loss = torch.where(self.anomaly[rows], (5 - dev).clamp_min(0), dev.abs()).mean()
            self.optimizer.zero_grad()
            loss.backward()
            with torch.no_grad():
                for kernel in self.kernels:
                    assert kernel.grad is not None
                    kernel.grad.add_(kernel, alpha=0.02)
            nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
            self.optimizer.step()
            losses.append(loss.detach())
            self.done += 1
        return losses


def is_penalised(name: str) -> bool:
    return name.startswith("hidden.") and name.endswith(".weight")


def summary(found: list[tuple[float, float]]) -> dict[str, Any]:
    """Median seconds, their time in ours (median over the pairs), and the same of the best times of each.

    On a busy machine the best times say most: other work only ever adds.
    """
    ours, theirs = zip(*found, strict=True)
    return {
        "pairs": len(found),
        "ours_s": statistics.median(ours),
        "theirs_s": statistics.median(theirs),
        "times_faster": statistics.median(b / a for a, b in found),
        "times_faster_at_best": min(theirs) / min(ours),
    }


def whole(data: str) -> Table:
    """All rows of a data set."""
    if Path(data).is_file():
        return read_table(data)
    split = load_tabular(data)
    assert split.train.y is not None and split.eval.y is not None
    x, y = np.concatenate([split.train.x, split.eval.x]), np.concatenate([split.train.y, split.eval.y])
    return Table(x, y, split.train.columns, data)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--part", choices=["detector", "ddp"], help="one of the two only")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--data", default="annthyroid", help="a name of zoo_datasets.NAMED, or a file")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    table = whole(arguments.data)
    for part in (detector, ddp):
        if arguments.part not in (None, part.__name__):
            continue
        found = part(table, arguments.pairs)
        if arguments.json:
            print(json.dumps(found))
        else:
            print("  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in found.items()))


if __name__ == "__main__":
    main()
