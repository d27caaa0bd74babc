"""Which ranks there are: what a launcher says, what a spec needs, and how the ranks lie."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from pool import Pool
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from parallel import registry
from parallel.errors import ParallelError
from parallel.interface import Parallel
from parallel.launcher import Options, Place, describe_launch, find_launch
from parallel.mesh import World, axis_sizes, lay_out
from parallel.registry import StrategyEntry
from parallel.setup import choose_device
from parallel.testing import nets

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "2950",
}
SRUN = {
    "SLURM_JOB_ID": "100123",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.2",
}
SALLOC = {"SLURM_JOB_ID": "100123", "SLURM_NTASKS": "16", "SLURM_JOB_NUM_NODES": "2", "SLURM_PROCID": "0"}

# Launchers


def test_torchrun() -> None:
    assert find_launch(TORCHRUN) == Place(5, 8, 1, "10.0.0.1", 2950, "torchrun")


def test_srun() -> None:
    assert find_launch(SRUN) == Place(3, 4, 1, "10.0.0.2", 20123, "SLURM")
    named = SRUN | {"MASTER_ADDR": "node1", "MASTER_PORT": "4000"}
    assert find_launch(named) == Place(3, 4, 1, "node1", 4000, "SLURM")


@given(st.sets(st.sampled_from(sorted(TORCHRUN)), max_size=len(TORCHRUN) - 1))
def test_half_a_torchrun_is_none(left: set[str]) -> None:
    """A stray RANK or WORLD_SIZE, that a container or an older job left in the environment."""
    assert find_launch({name: TORCHRUN[name] for name in left}) is None


@given(st.sets(st.sampled_from(sorted(set(SRUN) - {"SLURM_LAUNCH_NODE_IPADDR"})), max_size=4))
def test_half_an_srun_is_none(left: set[str]) -> None:
    assert find_launch({name: SRUN[name] for name in left}) is None


@pytest.mark.parametrize(
    "environ",
    [
        SALLOC,  # the shell that salloc or sbatch opens
        SRUN | {"SLURM_STEP_NUM_TASKS": "1"},  # one task, such as srun --pty bash
        dict.fromkeys(TORCHRUN, ""),
        {},
    ],
)
def test_what_is_no_launch(environ: dict[str, str]) -> None:
    assert find_launch(environ) is None


def test_srun_without_an_address_says_what_to_set() -> None:
    environ = {name: value for name, value in SRUN.items() if name != "SLURM_LAUNCH_NODE_IPADDR"}
    with pytest.raises(ParallelError, match="names no SLURM_LAUNCH_NODE_IPADDR: set MASTER_ADDR"):
        find_launch(environ)


@given(
    st.integers(1, 10**8),
    st.lists(st.integers(0, 9_999), min_size=2, max_size=2, unique=True),
)
def test_two_steps_of_one_job_meet_on_ports_of_their_own(job: int, steps: list[int]) -> None:
    """Two ``srun ... &`` in one allocation may have their first ranks on one machine."""
    environs = [SRUN | {"SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)} for step in steps]
    one, other = (find_launch(environ) for environ in environs)
    assert one is not None and other is not None
    assert one.port != other.port
    assert all(20000 <= place.port < 40000 for place in (one, other))
    again = find_launch(environs[0] | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0"})
    assert again is not None and again.port == one.port  # all ranks of a step come to the same


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({}, ""),
        ({"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}, ""),
        (TORCHRUN | SALLOC, "8 ranks were started by torchrun"),
        (SRUN, "4 ranks were started by SLURM"),
        (
            {"RANK": "7", "WORLD_SIZE": "9"},
            "no whole launch by torchrun or srun, and so left aside: RANK=7, WORLD_SIZE=9",
        ),
        (
            SALLOC | {f"SLURM_{number}": "x" for number in range(30)},
            "no whole launch by torchrun or srun, and so left aside: SLURM_JOB_ID=100123, SLURM_PROCID=0, "
            "SLURM_NTASKS=16",
        ),
    ],
)
def test_what_was_found_is_said(environ: dict[str, str], said: str) -> None:
    assert describe_launch(environ) == said


# Specs


@pytest.mark.parametrize(
    ("spec", "near"),
    [
        ("dpp", "dp or ddp"),
        ("FSDP", "did you mean fsdp"),
        ("fsdpp", "fsdp"),
        ("zero4", "zero"),
        ("ddp+tpp", "tp"),
        ("", "unknown strategy ''"),
    ],
)
def test_an_unknown_strategy_names_the_nearest(spec: str, near: str) -> None:
    with pytest.raises(ParallelError) as caught:
        registry.resolve(spec)
    said = str(caught.value)
    assert said.startswith("unknown strategy ")
    assert "(known: single, dp, ddp, " in said
    assert near in said
    assert "\n" not in said


@pytest.mark.parametrize("spec", ["ddp+fsdp", "tp+tp", "single+tp", "dp+tp", "ddp+tp+fsdp"])
def test_what_does_not_combine(spec: str) -> None:
    with pytest.raises(
        ParallelError, match="a combination is one that cuts the batch and one that cuts layers"
    ):
        registry.resolve(spec)


def test_a_combination_may_be_spelt_either_way() -> None:
    assert registry.resolve("tp+fsdp") == registry.resolve("fsdp+tp")
    assert [entry.name for entry in registry.resolve("fsdp+tp")] == ["tp", "fsdp"]


@pytest.mark.parametrize(
    ("spec", "nproc", "said"),
    [
        ("ddp", 0, "--nproc is 0; it must be at least 1"),
        ("single", -1, "--nproc is -1; it must be at least 1"),
        ("single", 2, "--nproc 2 with strategy 'single', which is one process: leave it out, or take ddp"),
        ("hsdp", 3, "strategy 'hsdp' needs at least 4 ranks, and --nproc is 3"),
    ],
)
def test_ranks_that_do_not_fit(spec: str, nproc: int, said: str) -> None:
    with pytest.raises(ParallelError) as caught:
        registry.check_ranks(spec, nproc)
    assert str(caught.value) == said


@pytest.mark.parametrize(
    ("spec", "devices", "ranks"),
    [
        ("single", 8, 1),
        ("ddp", 0, 2),
        ("ddp", 1, 2),
        ("ddp", 8, 8),
        ("dp", 0, 2),
        ("tp", 4, 4),
        ("fsdp+tp", 0, 4),
        ("fsdp+tp", 2, 4),
        ("fsdp+tp", 8, 8),
        ("hsdp", 0, 4),
    ],
)
def test_ranks_where_nobody_says(spec: str, devices: int, ranks: int) -> None:
    assert registry.default_ranks(spec, devices) == ranks
    registry.check_ranks(spec, ranks)


def test_a_taken_name_is_refused() -> None:
    with pytest.raises(ParallelError, match="a strategy named 'ddp' is registered already"):
        registry.register(StrategyEntry("ddp", "another", "elsewhere:DDP"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"precision": "fp8"},
            "--precision 'fp8' is unknown; it is one of fp64, fp32, bf16-mixed, fp16-mixed",
        ),
        ({"accumulate": 0}, "--accumulate is 0; it must be at least 1"),
        ({"tp": 0}, "--tp is 0; it must be at least 1"),
        ({"timeout": 0.0}, "--timeout is 0.0; it must be more than 0 seconds"),
        ({"on_nan": "ignore"}, "--on-nan 'ignore' is unknown; it is stop or skip"),
    ],
)
def test_options_out_of_range(options: dict[str, object], said: str) -> None:
    with pytest.raises(ParallelError) as caught:
        Options(**options)  # type: ignore[arg-type]
    assert str(caught.value) == said


# Devices


def test_a_machine_without_gpus_has_cpu_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device(None, 3) == torch.device("cpu")


def test_the_asked_device_is_used_where_there_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device("cpu", 0) == torch.device("cpu")


def test_devices_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ParallelError, match="rank 2 of this machine has no GPU of its own: there are 2"):
        choose_device("cuda", 2)
    with pytest.raises(ParallelError, match="device 'tpu' is not known here; it is cpu or cuda"):
        choose_device("tpu", 0)


def _meshes(p: Parallel) -> list[str]:
    """The device type of each mesh that ``fully_shard`` was handed."""
    with mock.patch("parallel.fsdp.fully_shard", wraps=fully_shard) as spied:
        p.wrap(nets.MLP(), nets.MLP_PLAN)
    return [call.kwargs["mesh"].device_type if "mesh" in call.kwargs else "none" for call in spied.mock_calls]


def test_what_is_sharded_is_sharded_on_the_asked_device(ranks: Pool) -> None:
    """Handed no mesh, ``fully_shard`` takes a GPU where there is one, whatever was asked for."""
    for spec in ("fsdp", "zero2", "zero3", "zero3-offload"):
        assert ranks.run(_meshes, spec, 2, device="cpu") == [["cpu"] * 3] * 2, spec


# How ranks lie


@pytest.mark.parametrize(
    ("axes", "size", "sizes", "want"),
    [
        (("replicate",), 5, {}, [5]),
        (("shard", "tensor"), 6, {"tensor": 2}, [3, 2]),
        (("replicate", "shard"), 4, {"replicate": 2}, [2, 2]),
        (("tensor",), 4, {"tensor": 4}, [4]),
    ],
)
def test_axes(axes: tuple[str, ...], size: int, sizes: dict[str, int], want: list[int]) -> None:
    assert axis_sizes(axes, size, sizes) == want


@pytest.mark.parametrize(
    ("axes", "size", "sizes"),
    [
        (("shard", "tensor"), 6, {"tensor": 4}),
        (("tensor",), 4, {"tensor": 2}),
        (("replicate", "shard"), 5, {"replicate": 2}),
    ],
)
def test_axes_that_do_not_fit(axes: tuple[str, ...], size: int, sizes: dict[str, int]) -> None:
    with pytest.raises(
        ParallelError, match=f"{size} ranks cannot be laid out with .* on the axes {' x '.join(axes)}"
    ):
        axis_sizes(axes, size, sizes)


def worlds(axes: tuple[str, ...], size: int, sizes: dict[str, int]) -> Iterator[World]:
    """Each rank's world in turn, over a process group that sends nothing."""
    for rank in range(size):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
        try:
            yield lay_out(axes, rank, size, rank, torch.device("cpu"), sizes)
        finally:
            dist.destroy_process_group()


@pytest.mark.parametrize(
    ("axes", "size", "sizes", "shares"),
    [
        (("replicate",), 3, {}, [0, 1, 2]),
        (("shard",), 3, {}, [0, 1, 2]),
        (("tensor",), 3, {}, [0, 0, 0]),
        (("replicate", "shard"), 4, {"replicate": 2}, [0, 1, 2, 3]),
        (("replicate", "tensor"), 6, {"tensor": 2}, [0, 0, 1, 1, 2, 2]),
        (("shard", "tensor"), 6, {"tensor": 3}, [0, 0, 0, 1, 1, 1]),
        (("replicate", "shard", "tensor"), 8, {"replicate": 2, "tensor": 2}, [0, 0, 1, 1, 2, 2, 3, 3]),
    ],
)
def test_ranks_that_split_one_model_have_the_same_share(
    axes: tuple[str, ...], size: int, sizes: dict[str, int], shares: list[int]
) -> None:
    """Every other rank has a share of the batch to itself, all axes of data counted."""
    found = [(world.data_rank, world.data_size) for world in worlds(axes, size, sizes)]
    assert found == [(share, max(shares) + 1) for share in shares]
