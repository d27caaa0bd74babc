"""The runs that every cell is compared with."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pool import Pool

from parallel.testing import Trace, run_case

Reference = Callable[..., Trace]


@pytest.fixture(scope="session")
def reference_run(ranks: Pool) -> Reference:
    """``reference_run(case, precision, steps, batch_size)``: one process, one part; each run once a session."""
    known: dict[tuple[str, str, int, int], Trace] = {}

    def run(case: str, precision: str = "fp64", steps: int = 20, batch_size: int = 10) -> Trace:
        key = (case, precision, steps, batch_size)
        if key not in known:
            known[key] = ranks.run(run_case, "single", 1, case, steps, batch_size, precision=precision)[0]
        return known[key]

    return run
