"""DeepSpeed's pieces: checkpoints that other strategies read and write, what a rank holds, what it sends."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from pool import Pool
from safetensors.torch import load_file

pytest.importorskip("deepspeed", reason='DeepSpeed is not installed: pip install "parallel-zoo[deepspeed]"')

import deepspeed_jobs as jobs

STEPS, MORE = 6, 5  # the save is in the middle of the second epoch

# Saved under the first, taken up by the second.
MOVES = [
    ("deepspeed-zero3", 2, "fsdp", 3, "gan"),
    ("deepspeed-zero3", 3, "single", 1, "short-bias"),
    ("deepspeed-zero3", 2, "deepspeed-zero3", 2, "gan"),
    ("deepspeed-zero2", 2, "deepspeed-zero3", 3, "tied"),
    ("deepspeed-zero1", 3, "ddp", 2, "branch"),
    ("single", 1, "deepspeed-zero3", 2, "gan"),
    ("fsdp", 3, "deepspeed-zero1", 2, "attention"),
    ("zero1", 2, "deepspeed-zero2-offload", 2, "branch"),
    ("deepspeed-zero3-offload", 2, "zero3", 2, "mlp"),
]


def close(got: list[list[float]], want: list[list[float]]) -> bool:
    return torch.allclose(torch.tensor(got), torch.tensor(want), rtol=1e-9, atol=0.0)


@pytest.fixture(scope="module")
def unbroken(
    ranks: Pool, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Path, list[list[float]]]]:
    """One process's checkpoint of each case, and what its next steps gave."""
    folder = tmp_path_factory.mktemp("one")
    return {
        case: (
            folder / case,
            ranks.run(jobs.save_midway, "single", 1, case, folder / case, STEPS, MORE, precision="fp64")[0],
        )
        for case in {move[-1] for move in MOVES}
    }


@pytest.mark.parametrize(("spec", "n", "then", "m", "case"), MOVES)
def test_saved_under_one_goes_on_under_another(
    ranks: Pool,
    unbroken: dict[str, tuple[Path, list[list[float]]]],
    tmp_path: Path,
    spec: str,
    n: int,
    then: str,
    m: int,
    case: str,
) -> None:
    one, want = unbroken[case]
    own = tmp_path / "own"
    assert close(
        ranks.run(jobs.save_midway, spec, n, case, own, STEPS, MORE, precision="fp64")[0], want
    )  # saving changes nothing
    assert close(ranks.run(jobs.load_midway, then, m, case, own, MORE, precision="fp64")[0], want)
    for file in one.glob("*/*.safetensors"):
        ours, theirs = load_file(file), load_file(own / file.relative_to(one))
        assert ours.keys() == theirs.keys()
        for name, tensor in ours.items():
            assert (theirs[name].shape, theirs[name].dtype) == (tensor.shape, tensor.dtype), name


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_each_rank_holds_its_share(ranks: Pool, stage: int) -> None:
    found = ranks.run(jobs.accounts, f"deepspeed-zero{stage}", 2)[0]
    whole = 4 * found["numbers"]
    share = whole / 2 + 4 * 16  # no more than an end of the flat tensor, or of each parameter, is rounded up
    for held in found["memory"]:
        assert held.parameters <= (share if stage == 3 else whole)
        assert held.optimizer <= 3 * share  # two moments, and the weights that are stepped
        assert held.gradients == whole  # until they are summed
        assert held.gathered == 0
    assert sum(held.optimizer for held in found["memory"]) == 3 * whole


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_gradients_are_summed_once_a_step(ranks: Pool, stage: int) -> None:
    """However many parts it has."""
    found = [ranks.run(jobs.accounts, f"deepspeed-zero{stage}", 2, accumulate=parts)[0] for parts in (1, 3)]
    kinds = ("reduce_scatter",) if stage == 3 else ("all_reduce", "reduce")
    sums = [{kind: run["bytes"].get(kind, 0) for kind in kinds} for run in found]
    assert sums[0] == sums[1]
    assert sum(sums[0].values()) >= 4 * found[0]["numbers"]
