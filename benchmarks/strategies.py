"""Our step beside the same step in plain PyTorch, in Lightning Fabric and in Accelerate, all in one run.

    python benchmarks/strategies.py [--ranks 2] [--pairs 15] [--steps 10] [--json]

Every rank has one thread. A pair is some steps of ours and the same of the other, back to back, who goes first taking
turns; a row's ratio is the median over pairs of our seconds over theirs. Each does the whole step: rows out of tensors
in memory, forward, mean cross entropy, backward, the gradient clipped to norm 1, AdamW, gradients cleared. Losses of
the first steps are compared, so that the same work is done. A library that is not installed is left out, and said so.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from parallel import Parallel, Plan, launch

sys.path.insert(0, str(Path(__file__).resolve().parent))

from accounting_predicted import MLP, MLP_PLAN, vit, vit_plan

Steps = Callable[[int], list[Tensor]]  # trains as many steps; this rank's losses, to be summed over ranks

LR, NORM = 1e-3, 1.0
NETS: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module], Plan], tuple[int, ...], int]] = {
    "mlp": (MLP, lambda _: MLP_PLAN, (16,), 512),
    "vit": (vit, vit_plan, (3, 32, 32), 32),
}


class Data:
    """Global batches out of tensors in memory, in order, over and over; and a rank's rows of each."""

    def __init__(self, p: Parallel, sample: tuple[int, ...], rows: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(16 * rows, *sample, generator=generator)
        self.y = torch.randint(0, 10, (16 * rows,), generator=generator)
        self.rows, self.share, self.rank = rows, rows // p.world_size, p.rank

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            for start in range(self.rank * self.share, len(self.x), self.rows):
                yield self.x[start : start + self.share], self.y[start : start + self.share]


def ours(p: Parallel, net: nn.Module, plan: Plan, data: Data) -> Steps:
    net = p.wrap(net, plan)
    opt = p.optimizer(net, torch.optim.AdamW, lr=LR, clip_norm=NORM)
    loader = p.loader((data.x, data.y), data.rows)
    batches = (batch for _ in iter(int, 1) for batch in loader)

    def steps(count: int) -> list[Tensor]:
        found = []
        for _ in range(count):
            batch = next(batches)
            for part in p.parts(batch):
                loss = F.cross_entropy(net(part.x), part.y, reduction="sum") / batch.size
                p.backward(loss, opt)
            p.step(opt)
            found.append(loss.detach())
        return found

    return steps


def plain(p: Parallel, net: nn.Module, plan: Plan, data: Data) -> Steps:
    """DistributedDataParallel, or fully_shard on each block and the whole, as their documentation shows."""
    wrapped = DistributedDataParallel(net) if p.spec == "ddp" else shard(net)
    opt = torch.optim.AdamW(wrapped.parameters(), lr=LR)
    batches = iter(data)

    def steps(count: int) -> list[Tensor]:
        found = []
        for _ in range(count):
            x, y = next(batches)
            loss = F.cross_entropy(wrapped(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(wrapped.parameters(), NORM)
            opt.step()
            opt.zero_grad()
            found.append(loss.detach() / p.world_size)
        return found

    return steps


def shard(net: nn.Module, mesh: Any = None) -> nn.Module:
    for block in net.blocks:  # type: ignore[union-attr]
        fully_shard(block, mesh=mesh)
    return fully_shard(net, mesh=mesh)  # type: ignore[return-value]


def fabric(p: Parallel, net: nn.Module, plan: Plan, data: Data) -> Steps:
    from lightning_fabric import Fabric
    from lightning_fabric.strategies import DDPStrategy, ModelParallelStrategy

    def sharded(net: nn.Module, mesh: Any) -> nn.Module:
        return shard(net, mesh["data_parallel"])

    ways = {
        "ddp": lambda: DDPStrategy(),
        "fsdp": lambda: ModelParallelStrategy(
            sharded, data_parallel_size=p.world_size, tensor_parallel_size=1
        ),
    }
    runner = Fabric(accelerator="cpu", devices=p.world_size, strategy=ways[p.spec]())
    runner.launch()
    if p.spec == "ddp":
        model, opt = runner.setup(net, torch.optim.AdamW(net.parameters(), lr=LR))
    else:  # parameters change when they are sharded, so the optimizer comes after
        model = runner.setup_module(net)
        opt = runner.setup_optimizers(torch.optim.AdamW(model.parameters(), lr=LR))
    batches = iter(data)

    def steps(count: int) -> list[Tensor]:
        found = []
        for _ in range(count):
            x, y = next(batches)
            loss = F.cross_entropy(model(x), y)
            runner.backward(loss)
            runner.clip_gradients(model, opt, max_norm=NORM)
            opt.step()
            opt.zero_grad()
            found.append(loss.detach() / p.world_size)
        return found

    return steps


def accelerate(p: Parallel, net: nn.Module, plan: Plan, data: Data) -> Steps:
    from accelerate import Accelerator

    runner = Accelerator(cpu=True)
    assert runner.num_processes == p.world_size, "Accelerate trains each rank alone"
    model, opt = runner.prepare(net, torch.optim.AdamW(net.parameters(), lr=LR))
    batches = iter(data)

    def steps(count: int) -> list[Tensor]:
        found = []
        for _ in range(count):
            x, y = next(batches)
            loss = F.cross_entropy(model(x), y)
            runner.backward(loss)
            runner.clip_grad_norm_(model.parameters(), NORM)
            opt.step()
            opt.zero_grad()
            found.append(loss.detach() / p.world_size)
        return found

    return steps


# Accelerate leaves FSDP out without a word on CPUs.
OTHERS = {
    "ddp": {"torch": plain, "lightning_fabric": fabric, "accelerate": accelerate},
    "fsdp": {"torch": plain, "lightning_fabric": fabric},
}


def race(p: Parallel, name: str, pairs: int, count: int) -> list[dict[str, Any]]:
    """A row for each of the others."""
    torch.set_num_threads(1)
    as_torchrun_would(p)
    build, plan_of, sample, rows = NETS[name]
    data = Data(p, sample, rows)

    def start(make: Callable[[Parallel, nn.Module, Plan, Data], Steps]) -> Steps:
        torch.manual_seed(0)
        net = build()
        return make(p, net, plan_of(net), data)

    def timed(steps: Steps) -> float:
        p.barrier()
        begun = time.perf_counter()
        steps(count)
        p.barrier()
        return time.perf_counter() - begun

    found = []
    for other, make in OTHERS[p.spec].items():
        if find_spec(other) is None:
            found.append({"net": name, "strategy": p.spec, "other": other, "missing": True})
            continue
        own, theirs = start(ours), start(make)
        want, got = (p.sum(torch.stack(steps(5))) for steps in (theirs, own))
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
        times = []
        for number in range(pairs):
            if number % 2:
                second = timed(theirs)
                times.append((timed(own), second))
            else:
                times.append((timed(own), timed(theirs)))
        ratios = sorted(mine / yours for mine, yours in times)
        found.append(
            {
                "net": name,
                "strategy": p.spec,
                "other": other,
                "ours_ms": 1e3 * statistics.median(mine for mine, _ in times) / count,
                "theirs_ms": 1e3 * statistics.median(yours for _, yours in times) / count,
                "ratio": statistics.median(ratios),
                "quartiles": [ratios[pairs // 4], ratios[-1 - pairs // 4]],
            }
        )
    return found


def as_torchrun_would(p: Parallel) -> None:
    """The libraries look for their place in the environment; the process group they find made."""
    os.environ |= {
        "RANK": str(p.rank),
        "WORLD_SIZE": str(p.world_size),
        "LOCAL_RANK": str(p.local_rank),
        "LOCAL_WORLD_SIZE": str(p.world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
        "TORCHELASTIC_RUN_ID": "benchmark",
        "GROUP_RANK": "0",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--steps", type=int, default=10, help="of a half of a pair")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    for spec in OTHERS:
        for name in NETS:
            for row in launch(race, spec, name, arguments.pairs, arguments.steps, nproc=arguments.ranks):
                print(json.dumps(row) if arguments.json else shown(row), flush=True)


def shown(row: dict[str, Any]) -> str:
    head = f"{row['net']:<5}{row['strategy']:<6}{row['other']:<18}"
    if "missing" in row:
        return f"{head}not installed"
    times = f"ours {row['ours_ms']:7.2f} ms  theirs {row['theirs_ms']:7.2f} ms"
    low, high = row["quartiles"]
    return f"{head}{times}  ratio {row['ratio']:.3f} (quartiles {low:.3f} to {high:.3f})"


if __name__ == "__main__":
    main()
