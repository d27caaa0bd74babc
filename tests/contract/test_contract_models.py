"""Guarantee 3: several models and optimizers are ordinary, and so is every way of calling them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import pytest
import torch
from contract_matrix import ONE_EACH, Layout
from pool import Pool
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, spectral_norm

from parallel.batch import Batch
from parallel.errors import ParallelError
from parallel.interface import Parallel
from parallel.optimizer import Scaler
from parallel.plan import Plan
from parallel.testing import Trace, differences, nets

EACH = pytest.mark.parametrize("layout", ONE_EACH, ids=lambda layout: layout.spec)
SHARED = [layout for layout in ONE_EACH if layout.spec != "dp"]  # those whose BatchNorm equals one process's


def _noise(*shape: int) -> Tensor:
    return torch.randn(37, *shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)


def _train(
    p: Parallel, data: Any, steps: int, step: Callable[[Batch, Trace], Tensor], weights: dict[str, nn.Module]
) -> Trace:
    """Some steps on global batches of 10; ``step`` gives this rank's share of the loss."""
    trace = Trace()
    while len(trace.losses) < steps:
        for batch in p.loader(data, 10, shuffle=True, seed=2):
            trace.losses.append(float(p.sum(step(batch, trace))))
            if len(trace.losses) == steps:
                break
    for prefix, net in weights.items():
        trace.weights |= {f"{prefix}.{name}": value for name, value in p.state_dict(net).items()}
    return trace


def _same(layout: Layout, ranks: Pool, function: Callable[..., Trace], *args: Any) -> None:
    want = ranks.run(function, "single", 1, *args, precision="fp64")[0]
    got = layout.run(ranks, function, *args, precision="fp64")[0]
    assert not differences(want, got, "fp64")


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

    return _train(p, _noise(8), steps, step, {"g": g, "d": d})


@EACH
@pytest.mark.parametrize("parts", [1, 2])
def test_a_backward_leaves_the_other_nets_gradients_alone(layout: Layout, parts: int, ranks: Pool) -> None:
    _same(layout.with_parts(parts), ranks, _entangled, 4)


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
    trace = _train(p, _noise(8), steps, step, {"encoder": encoder, "decoder": decoder})
    after = p.state_dict(fixed)
    assert all(weight.equal(after[name]) for name, weight in before.items())
    return trace


@EACH
def test_an_optimizer_may_own_several_nets(layout: Layout, ranks: Pool) -> None:
    """And a net whose parameters never asked for gradients passes them through."""
    _same(layout.with_parts(2), ranks, _one_owner, 4)


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


# Forwards


class _Normalised(nn.Module):
    """A discriminator with BatchNorm and both of torch's spectral norms."""

    def __init__(self) -> None:
        super().__init__()
        self.first = spectral_norm(nn.Linear(8, 24))
        self.norm = nn.BatchNorm1d(24)
        self.block = nets.Block(24, 48)
        self.last = parametrizations.spectral_norm(nn.Linear(24, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.block(torch.relu(self.norm(self.first(x)))))


PLAN = Plan(units=("block",), tensor={"block.up": "column", "block.down": "row"})


def _real_and_fake(p: Parallel, steps: int) -> Trace:
    """Two forwards, then one backward of both; then two of each."""
    torch.manual_seed(p.rank)
    d = p.wrap(_Normalised(), PLAN)
    opt = p.optimizer(d, torch.optim.Adam, lr=1e-2)

    def step(batch: Batch, trace: Trace) -> Tensor:
        total = torch.zeros(())
        for joint in (True, False):
            for part in p.parts(batch):
                real = F.softplus(-d(part.data)).sum() / batch.size
                fake = F.softplus(d(part.noise("fake", (8,)))).sum() / batch.size
                for loss in (real + fake,) if joint else (real, fake):
                    p.backward(loss, opt)
                total = total + (real + fake).detach()
            trace.norms.append(float(p.step(opt).grad_norm))
        return total

    return _train(p, _noise(8), steps, step, {"d": d})


@pytest.mark.parametrize("layout", SHARED, ids=lambda layout: layout.spec)
def test_batchnorm_and_spectral_norm_in_two_forwards(layout: Layout, ranks: Pool) -> None:
    _same(layout, ranks, _real_and_fake, 4)


def _saved(p: Parallel) -> tuple[dict[str, Tensor], Tensor]:
    """Weights after some training, and what the net answers in evaluation."""
    trace_of = _real_and_fake if p.spec != "dp" else _real_and_fake_without_batchnorm
    with mock.patch.object(p, "state_dict", wraps=p.state_dict) as spy:
        trace_of(p, 3)
        (net,) = spy.call_args.args
    net.eval()
    with torch.no_grad():
        answer = net(torch.ones(3, 8, dtype=torch.float64))
    return p.state_dict(net), answer


def _real_and_fake_without_batchnorm(p: Parallel, steps: int) -> Trace:
    with mock.patch.object(nn, "BatchNorm1d", lambda width: nn.Identity()):
        return _real_and_fake(p, steps)


@EACH
def test_evaluation_is_identical_after_saving(layout: Layout, ranks: Pool) -> None:
    """In plain torch, loaded strictly: running statistics and power-iteration vectors are not lost on replicas."""
    found = layout.run(ranks, _saved, precision="fp64")
    plain = _Normalised()
    if layout.spec == "dp":
        plain.norm = nn.Identity()  # type: ignore[assignment]
    plain.double().eval().load_state_dict(found[0][0])
    want = plain(torch.ones(3, 8, dtype=torch.float64))
    for _, answer in found:
        assert torch.allclose(answer, want, rtol=1e-12, atol=1e-13)


class _ManyDoors(nn.Module):
    """Methods beside forward: called outright, called by forward, and one that takes and gives a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nets.Block(8, 48)
        self.head = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encode(x))

    def encode(self, x: Tensor) -> Tensor:
        return x + self.inner(x)

    def named(self, given: dict[str, Tensor]) -> dict[str, Tensor]:
        code = self.encode(given["x"])
        return {"code": code, "out": self.head(code)}


def _doors(p: Parallel, steps: int) -> Trace:
    torch.manual_seed(p.rank)
    net: Any = p.wrap(
        _ManyDoors(), Plan(units=("inner",), tensor={"inner.up": "column", "inner.down": "row"})
    )
    opt = p.optimizer(net, torch.optim.Adam, lr=1e-2)

    def step(batch: Batch, trace: Trace) -> Tensor:
        total = torch.zeros(())
        for part in p.parts(batch):
            out = net.named({"x": part.data})
            loss = out["out"].square().sum() + net.encode(part.data).square().sum() + out["code"].sum()
            p.backward(loss / batch.size, opt)
            total = total + loss.detach() / batch.size
        trace.norms.append(float(p.step(opt).grad_norm))
        with torch.no_grad():
            total = total + net.encode(batch.data).sum() / batch.size  # with weights that are a step old
        return total

    return _train(p, _noise(8), steps, step, {"net": net})


@EACH
@pytest.mark.parametrize("parts", [1, 2])
def test_methods_other_than_forward(layout: Layout, parts: int, ranks: Pool) -> None:
    """Training through them alone: none skips the strategy."""
    _same(layout.with_parts(parts), ranks, _doors, 4)


def _some_parts(p: Parallel) -> Trace:
    """A branch that the first part of a batch takes and the last does not.

    Which rows are in the first part depends on the ranks; here all rows are equal, so that it does not matter.
    """
    torch.manual_seed(p.rank)
    net = p.wrap(nets.Branched(), nets.BRANCHED_PLAN)
    opt = p.optimizer(net, torch.optim.Adam, lr=1e-2)
    trace = Trace()
    for batch in p.loader(torch.ones(96, 6, dtype=torch.float64), 24):
        total = torch.zeros(())
        for number, part in enumerate(p.parts(batch)):
            loss = net(part.data, number == 0).square().sum() / batch.size
            p.backward(loss, opt)
            total = total + loss.detach()
        trace.norms.append(float(p.step(opt).grad_norm))
        trace.losses.append(float(p.sum(total)))
    trace.weights = p.state_dict(net)
    return trace


@EACH
def test_a_branch_that_only_the_first_part_takes(layout: Layout, ranks: Pool) -> None:
    want = ranks.run(_some_parts, "single", 1, precision="fp64", accumulate=2)[0]
    got = layout.with_parts(2).run(ranks, _some_parts, precision="fp64")[0]
    assert not differences(want, got, "fp64")


# Half precision


def _one_overflows(p: Parallel) -> tuple[list[float], list[bool], list[bool]]:
    """Two nets, two optimizers; in the second step the last row of the batch overflows the first net only."""
    torch.manual_seed(0)
    with mock.patch("parallel.strategy.Scaler", partial(Scaler, scale=64.0)):
        first, second = p.wrap(nets.MLP(), nets.MLP_PLAN), p.wrap(nets.MLP(), nets.MLP_PLAN)
        opts = [p.optimizer(net, torch.optim.SGD, lr=0.01) for net in (first, second)]
    skipped: list[bool] = []
    moved: list[bool] = []
    for number, batch in enumerate(p.loader(torch.ones(36, 6), 12)):
        before = [p.state_dict(net) for net in (first, second)]
        for net, opt in zip((first, second), opts, strict=True):
            for part in p.parts(batch):
                with p.autocast():
                    out = net(part.data)
                weight = torch.ones(len(part), 1)
                if number == 1 and net is first:
                    weight[part.position == batch.size - 1] = 1e36
                p.backward((out.float() * weight).sum() / batch.size, opt)
            skipped.append(p.step(opt).skipped)
        after = [p.state_dict(net) for net in (first, second)]
        for old, new in zip(before, after, strict=True):
            moved.append(any(not weight.equal(new[name]) for name, weight in old.items()))
    return [opt.scaler.scale for opt in opts if opt.scaler is not None], skipped, moved


@pytest.mark.parametrize("layout", [Layout("single", 1), *ONE_EACH], ids=lambda layout: layout.spec)
def test_an_overflow_on_one_rank_skips_that_optimizer_on_all(layout: Layout, ranks: Pool) -> None:
    for rank, (scales, skipped, moved) in enumerate(
        layout.run(ranks, _one_overflows, precision="fp16-mixed")
    ):
        assert scales == [32.0, 64.0]
        assert skipped == [False, False, True, False, False, False]
        if rank == 0:  # which has the whole weights
            assert moved == [not skip for skip in skipped]


def _statistics(p: Parallel) -> dict[str, torch.dtype]:
    """What a net holds after two steps; its running statistics stay finite and in fp32."""
    net = p.wrap(nets.ConvNet(), nets.CONV_PLAN)
    opt = p.optimizer(net, torch.optim.SGD, lr=0.01)
    x = torch.full((20, 3, 4, 4), 300.0) + torch.arange(20.0).view(20, 1, 1, 1)
    for batch in p.loader(x, 10):
        for part in p.parts(batch):
            with p.autocast():
                loss = net(part.data).float().square().sum() / batch.size
            p.backward(loss, opt)
        p.step(opt)
    for name, buffer in net.named_buffers():
        assert buffer.isfinite().all(), name
    state = p.state_dict(net)
    return {
        name: value.dtype for name, value in (*net.named_parameters(), *net.named_buffers(), *state.items())
    }


@pytest.mark.parametrize("precision", ["bf16-mixed", "fp16-mixed"])
@pytest.mark.parametrize("layout", SHARED, ids=lambda layout: layout.spec)
def test_weights_and_batchnorm_statistics_stay_fp32(layout: Layout, precision: str, ranks: Pool) -> None:
    for held in layout.run(ranks, _statistics, precision=precision):
        counters = {name for name in held if name.endswith("num_batches_tracked")}
        assert len(counters) == 2
        assert {dtype for name, dtype in held.items() if name not in counters} == {torch.float32}


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


def test_spectral_iterations_do_not_depend_on_the_parts(ranks: Pool) -> None:
    """One power iteration a loop over the parts, in one process too, where torch would make one each."""
    want = ranks.run(_vectors, "single", 1, precision="fp64")[0]
    for parts in (2, 5):
        got = ranks.run(_vectors, "single", 1, precision="fp64", accumulate=parts)[0]
        assert all(torch.allclose(want[name], got[name], rtol=0, atol=1e-13) for name in want)


def _vectors(p: Parallel) -> dict[str, Tensor]:
    torch.manual_seed(0)
    net = p.wrap(nets.Discriminator(), nets.DISCRIMINATOR_PLAN)
    start = p.state_dict(net)
    for batch in p.loader(_noise(8), 10):
        for part in p.parts(batch):
            net(part.data), net(-part.data)
    vectors = {name: value for name, value in p.state_dict(net).items() if name.endswith(("_u", "_v"))}
    assert not all(value.equal(start[name]) for name, value in vectors.items())
    return vectors


class Score(nets.MLP):
    """Returns views, by its forward and by another method."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).squeeze(-1)

    def score(self, x: Tensor) -> Tensor:
        return super().score(x).squeeze(-1)


def _changed_in_place(p: Parallel, steps: int) -> Trace:
    torch.manual_seed(0)
    net: Any = p.wrap(Score(), nets.MLP_PLAN)
    opt = p.optimizer(net, torch.optim.Adam, lr=1e-2)

    def step(batch: Batch, trace: Trace) -> Tensor:
        total = torch.zeros(())
        for part in p.parts(batch):
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                first, second = net(part.data), net.score(part.data)
            first += 1.0
            second *= 2.0
            loss = (first.square() + second.square()).sum() / batch.size
            p.backward(loss, opt)
            total = total + loss.detach()
        trace.norms.append(float(p.step(opt).grad_norm))
        return total

    return _train(p, _noise(6), steps, step, {"net": net})


@pytest.mark.parametrize("layout", [Layout("fsdp", 2), Layout("zero2", 2)], ids=str)
def test_a_view_that_is_returned_can_be_changed_in_place(layout: Layout, ranks: Pool) -> None:
    """FSDP2 would lose its hook on it, and says so."""
    _same(layout, ranks, _changed_in_place, 2)
