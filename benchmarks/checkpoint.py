"""Time to save and load a model with Adam, against torch.save and torch.load of the same state, in one run.

python benchmarks/checkpoint.py --folder /tmp/checkpoints        # 300 M parameters on 2 ranks: 20 GB of memory, 8 of disk

The peer is what a plain DDP script does: rank 0 saves everything with ``torch.save``, flushes the file to the disk and
takes its SHA-256; every rank loads all of it with ``torch.load`` and hands the state to the model and the optimizer, first
without a look at the checksum, then once rank 0 has compared it, as ours always does, each rank a share. A ratio below 1 is
in our favour.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from parallel import Parallel, launch
from parallel.checkpoint.disk import checksum

WIDTH = 2048


def measure(p: Parallel, layers: int, rounds: int, folder: Path) -> dict[str, list[float]]:
    """Seconds of each round by what was timed, of the slowest rank."""
    net = p.wrap(nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(layers))))
    opt = p.optimizer(net, torch.optim.Adam, lr=1e-3)
    generator = torch.Generator().manual_seed(p.rank)
    for slot in opt.slots:
        moments = {
            key: torch.rand(slot.shard.shape, generator=generator) for key in ("exp_avg", "exp_avg_sq")
        }
        opt.inner.state[slot.shard] = {"step": torch.tensor(1.0), **moments}
    plain = {"net": net, "optimizer": opt.inner}
    ours = {"models": {"net": net}, "optimizers": {"net": opt}}
    times: dict[str, list[float]] = {}
    sums: list[str] = []

    def clock(name: str, action: Callable[[], object]) -> None:
        p.barrier()
        begun = time.perf_counter()
        action()
        own = time.perf_counter() - begun
        spent = p.gather(torch.tensor([own]), torch.tensor([p.rank]))
        times.setdefault(name, []).append(float(spent.max()))

    for number in range(rounds):
        file, checkpoint, later = (folder / f"{name}-{number}" for name in ("plain", "ours", "later"))
        clock("torch.save", lambda: sums.append(save_plainly(plain, file)) if p.is_main else None)  # noqa: B023
        clock("p.save", lambda: p.save(checkpoint, **ours))  # noqa: B023
        clock("torch.load", lambda: load_plainly(plain, file))  # noqa: B023
        clock("p.load", lambda: p.load(checkpoint, **ours))  # noqa: B023
        clock("checked torch.load", lambda: load_checked(p, plain, file, sums))  # noqa: B023
        clock("background: wait", lambda: p.save(later, **ours, background=True))  # noqa: B023
        clock("background: rest", p.wait_for_saves)
        if p.is_main:
            file.unlink()
            shutil.rmtree(checkpoint)
            shutil.rmtree(later)
    return times


def save_plainly(parts: dict[str, nn.Module | torch.optim.Optimizer], file: Path) -> str:
    with file.open("wb") as opened:
        torch.save({name: part.state_dict() for name, part in parts.items()}, opened)
        opened.flush()
        os.fsync(opened.fileno())
    return digest(file)


def digest(file: Path) -> str:
    return checksum(file).xxh128


def load_plainly(parts: dict[str, nn.Module | torch.optim.Optimizer], file: Path) -> None:
    state = torch.load(file, weights_only=True)
    for name, part in parts.items():
        part.load_state_dict(state[name])


def load_checked(
    p: Parallel, parts: dict[str, nn.Module | torch.optim.Optimizer], file: Path, sums: list[str]
) -> None:
    if p.is_main and digest(file) != sums[-1]:
        raise ValueError(f"{file}: damaged")
    p.barrier()
    load_plainly(parts, file)


def main() -> None:
    parser = argparse.ArgumentParser(description="Time to save and load, against torch.save and torch.load.")
    parser.add_argument(
        "--folder", type=Path, required=True, help="on the disk to measure; holds twice the state"
    )
    parser.add_argument("--millions", type=int, default=300, help="parameters")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--parallel", default="ddp", choices=("single", "ddp"))
    parser.add_argument("--nproc", type=int, default=2)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    layers = max(1, options.millions * 10**6 // (WIDTH * (WIDTH + 1)))
    arguments = (layers, options.rounds, options.folder)
    times = launch(measure, options.parallel, *arguments, nproc=options.nproc)
    middle = {name: statistics.median(found) for name, found in times.items()}
    print(
        f"{layers * WIDTH * (WIDTH + 1) / 1e6:.0f} M parameters, Adam, {options.parallel} on {options.nproc} ranks"
    )
    for name, found in times.items():
        print(f"{name:<18} {middle[name]:7.2f} s   ({', '.join(f'{value:.2f}' for value in found)})")
    for ours, theirs in (("save", "torch.save"), ("load", "torch.load"), ("load", "checked torch.load")):
        print(f"{ours}: {middle[f'p.{ours}'] / middle[theirs]:.2f} of {theirs}")
    print(f"the loop waits {middle['background: wait']:.2f} s for a save in the background")


if __name__ == "__main__":
    main()
