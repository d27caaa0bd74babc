"""How far every strategy is from one process: the largest distances over all cases, ranks and parts.

Run by hand, the whole matrix, a quarter of an hour on two cores: ``PYTHONPATH=tests python tests/contract/figures.py``;
with precisions as arguments, these only. It prints a table of docs/contract.md, and ends with status 1 if a cell is
further away than guarantee 1 allows.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from contract_matrix import ALL_LAYOUTS, LAYOUTS, PARTS, Cell
from pool import Pool
from test_contract_numbers import SHORT, run_short

from parallel.testing import CASES, Trace, differences, distances, run_case

PRECISIONS = ("fp64", "fp32", "bf16-mixed", "fp16-mixed")
SHOWN = {"fp64": ("loss", "grad_norm", "weights"), "fp32": ("loss", "grad_norm", "weights")}


def cells(precision: str) -> Iterator[Cell]:
    """The lower precisions have fewer cases, and 1 part."""
    whole = precision in SHOWN
    for layout in ALL_LAYOUTS if whole else LAYOUTS:
        for parts in PARTS if whole else (1,):
            for case in CASES if whole else SHORT:
                cell = Cell(layout.with_parts(parts), case, precision)
                if not cell.refused:
                    yield cell


def main() -> int:
    pool = Pool()
    references: dict[tuple[str, str], Trace] = {}
    largest: dict[tuple[str, str, str], float] = {}
    count, beyond = 0, 0
    chosen = tuple(sys.argv[1:]) or PRECISIONS
    for precision in chosen:
        for cell in cells(precision):
            arguments = (cell.case,) if precision in SHOWN else (cell.case, SHORT[cell.case])
            run = run_case if precision in SHOWN else run_short
            key = (cell.case, precision)
            if key not in references:
                references[key] = pool.run(run, "single", 1, *arguments, precision=precision)[0]
            got = cell.layout.run(pool, run, *arguments, precision=precision)[0]
            count += 1
            for what in differences(references[key], got, precision):
                beyond += 1
                print(f"{cell.layout} {cell.case} {precision}: {what}", file=sys.stderr)
            for what, distance in distances(references[key], got).items():
                place = (cell.layout.spec, precision, what)
                largest[place] = max(largest.get(place, 0.0), distance)
    pool.close()
    columns = [
        (precision, what) for precision in chosen for what in SHOWN.get(precision, ("loss", "grad_norm"))
    ]
    print("| strategy | " + " | ".join(f"{precision} {what}" for precision, what in columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for spec in dict.fromkeys(layout.spec for layout in ALL_LAYOUTS):
        found = [largest.get((spec, *column)) for column in columns]
        print(f"| {spec} | " + " | ".join("" if value is None else f"{value:.1e}" for value in found) + " |")
    print(f"\n{count} cells, {beyond} beyond their limit")
    return 1 if beyond else 0


if __name__ == "__main__":
    sys.exit(main())
