"""Several strategies in turn, by processes that start once."""

from __future__ import annotations

import os
from typing import Any, ClassVar
from unittest import mock

import pytest

from parallel import Parallel, ParallelError, launch, launch_each, registry
from parallel.engine import Engine
from parallel.launcher import Place
from parallel.registry import StrategyEntry


class Mine(Engine):
    axes: ClassVar[tuple[str, ...]] = ("replicate",)


def look(p: Parallel) -> dict[str, Any]:
    return {"spec": p.spec, "ranks": p.world_size, "shares": p.data_size, "pid": os.getpid()}


def fail_under(p: Parallel, spec: str) -> None:
    if p.spec == spec and p.rank == 1:
        raise KeyError("broken on purpose")
    p.barrier()


def test_each_runs_on_as_many_ranks_as_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._ENTRIES, "mine", StrategyEntry("mine", "", Mine))
    found = launch_each(look, ["single", "ddp", "ddp+tp", "dp", "mine", "ddp"])
    assert [row["spec"] for row in found] == ["single", "ddp", "ddp+tp", "dp", "mine", "ddp"]
    assert [row["ranks"] for row in found] == [1, 2, 4, 1, 2, 2]
    assert [row["shares"] for row in found] == [1, 2, 2, 1, 2, 2]
    assert len({row["pid"] for row in found}) == 1
    assert found[0]["pid"] != os.getpid()


def test_one_process_runs_in_place() -> None:
    assert [row["pid"] for row in launch_each(look, ["single", "dp"], nproc=3)] == [os.getpid()] * 2


def test_ranks_know_what_their_parent_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._ENTRIES, "mine", StrategyEntry("mine", "", Mine))
    assert launch(look, "mine", nproc=2)["ranks"] == 2


def test_a_fault_of_one_turn_ends_them_all() -> None:
    with pytest.raises(KeyError, match="broken on purpose") as caught:
        launch_each(fail_under, ["ddp", "fsdp", "ddp"], "fsdp", nproc=2)
    assert any("Raised on rank 1 of 2" in note for note in caught.value.__notes__)


@pytest.mark.parametrize(
    ("specs", "nproc", "said"),
    [
        (["ddp", "nonesuch"], 2, "unknown strategy 'nonesuch'"),
        (["ddp", "hsdp"], 2, "strategy 'hsdp' needs at least 4 ranks"),
        (["ddp", "tp"], 0, "--nproc is 0"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_starts(specs: list[str], nproc: int, said: str) -> None:
    with pytest.raises(ParallelError, match=said):
        launch_each(look, specs, nproc=nproc)


def test_a_name_is_registered_once() -> None:
    entry = registry.resolve("ddp")[0]
    assert registry.register(entry) is entry
    with pytest.raises(ParallelError, match="a strategy named 'ddp' is registered already"):
        registry.register(StrategyEntry("ddp", "another", Mine))


def test_launches_of_one_process_have_turns_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under torchrun the ranks of a second launch would else meet at what the first left in the agent's store."""
    turns: list[int] = []

    def create(spec: str, options: object, place: Place) -> mock.Mock:
        turns.append(place.turn)
        return mock.Mock()

    monkeypatch.setattr("parallel.setup.create", create)
    launch(print)
    launch_each(print, ["single", "single"])
    launch(print)
    assert turns == list(range(turns[0], turns[0] + 4))
