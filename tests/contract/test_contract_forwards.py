"""Guarantee 3: every way of calling a net is ordinary: twice before a backward, by any method, in some parts only."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from contract_matrix import ONE_EACH, Layout
from contract_runs import noise, same, train
from pool import Pool
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, spectral_norm

from parallel.batch import Batch
from parallel.errors import ParallelError
from parallel.interface import Parallel
from parallel.plan import Plan
from parallel.refusals import FULLY_SHARDED
from parallel.testing import Trace, differences, nets

EACH = pytest.mark.parametrize("layout", ONE_EACH, ids=lambda layout: layout.spec)
SHARED = [layout for layout in ONE_EACH if layout.spec != "dp"]  # those whose BatchNorm equals one process's


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

    return train(p, noise(8), steps, step, {"d": d})


@pytest.mark.parametrize("layout", SHARED, ids=lambda layout: layout.spec)
def test_batchnorm_and_spectral_norm_in_two_forwards(layout: Layout, ranks: Pool) -> None:
    same(layout, ranks, _real_and_fake, 4)


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

    return train(p, noise(8), steps, step, {"net": net})


@EACH
@pytest.mark.parametrize("parts", [1, 2])
def test_methods_other_than_forward(layout: Layout, parts: int, ranks: Pool) -> None:
    """Training through them alone: none skips the strategy."""
    same(layout.with_parts(parts), ranks, _doors, 4)


class _Inner(nets.Block):
    """With a layer that tensor parallelism leaves whole."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__(width, hidden)
        self.whole = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.whole(x))

    def other(self, x: Tensor) -> Tensor:
        return F.linear(self.down(torch.tanh(self.up(x))), self.whole.weight)


class _SideDoors(nn.Module):
    """Ways in that no public method of the net is."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = _Inner(8, 24)
        self.head = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.inner(x))

    def _score(self, x: Tensor) -> Tensor:
        return torch.sigmoid(F.linear(self.inner.other(x), self.head.weight))

    @property
    def size(self) -> Tensor:
        return self.head.weight.square().sum()


def _watched(net: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        return net(x)


SIDE_DOORS: dict[str, Callable[[Any, Tensor], list[Any]]] = {
    "a unit's method": lambda net, x: [net.inner.other(x)],
    "a unit": lambda net, x: [net.inner(x)],
    "forward by name": lambda net, x: [net.forward(x), net.inner.forward(x)],
    "a unit's method after the net": lambda net, x: [net(x), net.inner.other(x)],
    "a unit's method before the net": lambda net, x: [net(x), net.inner.other(x)][::-1],
    "a unit's method, the net unused": lambda net, x: [net(x), net.inner.other(x)][1:],
    "a unit's method, the net watched": lambda net, x: [_watched(net, x), net.inner.other(x)][1:],
    "a private method": lambda net, x: [net._score(x)],
    "a private method after the net": lambda net, x: [net(x), net._score(x)],
    "a layer": lambda net, x: [net.head(x)],
    "a layer of a unit": lambda net, x: [net(x), net.inner.whole(x)],
    "a property alone": lambda net, x: [net(x), len(x) * net.size][1:],
    "a property after the net": lambda net, x: [net(x), len(x) * net.size],
    "a property with the net": lambda net, x: [net(x).square().sum() + len(x) * net.size],
    "a property, freed meanwhile": lambda net, x: [
        net(x),
        len(x) * net.size + net(x.clone().requires_grad_()).square().sum(),
    ][1:],
    "a property before the net": lambda net, x: [len(x) * net.size, net(x)],
    "a unit's weight": lambda net, x: [net(x), len(x) * net.inner.whole.weight.square().sum()],
}


def _through(p: Parallel, door: str) -> Trace | str:
    torch.manual_seed(p.rank)
    plan = Plan(
        units=("inner",), tensor={"inner.up": "column", "inner.down": "row"}, optional=("inner", "head")
    )
    net = p.wrap(_SideDoors(), plan)
    opt = p.optimizer(net, torch.optim.SGD, lr=1e-2)

    def step(batch: Batch, trace: Trace) -> Tensor:
        total = torch.zeros(())
        for part in p.parts(batch):
            for out in SIDE_DOORS[door](net, part.data):
                loss = (out.square().sum() if out.dim() else out) / batch.size
                p.backward(loss, opt)
                total = total + loss.detach()
        trace.norms.append(float(p.step(opt).grad_norm))
        return total

    try:
        return train(p, noise(8), 2, step, {"net": net})
    except ParallelError as error:
        return str(error)


def _through_each(p: Parallel) -> dict[str, Trace | str]:
    return {door: _through(p, door) for door in SIDE_DOORS}


# A parameter that is cut where it is used: named, and refused.
PIECES = {"a property before the net": "head.weight", "a unit's weight": "inner.whole.weight"}
SHARDED = [layout for layout in ONE_EACH if layout.spec in FULLY_SHARDED]


@pytest.mark.parametrize(
    "layout",
    [
        pytest.param(layout, id=layout.spec, marks=() if layout in SHARDED[:2] else pytest.mark.slow)
        for layout in (*SHARDED, *(layout for layout in ONE_EACH if layout not in SHARDED))
    ],
)
def test_no_way_in_skips_the_strategy(layout: Layout, ranks: Pool) -> None:
    want = ranks.run(_through_each, "single", 1, precision="fp64")[0]
    got = layout.with_parts(2).run(ranks, _through_each, precision="fp64")[0]
    for door in SIDE_DOORS:
        if isinstance(got[door], str):
            assert layout in SHARDED and PIECES[door] in got[door] and "is refused" in got[door], door
        else:
            assert not differences(want[door], got[door], "fp64"), door


class _Pair(nn.Module):
    """Two nets that share a layer, wrapped as one."""

    def __init__(self) -> None:
        super().__init__()
        self.g, self.d = nets.Block(8, 24), nets.Block(8, 24)
        self.d.up = self.g.up


def _step_of(p: Parallel, opt: Any, loss_of: Callable[[Batch], Tensor]) -> Callable[[Batch, Trace], Tensor]:
    """A step by the sum of ``loss_of`` over the parts, divided by the global size."""

    def step(batch: Batch, trace: Trace) -> Tensor:
        total = torch.zeros(())
        for part in p.parts(batch):
            loss = loss_of(part) / batch.size
            p.backward(loss, opt)
            total = total + loss.detach()
        trace.norms.append(float(p.step(opt).grad_norm))
        return total

    return step


def _as_one(p: Parallel, steps: int) -> Trace:
    torch.manual_seed(p.rank)
    both: Any = p.wrap(_Pair())
    opt = p.optimizer(both, torch.optim.Adam, lr=1e-2)

    def loss(part: Batch) -> Tensor:
        return both.d(both.g(part.data)).square().sum()

    return train(p, noise(8), steps, _step_of(p, opt, loss), {"both": both})


@pytest.mark.parametrize("layout", [Layout("fsdp", 2), Layout("ddp", 2)], ids=str)
def test_nets_that_share_a_layer_as_one(layout: Layout, ranks: Pool) -> None:
    same(layout, ranks, _as_one, 2)


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
    for batch in p.loader(noise(8), 10):
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

    def loss(part: Batch) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            first, second = net(part.data), net.score(part.data)
        first += 1.0
        second *= 2.0
        return (first.square() + second.square()).sum()

    return train(p, noise(6), steps, _step_of(p, opt, loss), {"net": net})


@pytest.mark.parametrize("layout", [Layout("fsdp", 2), Layout("zero2", 2)], ids=str)
def test_a_view_that_is_returned_can_be_changed_in_place(layout: Layout, ranks: Pool) -> None:
    """FSDP2 would lose its hook on it, and says so."""
    same(layout, ranks, _changed_in_place, 2)
