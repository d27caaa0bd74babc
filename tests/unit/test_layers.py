"""The layers: that the rules in pyproject.toml catch what they forbid, and one rule that no linter has."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from parallel.registry import entries

ROOT = Path(__file__).resolve().parents[2]


def tool(name: str) -> str:
    """The path of a console script that stands beside this interpreter."""
    return str(Path(sys.executable).parent / name)


def ruff(code: str, path: str) -> str:
    """What ruff says of `code`, were it the file `path` of this project."""
    done = subprocess.run(
        [tool("ruff"), "check", "--no-cache", "--output-format=concise", "--stdin-filename", path, "-"],
        input=code,
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "code",
    [
        "import torch.distributed as dist\n\ndist.barrier()\n",
        "from torch import distributed\n\ndistributed.barrier()\n",
        "from torch.distributed.tensor import DTensor\n\nDTensor()\n",
        "import torch\n\ntorch.distributed.barrier()\n",
    ],
)
def test_only_parallel_may_use_torch_distributed(code: str) -> None:
    assert "TID251" in ruff(code, "zoo/trainer.py")
    assert "TID251" in ruff(code, "zoo/models/devnet/model.py")
    assert "TID251" in ruff(code, "datasets/zoo_datasets/table.py")
    assert "TID251" not in ruff(code, "parallel/ddp.py")


def test_no_unpickling() -> None:
    assert "S301" in ruff("import pickle\n\npickle.loads(b'')\n", "zoo/run.py")


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("parallel", "zoo"),
        ("parallel", "zoo_datasets"),
        ("zoo_datasets", "zoo"),
        ("zoo_datasets", "parallel"),
    ],
)
def test_the_import_contracts_catch(source: str, target: str, tmp_path: Path) -> None:
    """On a tree with one line in the wrong layer, hidden in a function of a deep module."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for package in ("parallel", "zoo", "zoo_datasets"):
        (tmp_path / package / "deep").mkdir(parents=True)
        (tmp_path / package / "__init__.py").touch()
        (tmp_path / package / "deep" / "__init__.py").touch()

    def lint() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [tool("lint-imports"), "--no-cache"], capture_output=True, text=True, cwd=tmp_path, check=False
        )

    clean = lint()
    assert clean.returncode == 0, clean.stdout + clean.stderr
    (tmp_path / source / "deep" / "wrong.py").write_text(f"def late():\n    import {target}.deep\n")
    caught = lint()
    assert caught.returncode == 1
    assert f"{source}.deep.wrong -> {target}" in caught.stdout


STRATEGIES = {entry.engine.partition(":")[0] for entry in entries() if isinstance(entry.engine, str)}
STRATEGIES |= {"parallel.strategy", "parallel.engine"}


def questions_about_strategies(source: str) -> Iterator[str]:
    """Every `isinstance` or `issubclass` in `source` against a strategy or an engine of `parallel`."""
    tree = ast.parse(source)
    imported: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "") in STRATEGIES:
            imported.update(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Import):
            imported.update(
                (alias.asname or alias.name).split(".")[0]
                for alias in node.names
                if alias.name.split(".")[0] == "parallel"
            )
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("isinstance", "issubclass")
            and any(isinstance(name, ast.Name) and name.id in imported for name in ast.walk(node.args[1]))
        ):
            yield f"line {node.lineno}: {ast.unparse(node)}"


def test_the_question_is_found_where_it_is_asked() -> None:
    asked = "from parallel.ddp import DDP as D\n\nif isinstance(p, (int, D)):\n    pass\n"
    assert list(questions_about_strategies(asked)) == ["line 3: isinstance(p, (int, D))"]
    asked = "import parallel.ddp\n\nissubclass(type(p), parallel.ddp.DDP)\n"
    assert list(questions_about_strategies(asked)) == ["line 3: issubclass(type(p), parallel.ddp.DDP)"]
    assert list(questions_about_strategies("from parallel import Plan\n\nisinstance(3, int)\n")) == []


def test_zoo_never_asks_which_strategy_it_runs_on() -> None:
    files = sorted((ROOT / "zoo").rglob("*.py"))
    assert files
    for path in files:
        assert list(questions_about_strategies(path.read_text())) == [], path
