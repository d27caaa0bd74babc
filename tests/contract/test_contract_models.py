"""Guarantee 3: several models and optimizers are ordinary, frozen means frozen, and misuse has a name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from contract_matrix import ONE_EACH, Layout
from contract_runs import noise, same, train
from pool import Pool
from torch import Tensor
from torch.nn import functional as F

from parallel.batch import Batch
from parallel.errors import ParallelError
from parallel.interface import Parallel
from parallel.plan import Plan
from parallel.testing import Trace, nets

EACH = pytest.mark.parametrize("layout", ONE_EACH, ids=lambda layout: layout.spec)
SHARED = [layout for layout in ONE_EACH if layout.spec != "dp"]  # those whose BatchNorm equals one process's


# A backward through several nets


def _entangled(p: Parallel, steps: int) -> Trace:
    """A GAN that neither freezes nor detaches anything: each backward runs through both nets."""
    torch.manual_seed(p.rank)
    g = p.wrap(nets.Generator(), nets.GENERATOR_PLAN)
    d = p.wrap(nets.Discriminator(), nets.DISCRIMINATOR_PLAN)
    g_opt = p.optimizer(g, torch.optim.Adam, lr=1e-3)
    d_opt = p.optimizer(d, torch.optim.Adam, lr=1e-3, clip_norm=1.0)

    def step(batch: Batch, trace: Trace) -> Tensor:
        total = torch.zeros(())
        for opt, sign in ((d_opt, 1.0), (g_opt, -1.0)):
            for part in p.parts(batch):
                loss = F.softplus(sign * d(g(part.noise(f"z{sign}", (4,))))).sum() / batch.size
                p.backward(loss, opt)
                total = total + loss.detach()
            trace.norms.append(float(p.step(opt).grad_norm))
        return total

    return train(p, noise(8), steps, step, {"g": g, "d": d})


@EACH
@pytest.mark.parametrize("parts", [1, 2])
def test_a_backward_leaves_the_other_nets_gradients_alone(layout: Layout, parts: int, ranks: Pool) -> None:
    same(layout.with_parts(parts), ranks, _entangled, 4)


def _mixed(p: Parallel) -> str:
    g, d = (
        p.wrap(nets.Generator(), nets.GENERATOR_PLAN),
        p.wrap(nets.Discriminator(), nets.DISCRIMINATOR_PLAN),
    )
    g_opt, d_opt = (p.optimizer(net, torch.optim.SGD, lr=0.1) for net in (g, d))
    for batch in p.loader(torch.ones(12, 4), 12):
        for part in p.parts(batch):
            p.backward(d(g(part.data)).sum() / batch.size, d_opt)
            try:
                p.backward(d(g(part.data)).sum() / batch.size, g_opt)
            except ParallelError as error:
                return str(error)
    return ""


@EACH
def test_gradients_of_another_optimizer_that_wait_are_refused_by_name(layout: Layout, ranks: Pool) -> None:
    for said in layout.run(ranks, _mixed):
        assert said.startswith("Discriminator has gradients that no p.step has used yet")
        assert "p.frozen" in said


def _one_owner(p: Parallel, steps: int) -> Trace:
    """One optimizer over an encoder and a decoder; a third net, wrapped and not stepped, between."""
    torch.manual_seed(p.rank)
    plan = Plan(tensor={"up": "column", "down": "row"})
    encoder, decoder = (p.wrap(nets.Block(8, 48), plan) for _ in range(2))
    fixed = p.wrap(nets.Block(8, 24).requires_grad_(False), plan)
    opt = p.optimizer([encoder, decoder], torch.optim.AdamW, lr=1e-2, clip_norm=0.5)

    def step(batch: Batch, trace: Trace) -> Tensor:
        total = torch.zeros(())
        for part in p.parts(batch):
            loss = (decoder(fixed(encoder(part.data))) - part.data).square().sum() / batch.size
            p.backward(loss, opt)
            total = total + loss.detach()
        trace.norms.append(float(p.step(opt).grad_norm))
        return total

    before = p.state_dict(fixed)
    trace = train(p, noise(8), steps, step, {"encoder": encoder, "decoder": decoder})
    after = p.state_dict(fixed)
    assert all(weight.equal(after[name]) for name, weight in before.items())
    return trace


@EACH
def test_an_optimizer_may_own_several_nets(layout: Layout, ranks: Pool) -> None:
    """And a net whose parameters never asked for gradients passes them through."""
    same(layout.with_parts(2), ranks, _one_owner, 4)


# Frozen means frozen


def _freezing(p: Parallel) -> list[bool]:
    model = nets.MLP()
    model.stem.requires_grad_(False)  # for good
    net = p.wrap(model, nets.MLP_PLAN)
    opt = p.optimizer(net, torch.optim.SGD, lr=0.1)

    def wanted() -> list[bool]:
        return [parameter.requires_grad for parameter in net.parameters()]

    start, own = p.state_dict(net), wanted()
    held: list[bool] = []
    for batch in p.loader((torch.ones(12, 6), torch.ones(12, 1)), 12):
        with p.frozen(net):
            with torch.no_grad():
                net(batch.x)  # parameters may be put together now
            held.append(not any(wanted()))
            x = batch.x.clone().requires_grad_()
            net(x).sum().backward()
            held += [not any(wanted()), x.grad is not None, all(q.grad is None for q in net.parameters())]
        held.append(wanted() == own)
        for part in p.parts(batch):
            p.backward((net(part.x) - part.y).square().sum() / batch.size, opt)
        p.step(opt)
    try:
        with p.frozen(net):
            raise KeyError
    except KeyError:
        held.append(wanted() == own)
    end = p.state_dict(net)
    for name, weight in start.items():
        held.append(weight.equal(end[name]) == name.startswith("stem"))
    return held


@EACH
def test_frozen_means_frozen(layout: Layout, ranks: Pool) -> None:
    for held in layout.run(ranks, _freezing):
        assert all(held), held


# Misuse


def _misuse(p: Parallel) -> list[str]:
    """What is said to each misuse, in one run."""
    net = p.wrap(nets.MLP(), nets.MLP_PLAN)
    opt = p.optimizer(net, torch.optim.SGD, lr=0.01)
    data = p.loader(torch.ones(12, 6), 12)
    batch = next(iter(data))

    def said(function: Callable[[], Any]) -> str:
        with pytest.raises(ParallelError) as caught:
            function()
        return str(caught.value)

    def backward_of_one_part() -> None:
        for part in p.parts(batch):
            p.backward(net(part.data).sum() / batch.size, opt)
            break

    found = [said(lambda: p.step(opt))]
    backward_of_one_part()
    found.append(said(lambda: p.step(opt)))
    for part in p.parts(batch):
        p.backward(net(part.data).sum() / batch.size, opt)
    p.step(opt)
    found.append(said(lambda: p.step(opt)))
    found.append(said(lambda: p.wrap(net)))
    found.append(said(lambda: p.optimizer(nets.MLP(), torch.optim.SGD, lr=0.1)))
    found.append(said(lambda: p.state_dict(nets.MLP())))
    return found


@EACH
def test_misuse_is_refused_by_name(layout: Layout, ranks: Pool) -> None:
    without = "p.step without a backward on the last of p.parts(batch): there is no whole gradient"
    for said in layout.with_parts(2).run(ranks, _misuse):
        assert said[:3] == [without] * 3
        assert said[3] == "this MLP is wrapped already"
        assert said[4:] == ["this MLP was not made by p.wrap"] * 2
