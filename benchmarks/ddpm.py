"""The toy DDPM against loops without a trainer, in one run on one thread.

    python benchmarks/ddpm.py [--pairs 15] [--steps 20] [--samples 2000] [--sampling-pairs 3] [--json]

Training: our trainer under ``single``; a lean hand-written loop that indexes batches from a tensor; and a DataLoader that
collates single samples, as the published toy does. Sampling: our sampler against the bare network calls it makes.
Ratios are medians over interleaved pairs, since times of one process differ by a third from minute to minute.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import parallel
from parallel.interface import Parallel
from zoo.models.ddpm.config import DDPMConfig, DDPMSampleConfig
from zoo.models.ddpm.diffusion import Diffusion
from zoo.models.ddpm.model import DenoisingMLP
from zoo.models.ddpm.schedule import make_schedule
from zoo.models.ddpm.trainer import DDPMTrainer
from zoo.trainer import evaluating
from zoo_datasets import ascending_descending, toy_vectors

BATCH, T, DECAY, LR = 1024, 1000, 0.995, 2e-3


class Lean:
    """The same training by hand: Adam, an average of the weights, noise from torch's generator."""

    def __init__(self) -> None:
        self.net = DenoisingMLP()
        self.average = [parameter.detach().clone() for parameter in self.net.parameters()]
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=LR)
        self.diffusion = Diffusion(make_schedule("linear", T))
        self.patterns = torch.from_numpy(ascending_descending() / 3.5 - 1)

    def train(self, batches: Iterator[Tensor], steps: int) -> None:
        for _ in range(steps):
            x0 = next(batches)
            t = torch.randint(T, (len(x0),))
            loss = self.diffusion.simple_loss(self.net, x0, t, torch.randn_like(x0)).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            with torch.no_grad():
                torch._foreach_lerp_(self.average, list(self.net.parameters()), 1 - DECAY)

    def indexed(self) -> Iterator[Tensor]:
        while True:
            yield self.patterns[torch.randint(len(self.patterns), (BATCH,))]


class Single(Dataset[Tensor]):
    """One vector at a time."""

    def __init__(self, rows: int) -> None:
        self.x = torch.from_numpy(toy_vectors(rows, seed=0) / 3.5 - 1)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Tensor:
        return self.x[index]


def collated() -> Iterator[Tensor]:
    loader = DataLoader(Single(20 * BATCH), BATCH, shuffle=True)
    while True:
        yield from loader


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def median_ratio(
    ours: Callable[[], object], theirs: Callable[[], object], pairs: int
) -> tuple[float, float, float]:
    """Median over pairs of (their time / our time), and the median seconds of each; the order turns each time."""
    ours(), theirs()
    times: list[tuple[float, float]] = []
    for pair in range(pairs):
        if pair % 2:
            second = timed(theirs)
            times.append((timed(ours), second))
        else:
            times.append((timed(ours), timed(theirs)))
    ratio = statistics.median(b / a for a, b in times)
    return ratio, statistics.median(a for a, _ in times), statistics.median(b for _, b in times)


def main(p: Parallel, options: argparse.Namespace) -> dict[str, float]:
    trainer = DDPMTrainer(p, DDPMConfig(lr=LR, ema=DECAY, batch_size=BATCH, eval_samples=0))
    trainer.build()

    def batches() -> Iterator[object]:
        while True:
            yield from trainer.train

    stream = batches()

    def ours() -> None:
        for _ in range(options.steps):
            trainer.step(next(stream))  # type: ignore[arg-type]

    lean, published = Lean(), Lean()
    indexed, singles = lean.indexed(), collated()
    by_hand, our_time, lean_time = median_ratio(
        ours, lambda: lean.train(indexed, options.steps), options.pairs
    )
    by_loader, _, _ = median_ratio(
        ours, lambda: published.train(singles, options.steps), max(3, options.pairs // 3)
    )

    def our_batches() -> None:
        for _ in range(options.steps):
            next(stream)

    def their_batches() -> None:
        for _ in range(options.steps):
            next(singles)

    drawn, _, _ = median_ratio(our_batches, their_batches, max(3, options.pairs // 3))

    net = trainer.models["net"]
    times = torch.arange(T - 1, -1, -1)

    @torch.no_grad()
    def bare() -> None:
        x = torch.randn(options.samples, 4)
        for t in times:
            x = x - 1e-3 * net(x, t.expand(len(x)))

    with evaluating(trainer):
        sampled, sample_time, bare_time = median_ratio(
            lambda: trainer.sample(DDPMSampleConfig(run="", n=options.samples)), bare, options.sampling_pairs
        )
    return {
        "our_ms_a_step": 1e3 * our_time / options.steps,
        "lean_ms_a_step": 1e3 * lean_time / options.steps,
        "steps_a_second_against_lean_loop": by_hand,
        "steps_a_second_against_dataloader": by_loader,
        "batches_a_second_against_dataloader": drawn,
        "sampling_s": sample_time,
        "bare_calls_s": bare_time,
        "sampling_time_against_bare_calls": 1.0 / sampled,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--sampling-pairs", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    result = parallel.launch(main, "single", given)
    if given.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:<36}{value:10.3f}")
