"""Strategies that need another library, where it is not installed: listed, explained, refused before a rank starts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from parallel import launch, launch_each, registry
from parallel.errors import ParallelError
from zoo.commands import main

ENGINES = {
    "deepspeed": ("DeepSpeed", [f"deepspeed-zero{n}{end}" for n in (1, 2, 3) for end in ("", "-offload")]),
    "accelerate": ("Accelerate", ["accelerate-ddp", "accelerate-fsdp"]),
    "fabric": ("Lightning Fabric", ["fabric-ddp", "fabric-fsdp"]),
}
SPECS = [(spec, extra) for extra, (_, specs) in ENGINES.items() for spec in specs]


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment without extras; no process is started by accident."""
    monkeypatch.setattr(registry, "find_spec", lambda module: None)
    monkeypatch.setattr("parallel.launcher.Ranks", None)


def test_the_registry_knows_them_all() -> None:
    assert [entry.name for entry in registry.entries() if entry.library] == [spec for spec, _ in SPECS]


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize(("spec", "extra"), SPECS)
def test_a_missing_extra_is_one_line_before_a_rank_starts(spec: str, extra: str) -> None:
    name = ENGINES[extra][0]
    said = f'strategy {spec!r}: {name} is not installed: pip install "parallel-zoo[{extra}]"'
    with pytest.raises(ParallelError) as caught:
        launch(print, spec, nproc=2)
    assert str(caught.value) == said
    with pytest.raises(ParallelError) as caught:
        launch_each(print, ["single", spec], nproc=2)
    assert str(caught.value) == said
    with pytest.raises(ParallelError) as caught:
        registry.resolve(spec)[0].load()  # what a rank on another machine would meet
    assert str(caught.value) == said


@pytest.mark.usefixtures("bare")
def test_the_command_ends_with_2(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert main(["train", "devnet", "--parallel", "fabric-ddp", "--out", str(run)]) == 2
    shown = capsys.readouterr()
    assert shown.err.splitlines()[-1].endswith('pip install "parallel-zoo[fabric]"')
    assert len(shown.err.splitlines()) == 1 and shown.out == ""
    assert not run.exists()


def test_the_list_says_which_are_there(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "find_spec", lambda module: None if module != "accelerate" else module)
    assert main(["list"]) == 0
    usable, missing = capsys.readouterr().out.split("strategies that cannot run here:")
    assert "accelerate-ddp " in usable and "fabric-ddp" not in usable
    assert "accelerate" not in missing
    for extra in ("fabric", "deepspeed"):
        name, specs = ENGINES[extra]
        for spec in specs:
            row = next(line for line in missing.splitlines() if line.split()[:1] == [spec])
            assert row.endswith(f'{name} is not installed: pip install "parallel-zoo[{extra}]"')
    assert main(["list", "--json"]) == 0
    rows = {row["name"]: row["missing"] for row in json.loads(capsys.readouterr().out)["strategies"]}
    assert rows["ddp"] is None and rows["accelerate-ddp"] is None
    assert rows["fabric-fsdp"] == 'Lightning Fabric is not installed: pip install "parallel-zoo[fabric]"'


def test_no_engine_is_imported_before_it_is_asked_for() -> None:
    """Neither by listing, nor by any strategy of our own."""
    code = """
import sys
from parallel import launch, registry
for entry in registry.entries():
    entry.missing()
    if entry.library is None:
        entry.load()
launch(lambda p: None, "single")
print(*{"accelerate", "deepspeed", "lightning_fabric"} & sys.modules.keys())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize(
    ("spec", "name"), [("fabric-ddp+tp", "Lightning Fabric"), ("tp+deepspeed-zero1", "DeepSpeed")]
)
def test_they_combine_with_nothing(spec: str, name: str) -> None:
    with pytest.raises(
        ParallelError, match=rf"which {name} carries, combines with nothing; take ddp\+tp or fsdp\+tp"
    ):
        registry.resolve(spec)
