"""Without Kedro everything else works, and the integration says what to install."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TOY_PACKAGE = Path(__file__).resolve().parents[1] / "toy_package"

# Python finds nothing by these names, as if they were not installed; nor does any process started from there.
HIDING = """
from importlib.machinery import PathFinder

find = PathFinder.find_spec


def find_spec(name, path=None, target=None):
    hidden = name.partition(".")[0] in ("kedro", "kedro_datasets", "kedro_telemetry", "kedro_viz")
    return None if hidden else find(name, path, target)


PathFinder.find_spec = find_spec
"""

EVERYTHING_ELSE = """
import importlib, pkgutil, sys
import parallel, zoo, zoo_datasets
from zoo.commands import main

behind_extras = ("parallel.adapters.", "zoo.integrations.kedro")
for package in (parallel, zoo, zoo_datasets):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not module.name.startswith(behind_extras):
            importlib.import_module(module.name)
assert main(["train", "toy", "--steps", "2", "--out", sys.argv[1]]) == 0
assert main(["evaluate", sys.argv[1]]) == 0
"""

THE_INTEGRATION = """
import importlib, zoo.integrations

for module in ("", ".functions", ".nodes", ".hooks", ".datasets", ".datasets.checkpoint", ".pipelines"):
    try:
        importlib.import_module(f"zoo.integrations.kedro{module}")
    except ImportError as error:
        print(error)
"""


@pytest.fixture
def without_kedro(tmp_path: Path) -> dict[str, str]:
    """The environment of a process that knows no Kedro."""
    (tmp_path / "sitecustomize.py").write_text(HIDING)
    path = os.pathsep.join([str(tmp_path), str(TOY_PACKAGE), *filter(None, sys.path)])
    return os.environ | {"PYTHONPATH": path}


def run(code: str, environment: dict[str, str], *argv: object) -> str:
    command = [sys.executable, "-c", code, *map(str, argv)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_everything_else_works(without_kedro: dict[str, str], tmp_path: Path) -> None:
    assert "mse" in run(EVERYTHING_ELSE, without_kedro, tmp_path / "run")


def test_the_integration_names_the_extra(without_kedro: dict[str, str]) -> None:
    hint = "zoo.integrations.kedro needs Kedro: pip install 'parallel-zoo[kedro]'"
    assert run(THE_INTEGRATION, without_kedro).splitlines() == [hint] * 7


def test_it_is_hidden_as_if_it_were_not_installed(without_kedro: dict[str, str]) -> None:
    code = "from importlib.util import find_spec; print(find_spec('kedro'), find_spec('torch') is not None)"
    assert run(code, without_kedro).split() == ["None", "True"]
