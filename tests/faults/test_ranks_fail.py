"""One rank's failure ends the whole run, with that rank's traceback, and leaves nothing behind."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest
from jobs import BoomError, job, poison, unequal
from pool import CaseError, Pool

from parallel import ParallelError, RankError, launch


def ended(folder: Path) -> bool:
    """Whether the processes that left their ids are gone."""
    found = [int(file.read_text()) for file in folder.iterdir() if file.is_file()]
    assert found
    deadline = time.monotonic() + 5.0
    while any(map(alive, found)) and time.monotonic() < deadline:
        time.sleep(0.05)  # killed is not yet gone
    return not any(map(alive, found))


def alive(process: int) -> bool:
    """Runs still; one that has ended may wait for somebody to ask how."""
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"


@pytest.mark.usefixtures("temporary")
@pytest.mark.parametrize(
    "place", ["start", "step", pytest.param("evaluation", marks=pytest.mark.slow), "save"]
)
def test_an_exception_anywhere_is_the_first_and_only_one(place: str, tmp_path: Path) -> None:
    with pytest.raises((BoomError, ParallelError)) as caught:
        launch(job, "ddp", tmp_path, place, "raise", 2, nproc=2)
    if place == "save":
        assert "keeps 'exp_avg', which is no tensor" in str(caught.value)
    else:
        assert str(caught.value) == f"at {place}"
    (note,) = caught.value.__notes__
    assert note.startswith("Raised on rank 1 of 2:\nTraceback")
    assert "jobs.py" in note
    assert not (tmp_path / "checkpoint" / "manifest.json").exists()
    assert ended(tmp_path)


@pytest.mark.usefixtures("temporary")
@pytest.mark.parametrize("spec", ["ddp", pytest.param("fsdp", marks=pytest.mark.slow)])
def test_a_killed_rank_is_named_with_the_last_steps(spec: str, tmp_path: Path) -> None:
    with pytest.raises(
        RankError, match=r"^rank 1 of 2 was killed by SIGKILL .*\(steps finished: .*rank 1: 2\)"
    ):
        launch(job, spec, tmp_path, "step", "kill", 2, nproc=2)
    assert ended(tmp_path)
    assert any(file.name.startswith("worker") for file in tmp_path.iterdir())


@pytest.mark.usefixtures("temporary")
def test_a_stuck_rank_is_named_with_its_stack(tmp_path: Path) -> None:
    with pytest.raises(RankError, match=r"^rank 1 of 2 is stuck: rank 0 waited .*rank 1: 2\)") as caught:
        launch(job, "ddp", tmp_path, "step", "hang", nproc=2, timeout=4.0)
    assert "in stuck_here" in caught.value.__notes__[0]
    assert ended(tmp_path)


@pytest.mark.parametrize("spec", ["ddp", pytest.param("fsdp", marks=pytest.mark.slow)])
def test_a_rank_that_leaves_its_loop_early_ends_the_run(spec: str, tmp_path: Path) -> None:
    """The others' next collective fails, since the rank is gone; or they wait no longer than they are told to."""
    with pytest.raises(Exception, match=r"[Cc]onnection|[Tt]imed out|is stuck"):
        launch(unequal, spec, tmp_path, "leaves", nproc=2, timeout=4.0)
    assert ended(tmp_path)


@pytest.mark.parametrize(("how", "said"), [("rows", "the data set has"), ("draws", "an epoch draws")])
def test_ranks_with_other_data_are_refused_before_they_wait(
    how: str, said: str, ranks: Pool, tmp_path: Path
) -> None:
    said = f"ParallelError: {said} 24 rows on rank 0 and 32 on rank 1: give every rank the whole of the same"
    for spec, n in (("ddp", 2), ("zero1", 2), ("fsdp", 3), ("tp", 2)):
        with pytest.raises(CaseError, match=said):
            ranks.run(unequal, spec, n, tmp_path, how)


@pytest.mark.usefixtures("temporary")
def test_a_run_leaves_no_process_port_or_shared_memory(tmp_path: Path) -> None:
    before = set(os.listdir("/dev/shm"))
    assert launch(job, "ddp", tmp_path, "nowhere", "", 1, nproc=2) == 5
    (tmp_path / "checkpoint").rename(tmp_path.with_name("kept"))
    assert ended(tmp_path)
    assert not set(os.listdir("/dev/shm")) - before
    with socket.socket() as free:  # torch's usual port was never taken
        free.bind(("127.0.0.1", 29500))


@pytest.mark.parametrize(("spec", "n"), [("single", 1), ("ddp", 2), ("fsdp", 2), ("zero1", 2)])
def test_a_nan_stops_before_it_is_in_the_weights(ranks: Pool, spec: str, n: int) -> None:
    with pytest.raises(
        CaseError, match=r"NonFiniteError: step 3: the gradient of 0\.weight of Sequential is NaN"
    ):
        ranks.run(poison, spec, n, 2, 4, on_nan="stop")


@pytest.mark.parametrize(("spec", "n"), [("single", 1), ("ddp", 3), ("fsdp", 2), ("zero1", 2)])
def test_a_nan_is_left_out_on_every_rank(ranks: Pool, spec: str, n: int) -> None:
    for rank, (skipped, finite) in enumerate(ranks.run(poison, spec, n, 2, 4, on_nan="skip")):
        assert skipped == [False, False, True, False]
        assert all(finite)
        assert rank > 0 or len(finite) == 4
