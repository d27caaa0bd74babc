"""What the ranks of DeepSpeed's tests do."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from case_run import Run
from torch import Tensor, nn
from torch.nn import functional as F

from parallel.errors import ParallelError
from parallel.interface import Parallel
from parallel.optimizer import Scaler
from parallel.testing import CASES, Trace, nets, run_case


def save_midway(p: Parallel, name: str, folder: Path, steps: int, more: int) -> list[list[float]]:
    """What the steps after the save gave."""
    run = Run(p, name)
    run.train(steps)
    p.save(folder, **run.parts)
    return run.train(more)


def load_midway(p: Parallel, name: str, folder: Path, more: int) -> list[list[float]]:
    run = Run(p, name, seed=99)  # other weights, which loading must replace
    p.load(folder, **run.parts)
    return run.train(more)


def low(p: Parallel, case: str) -> Trace:
    """Starts fp16 at a loss scale where no half overflows: where one does depends on a share's rows."""
    with mock.patch("parallel.strategy.Scaler", partial(Scaler, scale=256.0)):
        return run_case(p, case, 4)


class Strange(nn.Module):
    """Uses parameters of its own, of another module, and by a method of another name."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.linspace(-1.0, 1.0, 6))
        self.first = nn.Linear(6, 7)
        self.second = nn.Linear(7, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x + self.shift))) + self.first.bias.sum()

    def encode(self, x: Tensor) -> Tensor:
        return F.linear(x + self.shift, self.first.weight) * self.second.weight


def strange(p: Parallel, steps: int = 6) -> list[float]:
    torch.manual_seed(p.rank)
    net = p.wrap(Strange())
    ema = p.ema(net, decay=0.5)  # before the optimizer, which moves the weights
    opt = p.optimizer(net, torch.optim.Adam, lr=1e-2)
    numbers = []
    for batch in p.loader(CASES["mlp"].data(), 10):
        for part in p.parts(batch):
            loss = ((net(part.x) - part.y).square().sum() + net.encode(part.x).square().sum()) / batch.size
            p.backward(loss, opt)
        numbers.append(float(p.step(opt).grad_norm))
    with ema.applied():
        numbers += [float(value.norm()) for _, value in sorted(p.state_dict(net).items()) or []]
    return numbers[:steps] if not p.is_main else numbers


def two_ways_to_write(p: Parallel) -> list[float]:
    """Weights loaded and written by hand between steps are those that are stepped."""
    torch.manual_seed(p.rank)
    net = p.wrap(nets.MLP())
    opt = p.optimizer(net, torch.optim.SGD, lr=0.1)
    state = p.state_dict(net)
    numbers = []
    for number, batch in enumerate(p.loader(CASES["mlp"].data(), 10)):
        for part in p.parts(batch):
            loss = (net(part.x) - part.y).square().sum() / batch.size
            p.backward(loss, opt)
            numbers.append(float(p.sum(loss)))
        p.step(opt)
        if number == 1:
            p.load_state_dict(net, state)
    return numbers


def not_frozen(p: Parallel) -> list[float]:
    """A loss that runs through another optimizer's net, which is not frozen, leaves it alone; and NaN goes in."""
    torch.manual_seed(p.rank)
    g, d = p.wrap(nets.MLP()), p.wrap(nets.Block(1, 12))
    g_opt = p.optimizer(g, torch.optim.Adam, lr=1e-2)
    d_opt = p.optimizer(d, torch.optim.Adam, lr=1e-2, clip_norm=0.1)
    numbers = []
    for batch in p.loader(CASES["mlp"].data(), 10):
        for opt, sign in ((d_opt, 1.0), (g_opt, -1.0)):
            for part in p.parts(batch):
                p.backward(F.softplus(sign * d(g(part.x))).sum() / batch.size, opt)
            numbers.append(float(p.step(opt).grad_norm))
    return numbers


def poisoned(p: Parallel) -> list[bool]:
    """Whether steps were left out, and the weights are finite, after a gradient that is not."""
    torch.manual_seed(p.rank)
    net = p.wrap(nets.MLP())
    opt = p.optimizer(net, torch.optim.SGD, lr=0.1)
    said = []
    for number, batch in enumerate(p.loader(CASES["mlp"].data(), 10)):
        for part in p.parts(batch):
            p.backward((net(part.x) - part.y).square().sum() * (float("nan") if number == 1 else 1.0), opt)
        said.append(p.step(opt).skipped)
    weights = p.state_dict(net)
    return [*said, all(bool(torch.isfinite(weight).all()) for weight in weights.values())]


def accounts(p: Parallel) -> dict[str, Any]:
    """Memory after two steps of two parts, and the collectives of the second."""
    torch.manual_seed(p.rank)
    net = p.wrap(nets.MLP())
    opt = p.optimizer(net, torch.optim.Adam, lr=1e-2)
    counted = None
    for number, batch in enumerate(p.loader(CASES["mlp"].data(), 10)):
        with p.traffic() as traffic:
            for part in p.parts(batch):
                p.backward((net(part.x) - part.y).square().sum() / batch.size, opt)
            p.step(opt)
        counted = traffic
        if number == 1:
            break
    assert counted is not None
    return {
        "memory": p.memory_per_rank(),
        "numbers": sum(weight.numel() for weight in nets.MLP().parameters()),
        "calls": counted.calls,
        "bytes": counted.bytes,
    }


def environment(p: Parallel) -> list[str]:
    """Variables that a run has added, changed or taken away, seen from within."""
    before = dict(os.environ)
    net = p.wrap(nets.MLP())
    p.optimizer(net, torch.optim.SGD, lr=0.1)
    return [name for name in before.keys() | os.environ.keys() if before.get(name) != os.environ.get(name)]


def refused(p: Parallel, what: str) -> str:
    """What the strategy said, or nothing."""
    try:
        net = p.wrap(nets.MLP())
        p.optimizer(net, torch.optim.Adafactor if what == "optimizer" else torch.optim.SGD, lr=0.1)
        if what == "twice":
            p.optimizer(net, torch.optim.SGD, lr=0.1)
    except ParallelError as error:
        return str(error)
    return ""


def nothing(p: Parallel) -> str:
    return p.spec
