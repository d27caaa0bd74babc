"""The contract tests, for strategies of one's own too: run a case in one process and under a strategy, and compare.

want = parallel.launch(run_case, "single", "mlp", precision="fp64")
got = parallel.launch(run_case, "mine", "mlp", nproc=3, precision="fp64")
assert not differences(want, got, "fp64")
"""

from parallel.testing.cases import CASES, run_case
from parallel.testing.compare import TOLERANCES, Trace, differences, distances, note_gradients

__all__ = ["CASES", "TOLERANCES", "Trace", "differences", "distances", "note_gradients", "run_case"]
