"""The cells of the contract, and which of them the default run takes.

A cell is a layout (strategy, ranks, parts), a case and a precision. A cell takes about a second on two quiet cores,
and there are some 1,000, so the default run covers them in turns:

- Every strategy x case once in fp64, which proves guarantee 1; ranks and parts take turns, so that every strategy meets
  each pair of them. Every second of them in fp32 too, on the other number of ranks; every fourth where there is but one.
- Lower precisions: every strategy once, on its largest number of ranks, the two precisions in turns.

All other cells are marked ``slow``, and so are combinations that can be spelt and that no page names (zero1+tp, ...).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from pool import Pool

from parallel import registry
from parallel.testing import CASES

PARTS = (1, 2)
MIXED = registry.COMBINED
CARRIED = ("accelerate-ddp", "fabric-ddp", "fabric-fsdp")  # by another engine: cells where that is installed


@dataclass(frozen=True)
class Layout:
    """A strategy on some ranks (replicas, for ``dp``), each global batch cut into some parts."""

    spec: str
    ranks: int
    parts: int = 1

    def __str__(self) -> str:
        return f"{self.spec}-{self.ranks}r-{self.parts}p"

    def run(self, pool: Pool, function: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
        """Every rank's value of ``function(p, *args)``."""
        options |= {"accumulate": self.parts}
        if registry.in_one_process(self.spec):
            return pool.run(function, self.spec, 1, *args, replicas=self.ranks, **options)
        return pool.run(function, self.spec, self.ranks, *args, **options)

    def with_parts(self, parts: int) -> Layout:
        return Layout(self.spec, self.ranks, parts)


def ours() -> list[registry.StrategyEntry]:
    """The strategies of this package that a CPU can carry in this environment."""
    return [
        entry
        for entry in registry.entries()
        if str(entry.engine).startswith("parallel.")
        and (entry.library is None or (entry.name in CARRIED and not entry.missing()))
    ]


def _layouts() -> Iterator[Layout]:
    """Every strategy that this package registers, on 2 and on 3 ranks; on 4 where two axes are cut."""
    entries = ours()
    for entry in entries:
        if entry.kind != "one":
            yield from (Layout(entry.name, ranks) for ranks in ((4,) if entry.ranks > 2 else (2, 3)))
    for entry in entries:
        if entry.kind == "data" and entry.ranks <= 2 and entry.library is None:
            yield Layout(f"{entry.name}+tp", 4)


ALL_LAYOUTS = list(_layouts())
LAYOUTS = [layout for layout in ALL_LAYOUTS if "+" not in layout.spec or layout.spec in MIXED]
ONE_EACH = list({layout.spec: layout for layout in LAYOUTS}.values())  # the most ranks of each strategy


def sharding(what: str) -> set[str]:
    """The strategies that say they shard ``what``: "parameters", "gradients" or "optimizer"."""
    replicas = ("dp", "ddp", "accelerate-ddp", "fabric-ddp")
    whole = {
        "parameters": (*replicas, "zero1"),
        "gradients": (*replicas, "zero1"),
        "optimizer": replicas,
    }
    return {layout.spec for layout in LAYOUTS} - set(whole[what])


@dataclass(frozen=True)
class Cell:
    layout: Layout
    case: str
    precision: str

    @property
    def refused(self) -> bool:
        """Whether the strategy says no; test_contract_refusals.py holds it to that."""
        return CASES[self.case].batchnorm and (self.layout.spec == "dp" or self.layout.parts > 1)


def cells() -> Iterator[Any]:
    """Every cell that trains, as pytest parameters."""
    for place, layout in enumerate(ALL_LAYOUTS):
        for parts in PARTS:
            for number, case in enumerate(CASES):
                batchnorm = CASES[case].batchnorm  # which has cells of 1 part only
                for precision in ("fp64", "fp32"):
                    cell = Cell(layout.with_parts(parts), case, precision)
                    if cell.refused:
                        continue
                    turn = batchnorm or parts == 1 + (number + layout.ranks) % 2
                    ranks = 2 + (number // 2 + (precision == "fp64")) % 2
                    turn &= batchnorm or layout.ranks in (4, ranks)
                    if precision == "fp32":
                        turn &= (number + place) % (4 if layout.ranks == 4 else 2) == 0
                    default = turn and layout in LAYOUTS
                    yield pytest.param(
                        cell,
                        id=f"{cell.layout}-{case}-{precision}",
                        marks=() if default else pytest.mark.slow,
                    )
