"""The examples do what they say, and stay short."""

from __future__ import annotations

import difflib
import inspect
import json
import os
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from parallel import launch_each, registry
from parallel.testing import CASES, differences
from zoo.commands import main

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"


@pytest.fixture
def example(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return pytest.importorskip(request.param)  # type: ignore[no-any-return]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """What pip leaves of a package whose pyproject.toml says what the examples tell."""
    info = tmp_path / "site" / "examples-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: examples\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[parallel_zoo.strategies]\nflat = own_strategy:FLAT\n[parallel_zoo.models]\nwine = own_model:WINE\n"
    )
    return info.parent


def python(*argv: object, cwd: Path, path: tuple[Path, ...] = ()) -> str:
    """A new process's stdout, and its stderr where it fails."""
    found = os.pathsep.join(map(str, [*path, ROOT, ROOT / "datasets"]))
    done = subprocess.run(
        [sys.executable, *map(str, argv)],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": found, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("example", ["own_strategy"], indirect=True)
def test_own_strategy_passes_the_contract(example: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._ENTRIES, "flat", example.FLAT)
    one, flat = launch_each(example.contract, ["single", "flat"], nproc=3, precision="fp64")
    assert one.keys() == flat.keys() == CASES.keys()
    for name in CASES:
        assert not differences(one[name], flat[name], "fp64"), name


def test_own_strategy_is_one_page() -> None:
    assert len((EXAMPLES / "own_strategy.py").read_text().splitlines()) < 60


@pytest.mark.parametrize("example", ["own_loop"], indirect=True)
def test_both_loops_give_the_same_numbers(example: Any) -> None:
    loss, accuracy = example.plain()
    assert accuracy > 0.9
    for found in launch_each(example.spread, ["ddp", "fsdp"], nproc=3):
        assert found == pytest.approx((loss, accuracy), rel=1e-4)


@pytest.mark.parametrize("example", ["own_loop"], indirect=True)
def test_the_loops_differ_by_a_handful_of_lines(example: Any) -> None:
    plain, spread = (
        inspect.getsource(function).splitlines()[1:-1] for function in (example.plain, example.spread)
    )
    added = [line for line in difflib.ndiff(plain, spread) if line.startswith("+ ")]
    assert len(added) <= 8
    assert abs(len(plain) - len(spread)) <= 1


@pytest.mark.slow  # the same numbers as in the test before, printed
def test_own_loop_as_a_script(tmp_path: Path) -> None:
    plain, spread = python(EXAMPLES / "own_loop.py", "ddp", 2, cwd=tmp_path).splitlines()
    assert plain.split()[:3] == ["plain", "test", "loss"]
    assert spread.split()[0] == "ddp"
    assert plain.split()[1:] == spread.split()[1:]


@pytest.mark.parametrize("example", ["own_model"], indirect=True)
def test_own_model_is_trained_by_one_rank_and_by_two(
    example: Any, package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(package))
    monkeypatch.chdir(tmp_path)
    results = []
    for spec in ("single", "fsdp"):
        with redirect_stdout(out := StringIO()):
            assert main(["train", "wine", "--parallel", spec, "--precision", "fp64", "--json"]) == 0
        results.append(json.loads(out.getvalue()))
    assert results[0]["metrics"]["accuracy"] > 0.9
    assert results[0]["metrics"] == pytest.approx(results[1]["metrics"], rel=1e-12)
    losses = [
        [
            json.loads(line)["loss"]
            for line in (Path(result["run"]) / "metrics.jsonl").read_text().splitlines()
            if "loss" in line
        ]
        for result in results
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)
    assert main(["train", "wine", "--data", "mine.csv"]) == 2


def test_an_installed_strategy_and_model_are_the_commands_own(package: Path, tmp_path: Path) -> None:
    """Their package is met by a process that starts with it, as after ``pip install``."""
    code = (
        "from zoo.commands import main\n"
        "codes = main('list --json'.split()),"
        " main('parity wine --parallel flat,tp --nproc 2 --steps 3 --json'.split())\n"
        "assert codes == (0, 0), codes"
    )
    listed, found = map(json.loads, python("-c", code, cwd=tmp_path, path=(package, EXAMPLES)).splitlines())
    assert "flat" in [strategy["name"] for strategy in listed["strategies"]]
    assert "wine" in [model["name"] for model in listed["models"]]
    assert found["passed"]
    assert found["strategies"][0]["traffic"]["all_reduce"]["calls"] == 1
    assert not torch.distributed.is_initialized()
