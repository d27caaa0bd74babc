"""Small training runs, each of which breaks some way of doing parallelism wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from parallel.batch import Batch
from parallel.interface import Parallel, StepInfo
from parallel.plan import Plan
from parallel.testing import nets
from parallel.testing.compare import Trace

Step = Callable[
    [Batch], tuple[Tensor, list[StepInfo]]
]  # this rank's share of the loss, and what the optimizers did


@dataclass(frozen=True)
class Case:
    """One small run.

    Attributes:
        build: makes nets and optimizers, and gives the function of one global batch.
        data: the data set, a nest of tensors.
        batchnorm: normalises by the batch, so that parts and ``dp`` refuse it.
    """

    name: str
    build: Callable[[Parallel], tuple[Step, Callable[[], dict[str, Tensor]]]]
    data: Callable[[], Any]
    batchnorm: bool = False


def run_case(p: Parallel, name: str, steps: int = 20, batch_size: int = 10) -> Trace:
    """Trains a case for some global batches; the trace is rank 0's, its losses those of the whole batch."""
    case = CASES[name]
    torch.manual_seed(p.rank)  # all must start from rank 0's weights
    step, weights = case.build(p)
    data = p.loader(case.data(), batch_size, shuffle=True, seed=5)
    trace = Trace()
    while len(trace.losses) < steps:
        for batch in data:
            loss, infos = step(batch)
            trace.losses.append(float(p.sum(loss)))
            trace.norms += [float(info.grad_norm) for info in infos]
            trace.lrs += [info.lr for info in infos]
            if len(trace.losses) == steps:
                break
    trace.weights = weights()
    return trace


def _rows(*shape: int, seed: int) -> Tensor:
    return torch.randn(37, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _regression(width: int = 6) -> tuple[Tensor, Tensor]:
    return _rows(width, seed=1), _rows(1, seed=2)


def _plain(
    p: Parallel,
    net: nn.Module,
    plan: Plan,
    loss_of: Callable[[nn.Module, Batch], Tensor],
    optimizer: Any,
    **options: Any,
) -> tuple[Step, Callable[[], dict[str, Tensor]]]:
    """One net, one optimizer, the loop of the contract."""
    net = p.wrap(net, plan)
    opt = p.optimizer(net, optimizer, **options)
    ema = p.ema(net, decay=0.9)

    def step(batch: Batch) -> tuple[Tensor, list[StepInfo]]:
        total = torch.zeros((), device=p.device)
        for part in p.parts(batch):
            with p.autocast():
                losses = loss_of(net, part)
            loss = (
                losses.float().sum() / batch.size
                if losses.dtype != torch.float64
                else losses.sum() / batch.size
            )
            p.backward(loss, opt)
            total = total + loss.detach()
        return total, [p.step(opt)]

    def weights() -> dict[str, Tensor]:
        state = p.state_dict(net)
        with ema.applied():
            return state | {f"ema.{name}": value for name, value in p.state_dict(net).items()}

    return step, weights


def _squared(net: nn.Module, part: Batch) -> Tensor:
    return (net(part.x) - part.y).square().sum(1)


def _no_decay(name: str, parameter: nn.Parameter) -> dict[str, float]:
    return {"weight_decay": 0.0} if name.endswith("bias") else {}


def _mlp(p: Parallel) -> tuple[Step, Callable[[], dict[str, Tensor]]]:
    options = {"lr": 1e-2, "groups": _no_decay, "schedule": lambda step: 1.0 / (1 + step), "clip_norm": 0.5}
    return _plain(p, nets.MLP(), nets.MLP_PLAN, _squared, torch.optim.AdamW, **options)


def _short_bias(p: Parallel) -> tuple[Step, Callable[[], dict[str, Tensor]]]:
    return _plain(
        p, nets.ShortBias(), nets.SHORT_BIAS_PLAN, _squared, torch.optim.Adam, lr=1e-2, clip_norm=1.0
    )


def _dropout(p: Parallel) -> tuple[Step, Callable[[], dict[str, Tensor]]]:
    def l2(name: str, parameter: nn.Parameter) -> dict[str, float] | None:
        return {"l2": 0.01} if name.endswith("weight") else None

    def loss(net: nn.Module, part: Batch) -> Tensor:
        return (net(part.x + 0.1 * part.noise("input", (6,))) - part.y).square().sum(1)

    options = {"lr": 1e-3, "alpha": 0.9, "eps": 1e-7, "clip_norm": 1.0, "groups": l2}
    return _plain(p, nets.Dropped(), nets.DROPPED_PLAN, loss, torch.optim.RMSprop, **options)


def _conv(p: Parallel) -> tuple[Step, Callable[[], dict[str, Tensor]]]:
    def loss(net: nn.Module, part: Batch) -> Tensor:
        return F.cross_entropy(net(part["image"]), part["label"], reduction="none")

    return _plain(
        p, nets.ConvNet(), nets.CONV_PLAN, loss, torch.optim.SGD, lr=0.05, momentum=0.9, clip_norm=1.0
    )


def _tied(p: Parallel) -> tuple[Step, Callable[[], dict[str, Tensor]]]:
    def loss(net: nn.Module, part: Batch) -> Tensor:
        return (
            F.cross_entropy(net(part.x).flatten(0, 1), part.y.flatten(), reduction="none")
            .view(len(part), 5)
            .sum(1)
        )

    return _plain(p, nets.Tied(), nets.TIED_PLAN, loss, torch.optim.Adam, lr=1e-2)


def _attention(p: Parallel) -> tuple[Step, Callable[[], dict[str, Tensor]]]:
    def loss(net: nn.Module, part: Batch) -> Tensor:
        return F.cross_entropy(net(part.x), part.y, reduction="none")

    return _plain(
        p, nets.Transformer(), nets.TRANSFORMER_PLAN, loss, torch.optim.AdamW, lr=1e-3, clip_norm=1.0
    )


def _branch(p: Parallel) -> tuple[Step, Callable[[], dict[str, Tensor]]]:
    def loss(net: nn.Module, part: Batch) -> Tensor:
        return (net(part.x, part.step % 3 == 1) - part.y).square().sum(1)

    return _plain(p, nets.Branched(), nets.BRANCHED_PLAN, loss, torch.optim.Adam, lr=1e-2, clip_norm=1.0)


def _forwards(p: Parallel) -> tuple[Step, Callable[[], dict[str, Tensor]]]:
    """Two forwards, one by a method of another name, before two backwards of one part."""
    net = p.wrap(nets.MLP(), nets.MLP_PLAN)
    opt = p.optimizer(net, torch.optim.Adam, lr=1e-2)

    def step(batch: Batch) -> tuple[Tensor, list[StepInfo]]:
        total = torch.zeros((), device=p.device)
        for part in p.parts(batch):
            with p.autocast():
                first = (net(part.x) - part.y).square().sum() / batch.size
                second = net.score(-part.x).square().sum() / batch.size  # type: ignore[operator]
            p.backward(first, opt)
            p.backward(second, opt)
            total = total + first.detach() + second.detach()
        return total, [p.step(opt)]

    return step, lambda: p.state_dict(net)


def _gan(p: Parallel) -> tuple[Step, Callable[[], dict[str, Tensor]]]:
    """Two nets, two optimizers, spectral norm, a frozen discriminator, an average of the generator.

    Not the hinge loss: while no row has reached its margin, the last bias has a true gradient of zero, and Adam would
    divide rounding by rounding.
    """
    g = p.wrap(nets.Generator(), nets.GENERATOR_PLAN)
    d = p.wrap(nets.Discriminator(), nets.DISCRIMINATOR_PLAN)
    g_opt = p.optimizer(g, torch.optim.Adam, lr=1e-3, betas=(0.0, 0.9))
    d_opt = p.optimizer(d, torch.optim.Adam, lr=4e-3, betas=(0.0, 0.9), clip_norm=1.0)
    ema = p.ema(g, decay=0.9)

    def step(batch: Batch) -> tuple[Tensor, list[StepInfo]]:
        total = torch.zeros((), device=p.device)
        for part in p.parts(batch):
            with p.autocast():
                with torch.no_grad():
                    fake = g(part.noise("z", (4,)))
                real_loss = F.softplus(-d(part.data)).sum() / batch.size
                fake_loss = F.softplus(d(fake)).sum() / batch.size
            p.backward(real_loss + fake_loss, d_opt)
            total = total + (real_loss + fake_loss).detach()
        infos = [p.step(d_opt)]
        with p.frozen(d):
            for part in p.parts(batch):
                with p.autocast():
                    loss = -d(g(part.noise("z2", (4,)))).sum() / batch.size
                p.backward(loss, g_opt)
                total = total + loss.detach()
            infos.append(p.step(g_opt))
        return total, infos

    def weights() -> dict[str, Tensor]:
        state = {f"d.{name}": value for name, value in p.state_dict(d).items()}
        state |= {f"g.{name}": value for name, value in p.state_dict(g).items()}
        with ema.applied():
            return state | {f"ema.{name}": value for name, value in p.state_dict(g).items()}

    return step, weights


def _images() -> dict[str, Tensor]:
    return {"image": _rows(3, 8, 8, seed=3), "label": torch.arange(37) % 5}


def _tokens() -> tuple[Tensor, Tensor]:
    tokens = torch.randint(0, 16, (37, 6), generator=torch.Generator().manual_seed(4))
    return tokens[:, :-1], tokens[:, 1:]


def _sequences() -> tuple[Tensor, Tensor]:
    return _rows(5, 48, seed=6), torch.arange(37) % 3


CASES: dict[str, Case] = {
    case.name: case
    for case in (
        Case("mlp", _mlp, _regression),
        Case("short-bias", _short_bias, _regression),
        Case("dropout", _dropout, _regression),
        Case("conv-batchnorm", _conv, _images, batchnorm=True),
        Case("tied", _tied, _tokens),
        Case("attention", _attention, _sequences),
        Case("branch", _branch, _regression),
        Case("forwards", _forwards, _regression),
        Case("gan", _gan, lambda: _rows(8, seed=7)),
    )
}
