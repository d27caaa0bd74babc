"""What the distribution promises: its version, its lock file, and imports that cost nothing."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def modules_after(code: str) -> set[str]:
    """The names in `sys.modules` of a new interpreter that ran `code`, without the folder on its path."""
    report = "import sys\nprint()\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", f"{code}\n{report}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


def test_modules_after_sees_what_is_imported() -> None:
    assert "torch" in modules_after("import torch")
    assert "torch" not in modules_after("import json")


@pytest.mark.parametrize("package", ["zoo", "parallel", "zoo_datasets"])
def test_a_package_imports_without_torch(package: str) -> None:
    modules = modules_after(f"import {package}")
    assert package in modules
    assert not modules & {"torch", "sklearn", "pandas", "matplotlib"}


def test_help_comes_without_torch() -> None:
    modules = modules_after(
        "from zoo.commands import main\n"
        "try:\n"
        "    code = main(['--help'])\n"
        "except SystemExit as stop:\n"
        "    code = stop.code\n"
        "assert not code, code\n"
    )
    assert "zoo.commands" in modules
    assert not modules & {"torch", "sklearn", "pandas", "matplotlib"}


def test_the_folder_datasets_is_no_package() -> None:
    """From the root it would shadow Hugging Face's `datasets`."""
    assert (ROOT / "datasets" / "zoo_datasets" / "__init__.py").is_file()
    assert not (ROOT / "datasets" / "__init__.py").exists()


def test_the_version_is_the_one_of_the_distribution() -> None:
    import zoo

    assert zoo.__version__ == PROJECT["version"]


@pytest.mark.parametrize("package", ["zoo", "parallel", "datasets/zoo_datasets"])
def test_a_package_is_marked_as_typed(package: str) -> None:
    assert (ROOT / package / "py.typed").is_file()


def test_the_lock_holds_each_package_once_and_the_releases_that_the_facts_were_probed_on() -> None:
    locked = tomllib.loads((ROOT / "poetry.lock").read_text())["package"]
    counts = Counter(package["name"] for package in locked)
    assert [name for name, count in counts.items() if count > 1] == []
    versions = {package["name"]: package["version"] for package in locked}
    assert (versions["torch"], versions["torchvision"]) == ("2.14.1", "0.29.1")


def test_the_constraints_are_the_locked_versions() -> None:
    locked = {
        (package["name"], package["version"])
        for package in tomllib.loads((ROOT / "poetry.lock").read_text())["package"]
    }
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    constraints = [tuple(line.split(" ;")[0].split("==")) for line in lines]
    assert len(constraints) == len(set(constraints)) > 0
    assert set(constraints) <= locked


def test_no_committed_list_of_packages_names_an_index() -> None:
    for name in ("poetry.lock", "constraints.txt", "pyproject.toml"):
        text = (ROOT / name).read_text()
        assert "://" not in text, name
        assert "index-url" not in text, name
