"""`kedro` as a subprocess, on projects that tests share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOY_PACKAGE = ROOT / "tests" / "toy_package"

Kedro = Callable[..., "subprocess.CompletedProcess[str]"]


QUIET = {"DO_NOT_TRACK": "1", "KEDRO_DISABLE_TELEMETRY": "true"}  # else Kedro calls home


@pytest.fixture(autouse=True)
def no_telemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in QUIET.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="session")
def kedro() -> Kedro:
    """``kedro(folder, *arguments, code=0, **environment)``: what it printed, wrapped lines joined."""

    def run(
        folder: Path, *arguments: object, code: int = 0, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join(map(str, [ROOT, ROOT / "datasets", TOY_PACKAGE]))
        done = subprocess.run(
            [sys.executable, "-m", "kedro", *map(str, arguments)],
            cwd=folder,
            env=os.environ
            | QUIET
            | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "250"}
            | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=280,
        )
        assert done.returncode == code, done.stdout
        return done

    return run
