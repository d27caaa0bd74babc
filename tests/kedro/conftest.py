"""`kedro` as a subprocess, on projects that tests share."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOY_PACKAGE = ROOT / "tests" / "toy_package"

Kedro = Callable[..., Any]


QUIET = {"DO_NOT_TRACK": "1", "KEDRO_DISABLE_TELEMETRY": "true"}  # else Kedro calls home


@pytest.fixture(autouse=True)
def no_telemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in QUIET.items():
        monkeypatch.setenv(name, value)


def start(folder: Path, *arguments: object, **environment: str) -> subprocess.Popen[str]:
    """``kedro`` in a folder, as the leader of a group of processes; wrapped lines of its output are joined."""
    path = os.pathsep.join(map(str, [ROOT, ROOT / "datasets", TOY_PACKAGE]))
    ours = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "250"}
    return subprocess.Popen(
        [sys.executable, "-m", "kedro", *map(str, arguments)],
        cwd=folder,
        env=os.environ | QUIET | ours | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@pytest.fixture
def start_kedro() -> Iterator[Kedro]:
    """``start_kedro(folder, *arguments, **environment)``: the process; a test that fails ends it."""
    started: list[subprocess.Popen[str]] = []

    def begin(*arguments: Any, **environment: str) -> subprocess.Popen[str]:
        started.append(start(*arguments, **environment))
        return started[-1]

    yield begin
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture(scope="session")
def kedro() -> Kedro:
    """``kedro(folder, *arguments, code=0, **environment)``: what it printed."""

    def run(folder: Path, *arguments: object, code: int = 0, **environment: str) -> str:
        with start(folder, *arguments, **environment) as process:
            try:
                said, _ = process.communicate(timeout=280)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                raise
        assert process.returncode == code, said
        assert "usage data" not in said  # Kedro called home
        return said

    return run
