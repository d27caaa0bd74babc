"""One process is itself right: the reference of all other tests against loops in plain torch, without this package."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from pool import Pool
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from parallel.batch import map_nest
from parallel.interface import Parallel
from parallel.loader import Loader
from parallel.plan import Plan
from parallel.testing import CASES, Trace, differences, nets, run_case

STEPS = 12  # of four batches an epoch


def batches(name: str, steps: int = STEPS) -> Iterator[Any]:
    """The rows of each batch, by the order that the loader says it takes."""
    data = map_nest(lambda t: t.double() if t.is_floating_point() else t, CASES[name].data())
    loader = Loader(
        data, 10, rank=0, size=1, move=lambda nest: nest, device=torch.device("cpu"), shuffle=True, seed=5
    )
    for step in range(steps):
        epoch, number = divmod(step, len(loader))
        rows = loader.order(epoch)[number * 10 : number * 10 + 10]
        yield map_nest(lambda t: t[rows], data)  # noqa: B023


def held(net: nn.Module, average: AveragedModel | None = None) -> dict[str, Tensor]:
    state = {name: value.detach().clone() for name, value in net.state_dict().items()}
    if average is not None:
        state |= {f"ema.{name}": value for name, value in average.module.state_dict().items()}
    return state


def averaging(net: nn.Module) -> AveragedModel:
    average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    average.update_parameters(net)  # the first only copies
    return average


def plain_mlp() -> Trace:
    """AdamW without decay on biases, a schedule, clipping, an average."""
    torch.manual_seed(0)
    net = nets.MLP().double()
    named = list(net.named_parameters())
    groups: list[dict[str, Any]] = [
        {"params": [w for name, w in named if not name.endswith("bias")]},
        {"params": [w for name, w in named if name.endswith("bias")], "weight_decay": 0.0},
    ]
    opt = torch.optim.AdamW(groups, lr=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda step: 1.0 / (1 + step))
    average = averaging(net)
    trace = Trace()
    for x, y in batches("mlp"):
        loss = (net(x) - y).square().sum(1).mean()
        opt.zero_grad()
        loss.backward()
        trace.norms.append(float(clip_grad_norm_(net.parameters(), 0.5)))
        trace.lrs.append(opt.param_groups[0]["lr"])
        opt.step()
        schedule.step()
        average.update_parameters(net)
        trace.losses.append(float(loss.detach()))
    trace.weights = held(net, average)
    return trace


def plain_tied() -> Trace:
    torch.manual_seed(0)
    net = nets.Tied().double()
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    average = averaging(net)
    trace = Trace()
    for tokens, targets in batches("tied"):
        loss = F.cross_entropy(net(tokens).flatten(0, 1), targets.flatten(), reduction="sum") / len(tokens)
        opt.zero_grad()
        loss.backward()
        trace.norms.append(float(clip_grad_norm_(net.parameters(), float("inf"))))
        trace.lrs.append(1e-2)
        opt.step()
        average.update_parameters(net)
        trace.losses.append(float(loss.detach()))
    trace.weights = held(net, average)
    return trace


def plain_forwards() -> Trace:
    torch.manual_seed(0)
    net = nets.MLP().double()
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    trace = Trace()
    for x, y in batches("forwards"):
        loss = ((net(x) - y).square().sum() + net.score(-x).square().sum()) / len(x)
        opt.zero_grad()
        loss.backward()
        trace.norms.append(float(clip_grad_norm_(net.parameters(), float("inf"))))
        trace.lrs.append(1e-2)
        opt.step()
        trace.losses.append(float(loss.detach()))
    trace.weights = held(net)
    return trace


@pytest.mark.parametrize("parts", [1, 2, 5])
@pytest.mark.parametrize("plain", [plain_mlp, plain_tied, plain_forwards], ids=lambda plain: plain.__name__)
def test_a_case_is_what_plain_torch_makes_of_it(plain: Any, parts: int, ranks: Pool) -> None:
    case = plain.__name__.removeprefix("plain_")
    got = ranks.run(run_case, "single", 1, case, STEPS, precision="fp64", accumulate=parts)[0]
    assert not differences(plain(), got, "fp64")


# Two nets and two optimizers: each net's gradients are those of its own loss alone.


def _pair(p: Parallel, frozen: bool) -> Trace:
    """A GAN without random draws, that freezes the other net or lets the backward run through it."""
    torch.manual_seed(0)
    g = p.wrap(nets.MLP(), nets.MLP_PLAN)
    d = p.wrap(nets.Block(1, 12), Plan())
    g_opt = p.optimizer(g, torch.optim.Adam, lr=1e-2)
    d_opt = p.optimizer(d, torch.optim.Adam, lr=1e-2, clip_norm=0.1)
    trace = Trace()
    for batch in p.loader(CASES["mlp"].data(), 10, shuffle=True, seed=5):
        for own, opt, other, sign in ((d, d_opt, g, 1.0), (g, g_opt, d, -1.0)):
            total = torch.zeros(())
            for part in p.parts(batch):
                if frozen:
                    with p.frozen(other):
                        loss = F.softplus(sign * d(g(part.x))).sum() / batch.size
                        p.backward(loss, opt)
                else:
                    loss = F.softplus(sign * d(g(part.x))).sum() / batch.size
                    p.backward(loss, opt)
                total = total + loss.detach()
            trace.losses.append(float(total))
            trace.norms.append(float(p.step(opt).grad_norm))
            assert all(weight.grad is None for net in (own, other) for weight in net.parameters())
    trace.weights = {f"g.{k}": v for k, v in p.state_dict(g).items()} | {
        f"d.{k}": v for k, v in p.state_dict(d).items()
    }
    return trace


def plain_pair() -> Trace:
    torch.manual_seed(0)
    g, d = nets.MLP().double(), nets.Block(1, 12).double()
    opts = {net: torch.optim.Adam(net.parameters(), lr=1e-2) for net in (g, d)}
    trace = Trace()
    for x, _ in batches("mlp", 4):
        for net, sign, limit in ((d, 1.0, 0.1), (g, -1.0, float("inf"))):
            loss = F.softplus(sign * d(g(x))).mean()
            weights = list(net.parameters())
            for weight, grad in zip(weights, torch.autograd.grad(loss, weights), strict=True):
                weight.grad = grad
            trace.losses.append(float(loss.detach()))
            trace.norms.append(float(clip_grad_norm_(weights, limit)))
            opts[net].step()
    trace.weights = {f"g.{k}": v for k, v in g.state_dict().items()} | {
        f"d.{k}": v for k, v in d.state_dict().items()
    }
    return trace


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("parts", [1, 2])
def test_two_optimizers_are_what_plain_torch_makes_of_them(frozen: bool, parts: int, ranks: Pool) -> None:
    got = ranks.run(_pair, "single", 1, frozen, precision="fp64", accumulate=parts)[0]
    assert not differences(plain_pair(), got, "fp64")


# l2, which is added to the gradient before its norm is taken


def _decayed(p: Parallel) -> Trace:
    torch.manual_seed(0)
    net = p.wrap(nets.MLP())
    opt = p.optimizer(
        net,
        torch.optim.RMSprop,
        lr=1e-3,
        clip_norm=1.0,
        groups=lambda name, weight: {"l2": 0.01} if name == "head.weight" else {"lr": 5e-3},
    )
    trace = Trace()
    for batch in p.loader(CASES["mlp"].data(), 10, shuffle=True, seed=5):
        for part in p.parts(batch):
            p.backward((net(part.x) - part.y).square().sum() / batch.size, opt)
        trace.norms.append(float(p.step(opt).grad_norm))
    trace.weights = p.state_dict(net)
    return trace


def plain_decayed() -> Trace:
    torch.manual_seed(0)
    net = nets.MLP().double()
    others = [weight for name, weight in net.named_parameters() if name != "head.weight"]
    groups: list[dict[str, Any]] = [{"params": [net.head.weight]}, {"params": others, "lr": 5e-3}]
    opt = torch.optim.RMSprop(groups, lr=1e-3)
    trace = Trace()
    for x, y in batches("mlp", 4):
        loss = (net(x) - y).square().mean() + 0.01 * net.head.weight.square().sum()
        opt.zero_grad()
        loss.backward()
        trace.norms.append(float(clip_grad_norm_(net.parameters(), 1.0)))
        opt.step()
    trace.weights = held(net)
    return trace


def test_l2_is_a_term_of_the_loss(ranks: Pool) -> None:
    got = ranks.run(_decayed, "single", 1, precision="fp64", accumulate=2)[0]
    assert not differences(plain_decayed(), got, "fp64")
