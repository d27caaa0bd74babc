"""Guarantee 1: under every strategy the losses, gradient norms and weights of one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any
from unittest import mock

import pytest
from contract_matrix import ALL_LAYOUTS, LAYOUTS, MIXED, ONE_EACH, Cell, Layout, cells, ours
from pool import Pool

from parallel.interface import Parallel
from parallel.optimizer import Scaler
from parallel.testing import CASES, Trace, differences, distances, run_case

Reference = Callable[..., Trace]


@pytest.mark.parametrize("cell", list(cells()))
def test_same_numbers_as_one_process(
    cell: Cell, ranks: Pool, reference_run: Reference, record_property: Callable[[str, object], None]
) -> None:
    """20 steps on batches of 10 of 37 rows, which no number of ranks here divides."""
    want = reference_run(cell.case, cell.precision)
    got = cell.layout.run(ranks, run_case, cell.case, precision=cell.precision)[0]
    for what, distance in distances(want, got).items():
        record_property(what, distance)
    assert not differences(want, got, cell.precision)


def test_a_case_learns_something(reference_run: Reference) -> None:
    """Runs that stand still agree whatever the reduction: losses move, and so do all weights (biases may not matter)."""
    for case in CASES:
        trace, start = reference_run(case), reference_run(case, steps=1)
        assert abs(trace.losses[-1] - trace.losses[0]) > 1e-3, case
        weights = [name for name, tensor in trace.weights.items() if "weight" in name and tensor.numel() > 1]
        assert any(name.startswith("ema.") for name in weights) or case == "forwards"
        assert not [name for name in weights if trace.weights[name].equal(start.weights[name])], case


def test_every_strategy_is_in_the_matrix() -> None:
    """A strategy of this package that is registered and not held to the contract would go unnoticed."""
    known = {entry.name for entry in ours() if entry.kind != "one"}
    assert {layout.spec for layout in LAYOUTS} == known | set(MIXED)
    assert {layout.ranks for layout in ALL_LAYOUTS} == {2, 3, 4}


# bf16 is slow on CPUs, so these runs are short. Figures: docs/contract.md.
SHORT = {"mlp": 6, "attention": 4, "conv-batchnorm": 4, "gan": 4}


def run_short(p: Parallel, case: str, steps: int) -> Trace:
    """Starts fp16 at a loss scale where no half overflows: at 65,536 one does, and which depends on a share's rows."""
    with mock.patch("parallel.strategy.Scaler", partial(Scaler, scale=256.0)):
        return run_case(p, case, steps)


def low_cells() -> Iterator[Any]:
    """By default each strategy once, the two precisions in turns."""
    for number, layout in enumerate(LAYOUTS):
        for place, precision in enumerate(("bf16-mixed", "fp16-mixed")):
            default = layout in ONE_EACH and number // 2 % 2 == place
            yield pytest.param(
                *(layout, precision),
                id=f"{layout}-{precision}",
                marks=() if default else pytest.mark.slow,
            )


@pytest.mark.parametrize(("layout", "precision"), list(low_cells()))
def test_lower_precisions_follow_one_process(
    layout: Layout, precision: str, ranks: Pool, record_property: Callable[[str, object], None]
) -> None:
    for case, steps in SHORT.items():
        if Cell(layout, case, precision).refused:
            continue
        want = _one_process(ranks, case, steps, precision)
        got = layout.run(ranks, run_short, case, steps, precision=precision)[0]
        for what, distance in distances(want, got).items():
            record_property(f"{case}/{what}", distance)
        assert not differences(want, got, precision), case


@cache
def _one_process(ranks: Pool, case: str, steps: int, precision: str) -> Trace:
    return ranks.run(run_short, "single", 1, case, steps, precision=precision)[0]
