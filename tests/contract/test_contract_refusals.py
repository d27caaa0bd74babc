"""What the list of refusals names is refused, with its words, by those it names; and by no other strategy."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from contract_matrix import LAYOUTS, Layout
from pool import Pool
from torch import Tensor, nn
from torch.utils.weak import TensorWeakRef

from parallel import refusals, registry
from parallel.errors import ParallelError
from parallel.interface import Parallel
from parallel.plan import Plan
from parallel.refusals import REFUSALS, Refusal

FEWEST = [Layout("single", 1), *{layout.spec: layout for layout in reversed(LAYOUTS)}.values()]


class _Net(nn.Module):
    """12 -> 24 -> 12, with a layer between."""

    def __init__(self, between: nn.Module) -> None:
        super().__init__()
        self.up = nn.Linear(12, 24)
        self.between = between
        self.down = nn.Linear(24, 12)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.between(self.up(x)))


CUT = {"up": "column", "down": "row"}
PLAN = Plan(tensor=CUT)
WHOLE = Plan(tensor={"down": "column"})  # what lies between sees all its channels


def _train(
    p: Parallel, net: nn.Module, plan: Plan = PLAN, cls: type[torch.optim.Optimizer] = torch.optim.SGD
) -> None:
    """One step on 8 rows."""
    net = p.wrap(net, plan)
    opt = p.optimizer(net, cls, lr=0.01)
    for batch in p.loader(torch.ones(8, 12), 8):
        for part in p.parts(batch):
            p.backward(net(part.data).sum() / batch.size, opt)
        p.step(opt)


def _tied_pair() -> nn.Module:
    pair = nn.Sequential(nn.Linear(24, 24), nn.Linear(24, 24))
    pair[1].weight = pair[0].weight
    return pair


class _Unused(_Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x))


class _Rows(nn.Module):
    """Rows of 24 as images [8, 3, 1], for what works on channels."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.view(-1, 8, 3, 1)).flatten(1)


class StochasticDepth(nn.Module):
    """Of torchvision's name and attributes."""

    p, mode = 0.5, "batch"

    def forward(self, x: Tensor) -> Tensor:
        return x


def _batchnorm(p: Parallel) -> None:
    _train(p, _Net(nn.BatchNorm1d(24)), WHOLE)


def _attention(p: Parallel) -> None:
    p.wrap(_Net(nn.MultiheadAttention(24, 2, dropout=0.1)), WHOLE)


def _recomputed(p: Parallel) -> None:
    _train(
        p,
        _Net(nn.utils.spectral_norm(nn.Linear(24, 24))),
        Plan(tensor={"down": "column"}, checkpoint=("between",)),
    )


def _compiled(p: Parallel) -> None:
    p.compile = True  # type: ignore[attr-defined]
    p.wrap(_Net(nn.ReLU()), PLAN)


def _tied(p: Parallel) -> None:
    _train(p, _Net(_tied_pair()), Plan(units=("between.1",), tensor={"down": "column"}))


def _cut_tie(p: Parallel) -> None:
    _train(p, _Net(_tied_pair()), Plan(tensor={"between.1": "column"}))


def _uncut(p: Parallel) -> None:
    _train(p, _Net(nn.ReLU()), Plan())


def _grouped(p: Parallel) -> None:
    plan = Plan(tensor={"between.layer": "conv_out"} if p.spec.endswith("tp") else {})
    _train(p, _Net(_Rows(nn.Conv2d(8, 8, 1, groups=2))), plan)


def _computed(p: Parallel) -> None:
    p.wrap(_Net(nn.utils.parametrizations.weight_norm(nn.Linear(24, 24))), Plan(tensor={"between": "column"}))


def _shared(p: Parallel) -> None:
    """The second holds a layer of the first, under another name."""
    layer = nn.Linear(24, 24)
    p.wrap(_Net(layer), WHOLE)
    p.wrap(_Net(nn.Sequential(layer)), WHOLE)


def _piece(p: Parallel) -> None:
    net = p.wrap(_Net(nn.ReLU()), PLAN)
    opt = p.optimizer(net, torch.optim.SGD, lr=0.01)
    for batch in p.loader(torch.ones(8, 12), 8):
        for part in p.parts(batch):
            decay = net.down.bias.square().sum()  # type: ignore[union-attr, operator]
            p.backward((decay * len(part) + net(part.data).sum()) / batch.size, opt)
        p.step(opt)


def _whole(p: Parallel) -> None:
    _train(p, _Net(nn.ReLU()), cls=torch.optim.Adafactor)


def _unused(p: Parallel) -> None:
    _train(p, _Unused(nn.Linear(3, 3)))


ATTEMPTS: dict[Refusal, Callable[[Parallel], None]] = {
    refusals.BATCHNORM_OVER_PARTS: _batchnorm,
    refusals.BATCHNORM_IN_REPLICAS: _batchnorm,
    refusals.DRAWS_INSIDE_TORCH: _attention,
    refusals.DROPS_BY_BATCH: lambda p: _train(p, _Net(StochasticDepth())),
    refusals.RECOMPUTED_STATE: _recomputed,
    refusals.COMPILED_REPLICAS: _compiled,
    refusals.TIES_ACROSS_UNITS: _tied,
    refusals.SHARED_WEIGHT: _shared,
    refusals.PIECE_IN_LOSS: _piece,
    refusals.NOTHING_TO_CUT: _uncut,
    refusals.GROUPED_CONVOLUTION: _grouped,
    refusals.COMPUTED_WEIGHT: _computed,
    refusals.CUT_TIE: _cut_tie,
    refusals.WHOLE_TENSOR_OPTIMIZER: _whole,
    refusals.NO_GRADIENT: _unused,
}
ON_GPUS = {refusals.RECOMPUTED_REPLICAS}
NAMED = {  # what the message says besides
    refusals.TIES_ACROSS_UNITS: "weights 'between.0.weight' and 'between.1.weight'",
    refusals.SHARED_WEIGHT: "weight 'between.weight' of _Net and 'between.0.weight' of _Net",
    refusals.PIECE_IN_LOSS: "parameter 'down.bias' of _Net",
}
OF_ADAPTERS = {  # which tests/adapters attempts
    refusals.ACCELERATE_FSDP_ON_CPU,
    refusals.STEPPED_TWICE,
}


def _attempt(p: Parallel, number: int) -> str:
    """The refusal's words, or nothing."""
    try:
        ATTEMPTS[REFUSALS[number]](p)
    except ParallelError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("layout", FEWEST, ids=lambda layout: layout.spec)
def test_refuses_what_it_says_and_nothing_else(layout: Layout, ranks: Pool) -> None:
    for number, refusal in enumerate(REFUSALS):
        if refusal in ON_GPUS | OF_ADAPTERS:
            continue
        parts = 2 if refusal is refusals.BATCHNORM_OVER_PARTS else 1
        for said in layout.with_parts(parts).run(ranks, _attempt, number):
            if refusal.strategies == refusals.ALL or layout.spec in refusal.strategies:
                assert f"{refusal.what} is refused: {refusal.because}; {refusal.instead}" in said
                assert said.startswith(NAMED.get(refusal, ""))
                assert "\n" not in said
            else:
                assert said == "", refusal.what


def test_every_refusal_is_attempted() -> None:
    assert ATTEMPTS.keys() | ON_GPUS | OF_ADAPTERS == set(REFUSALS)


def test_every_strategy_that_is_named_is_in_the_matrix() -> None:
    adapters = {entry.name for entry in registry.entries() if entry.library is not None}
    known = {layout.spec for layout in LAYOUTS} | adapters  # in the matrix where their library is installed
    assert all(set(refusal.strategies) - {"*"} <= known for refusal in REFUSALS)


def _local_batchnorm(p: Parallel) -> int:
    net = _Net(nn.BatchNorm1d(24))
    _train(p, net, WHOLE)
    return int(net.between.num_batches_tracked)  # type: ignore[arg-type]


def test_local_batchnorm_is_the_way_round(ranks: Pool) -> None:
    """It trains, under each part's own moments."""
    assert Layout("ddp", 2, 2).run(ranks, _local_batchnorm, local_batchnorm=True) == [2, 2]
    assert Layout("dp", 2, 1).run(ranks, _local_batchnorm, local_batchnorm=True) == [1]


def _shared_after(p: Parallel) -> tuple[str, bool]:
    """A tensor that only the second net holds by now, and whether any other that was replaced is kept."""
    first, second = _Net(nn.Linear(24, 24)), _Net(nn.Linear(24, 24))
    second.between.weight = first.between.weight
    forgotten = [TensorWeakRef(first.up.weight), TensorWeakRef(first.between.bias)]  # type: ignore[arg-type]
    p.wrap(first, WHOLE)
    try:
        p.wrap(second, WHOLE)
    except ParallelError as error:
        return str(error), any(weight() is not None for weight in forgotten)
    return "", False


@pytest.mark.parametrize("layout", [Layout("fsdp", 2), Layout("ddp", 2)], ids=str)
def test_a_weight_is_known_again_after_it_was_replaced(layout: Layout, ranks: Pool) -> None:
    for said, kept in layout.run(ranks, _shared_after):
        assert said.startswith("weight 'between.weight' of _Net and 'between.weight' of _Net: ")
        assert kept == (layout.spec == "ddp")  # which replaces none
