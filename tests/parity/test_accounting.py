"""What a rank holds and what a step sends: counted from real tensors and collectives, beside what theory says."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pool import Pool

from parallel import Parallel
from parallel.testing import nets

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from accounting import PAGE, SPECS, count, page
from accounting_predicted import SUBJECTS, Figures, bound, dealt, predict

sys.path.pop(0)

FORMULAS = ("ddp", "zero1", "zero2", "fsdp")
CELLS = [(name, spec, 4) for name in SUBJECTS for spec in SPECS]
CELLS += [(name, spec, 3) for name in SUBJECTS for spec in FORMULAS]


def by_default(name: str, spec: str, n: int) -> bool:
    """The rest take seconds each, and are slow: an MLP under all strategies, a ViT under those with a formula."""
    return n == 4 and (name == "mlp" or spec in FORMULAS)


def counted(p: Parallel, name: str) -> Figures:
    return count(p, name)


Measured = Callable[[str, str, int], list[Figures]]


@pytest.fixture(scope="module")
def figures(ranks: Pool) -> Measured:
    """``figures(net, strategy, number of ranks)``: every rank's; each is measured once."""
    return cache(lambda name, spec, n: ranks.run(counted, spec, n, name))


@pytest.mark.parametrize(
    ("name", "spec", "n"),
    [pytest.param(*cell, marks=() if by_default(*cell) else pytest.mark.slow) for cell in CELLS],
)
def test_counted_is_predicted_to_the_byte(name: str, spec: str, n: int, figures: Measured) -> None:
    for found in figures(name, spec, n):
        assert found == predict(name, spec, n)


@pytest.mark.parametrize("name", SUBJECTS)
@pytest.mark.parametrize("n", [pytest.param(3, marks=pytest.mark.slow), 4])
def test_memory_and_traffic_follow_the_formulas(name: str, n: int, figures: Measured) -> None:
    """Within 2 % plus padding: of n pieces of a first axis, the last may be n - 1 rows short."""
    shapes = [tuple(parameter.shape) for parameter in SUBJECTS[name].build().parameters()]
    whole = 4 * sum(torch.Size(shape).numel() for shape in shapes)
    padding = 4 * sum((-shape[0] % n) * torch.Size(shape[1:]).numel() for shape in shapes)

    def near(found: int, wanted: float, pads: float) -> bool:
        return wanted <= found <= 1.02 * wanted + pads * padding

    held = {spec: figures(name, spec, n)[0].held for spec in FORMULAS}
    assert held["ddp"] == [4 * whole] * n
    assert sum(held["zero2"]) == sum(held["fsdp"]) == 4 * whole
    assert near(max(held["zero2"]), 4 * whole / n, 4)
    assert near(max(held["fsdp"]), 4 * whole / n, 4)
    assert sum(held["zero1"]) == 2 * whole * n + 2 * whole
    assert (
        2 * whole / n
        <= max(held["zero1"]) - 2 * whole
        <= bound([8 * torch.Size(s).numel() for s in shapes], n)
    )

    sent = {spec: figures(name, spec, n)[0].sent for spec in held}
    gathered = {spec: figures(name, spec, n)[0].gathered for spec in held}
    assert sent["ddp"] == {"all_reduce": whole}
    assert sent["zero1"] == {"all_reduce": whole, "broadcast": whole}
    assert near(sent["zero2"]["all_gather"], whole, 1)
    assert near(sent["zero2"]["reduce_scatter"], whole, 1)
    assert near(gathered["zero2"], whole, 1)
    assert near(sent["fsdp"]["reduce_scatter"], whole, 1)
    assert whole < sent["fsdp"]["all_gather"] <= 2 * (whole + padding)
    assert gathered["fsdp"] < 0.35 * whole  # the root's, and one of four blocks
    assert gathered["ddp"] == gathered["zero1"] == 0


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=40), st.integers(1, 9))
def test_whole_tensors_dealt_out_keep_to_the_bound(sizes: list[int], n: int) -> None:
    shares = dealt(sizes, n)
    assert sum(shares) == sum(sizes)
    assert sum(sizes) / n <= max(shares) <= bound(sizes, n) * (1 + 1e-12)


def look_between_forward_and_backward(p: Parallel) -> tuple[list[int], list[int]]:
    torch.manual_seed(0)
    net = p.wrap(nets.MLP(), nets.MLP_PLAN)
    opt = p.optimizer(net, torch.optim.Adam, lr=1e-2)
    rest = p.memory_per_rank()[p.rank]
    batch = next(iter(p.loader((torch.randn(8, 6), torch.randn(8, 1)), 8)))
    for part in p.parts(batch):
        loss = (net(part.x) - part.y).square().sum() / batch.size
        within = p.memory_per_rank()[p.rank]
        p.backward(loss, opt)
    p.step(opt)
    return [rest.parameters, rest.gathered], [within.parameters, within.gathered]


def test_what_is_gathered_counts_beside_the_pieces(ranks: Pool) -> None:
    whole = sum(parameter.nbytes for parameter in nets.MLP().parameters())
    pieces, gathered = [], []
    for rest, within in ranks.run(look_between_forward_and_backward, "zero2", 2):
        assert rest[1] == 0
        assert within[0] == rest[0]
        pieces.append(rest[0])
        gathered.append(within[1])
    assert sum(pieces) == whole
    assert (
        gathered[0] == gathered[1] == whole + 100
    )  # the head's one row of 24 and its bias are padded to two


def look_at_gradients(p: Parallel) -> tuple[int, int, int]:
    net = p.wrap(nets.MLP(), nets.MLP_PLAN)
    opt = p.optimizer(net, torch.optim.SGD, lr=1e-2)
    batch = next(iter(p.loader((torch.randn(8, 6), torch.randn(8, 1)), 8)))
    for part in p.parts(batch):
        p.backward((net(part.x) - part.y).square().sum() / batch.size, opt)
    grads = [parameter.grad for parameter in net.parameters() if parameter.grad is not None]
    storages = {grad.untyped_storage().data_ptr(): grad.untyped_storage().nbytes() for grad in grads}
    return len(grads), len(storages), sum(storages.values())


@pytest.mark.parametrize("spec", ["ddp", "zero1"])
def test_the_reducer_holds_no_second_copy_of_the_gradients(spec: str, ranks: Pool) -> None:
    """Gradients lie in the reducer's one bucket, so that 4 P is all there is."""
    grads, storages, size = ranks.run(look_at_gradients, spec, 2)[0]
    assert (grads, storages) == (12, 1)
    assert size == sum(parameter.nbytes for parameter in nets.MLP().parameters())


def count_a_state_dict(p: Parallel) -> dict[str, int]:
    net = p.wrap(nets.MLP(), nets.MLP_PLAN)
    with p.traffic() as traffic:
        p.state_dict(net)
    return traffic.bytes


def test_collectives_of_dtensor_are_counted(ranks: Pool) -> None:
    whole = sum(parameter.nbytes for parameter in nets.MLP().parameters())
    for spec, n in (("fsdp", 2), ("fsdp+tp", 4)):
        sent = ranks.run(count_a_state_dict, spec, n)[0]
        assert whole / 2 <= sent["all_gather"] <= 2.1 * whole, spec
    assert ranks.run(count_a_state_dict, "ddp", 2)[0] == {}


def train_with_a_glance(p: Parallel, glance: bool) -> list[float]:
    """A forward without gradients between backward and step, as for a log."""
    torch.manual_seed(0)
    net = p.wrap(nets.MLP(), nets.MLP_PLAN)
    opt = p.optimizer(net, torch.optim.SGD, lr=1e-2)
    losses = []
    for batch in p.loader((torch.randn(24, 6).double(), torch.randn(24, 1).double()), 8):
        total = torch.zeros((), dtype=torch.float64)
        for part in p.parts(batch):
            loss = (net(part.x) - part.y).square().sum() / batch.size
            p.backward(loss, opt)
            total += loss.detach()
        if glance:
            with torch.no_grad():
                net(batch.x)
        p.step(opt)
        losses.append(float(p.sum(total)))
    return losses


@pytest.mark.parametrize("spec", ["fsdp", "zero2", "hsdp", "fsdp+tp"])
def test_a_glance_before_the_step_leaves_no_old_weights_behind(spec: str, ranks: Pool) -> None:
    """FSDP2 keeps what a forward without backward gathered; the next forward must not run on that."""
    want = ranks.run(train_with_a_glance, "single", 1, False, precision="fp64")[0]
    got = ranks.run(train_with_a_glance, spec, 4, True, precision="fp64")[0]
    assert got == pytest.approx(want, rel=1e-9)


def test_the_page_says_what_is_counted() -> None:
    """docs/accounting.md is the script's, made again after a change."""
    assert PAGE.read_text(encoding="utf-8") == page(
        {name: {spec: predict(name, spec, 4) for spec in SPECS} for name in SUBJECTS}
    )
