"""The contract's cases under DeepSpeed: losses, gradient norms, weights and averages as one process's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pool import Pool

from parallel.testing import CASES, Trace, differences, run_case

pytest.importorskip("deepspeed", reason='DeepSpeed is not installed: pip install "parallel-zoo[deepspeed]"')

import deepspeed_jobs as jobs

STAGES = ("deepspeed-zero1", "deepspeed-zero2", "deepspeed-zero3")
OFFLOADED = tuple(f"{stage}-offload" for stage in STAGES)

Reference = Callable[[str, str], Trace]

# Every stage and every case in fp64; the cases whose ways are their own under every stage, and in fp32 too.
DEFAULT = {
    *((stage, "gan", 2, 1) for stage in STAGES),
    *((stage, "branch", 2, 2) for stage in STAGES),
    ("deepspeed-zero1", "mlp", 3, 2),
    ("deepspeed-zero1", "short-bias", 2, 1),
    ("deepspeed-zero2", "dropout", 2, 2),
    ("deepspeed-zero2", "conv-batchnorm", 2, 1),
    ("deepspeed-zero2", "tied", 3, 1),
    ("deepspeed-zero3", "tied", 2, 1),
    ("deepspeed-zero3", "forwards", 2, 2),
    ("deepspeed-zero3", "attention", 2, 1),
    ("deepspeed-zero3", "short-bias", 3, 1),
    ("deepspeed-zero1-offload", "mlp", 2, 2),
    ("deepspeed-zero3-offload", "gan", 2, 2),
}


def cells() -> Iterator[Any]:
    for spec in STAGES + OFFLOADED:
        for case in CASES:
            for n in (2, 3):
                for parts in (1, 2):
                    if not (CASES[case].batchnorm and parts > 1):
                        for precision in ("fp64", "fp32"):
                            lean = (spec, case, n, parts) in DEFAULT
                            lean &= precision == "fp64" or case in ("gan", "branch")
                            yield pytest.param(
                                *(spec, case, n, parts, precision),
                                id=f"{spec}-{case}-{n}r-{parts}p-{precision}",
                                marks=() if lean else pytest.mark.slow,
                            )


@pytest.fixture(scope="module")
def one_process(ranks: Pool) -> Reference:
    known: dict[tuple[str, str], Trace] = {}

    def run(case: str, precision: str) -> Trace:
        if (case, precision) not in known:
            known[case, precision] = ranks.run(run_case, "single", 1, case, precision=precision)[0]
        return known[case, precision]

    return run


@pytest.mark.parametrize(("spec", "case", "n", "parts", "precision"), list(cells()))
def test_equals_one_process(
    ranks: Pool, one_process: Reference, spec: str, case: str, n: int, parts: int, precision: str
) -> None:
    got = ranks.run(run_case, spec, n, case, precision=precision, accumulate=parts)[0]
    assert not differences(one_process(case, precision), got, precision)


@pytest.mark.parametrize("precision", ["bf16-mixed", "fp16-mixed"])
@pytest.mark.parametrize("spec", ["deepspeed-zero2", "deepspeed-zero3"])
def test_lower_precisions(ranks: Pool, spec: str, precision: str) -> None:
    """Autocast, and a loss scale an optimizer, over weights that stay fp32."""
    want = ranks.run(jobs.low, "single", 1, "gan", precision=precision)[0]
    assert not differences(want, ranks.run(jobs.low, spec, 2, "gan", precision=precision)[0], precision)


@pytest.mark.parametrize("spec", ["deepspeed-zero2", "deepspeed-zero3"])
@pytest.mark.parametrize(
    "job", [jobs.strange, jobs.two_ways_to_write, jobs.not_frozen], ids=lambda job: job.__name__
)
def test_what_trainers_do(ranks: Pool, spec: str, job: Callable[..., list[float]]) -> None:
    want = ranks.run(job, "single", 1)[0]
    assert ranks.run(job, spec, 2)[0] == pytest.approx(want, rel=1e-5)


@pytest.mark.parametrize("spec", [STAGES[0], STAGES[2], OFFLOADED[0], OFFLOADED[2]])
def test_a_gradient_that_is_no_number_goes_into_the_weights_unless_told_otherwise(
    ranks: Pool, spec: str
) -> None:
    """DeepSpeed by itself leaves the step out, and says nothing."""
    assert ranks.run(jobs.poisoned, spec, 2)[0] == ranks.run(jobs.poisoned, "single", 1)[0]
    assert ranks.run(jobs.poisoned, spec, 2, on_nan="skip")[0] == [False, True, False, False, True]
