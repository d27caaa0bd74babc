"""A strategy that cannot run here says so on one line, before a rank is started, and exits with 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from parallel import ParallelError, registry
from zoo.commands import main


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--parallel single --nproc 2", ("--nproc 2", "'single'", "one process")),
        ("--parallel hsdp --nproc 2", ("'hsdp'", "at least 4 ranks")),
        ("--parallel ddp --nproc 0", ("--nproc", "at least 1")),
        ("--parallel ddp --tp 2", ("--tp 2", "'ddp'", "splits no layers")),
        ("--parallel fsdp+tp --nproc 4 --tp 3", ("--tp 3", "does not divide", "4 ranks")),
        ("--parallel ddp+fsdp", ("'ddp+fsdp'", "combination")),
        ("--parallel fspd", ("unknown strategy 'fspd'", "fsdp")),
        ("--parallel tpu", ("'tpu'", "torch_xla", "take ddp or fsdp")),
        ("--parallel tp+XLA", ("'XLA'", "torch_xla")),
        ("--parallel tp --nproc 3", ("hidden.0", "is 20", "3", "allowed degrees: 1, 2, 4, 5, 10, 20")),
        ("--parallel tp --network-depth 1", ("DevNet", "Plan.tensor", "without tp")),
    ],
)
def test_one_line_and_exit_code_2(
    flags: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["train", "devnet", *flags.split(), "--epochs", "1", "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr()
    line = said.err.strip().splitlines()[-1]
    assert said.out == "" and all(word in line for word in words), line
    assert "Traceback" not in said.err
    assert not (tmp_path / "run").exists()


class _Broken:
    """An entry point whose package does not import."""

    name, value, dist = "theirs", "nowhere:ENTRY", None

    def load(self) -> None:
        raise ImportError("No module named 'nowhere'")


def test_a_broken_strategy_of_another_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "entry_points", lambda group: [_Broken()])
    registry._load_entry_points.cache_clear()
    try:
        with pytest.raises(ParallelError, match=r"'theirs'.*nowhere:ENTRY.*uninstall"):
            registry.entries()
    finally:
        registry._load_entry_points.cache_clear()
