"""Work in a process of its own: what comes back from it, what is logged, and that it ends with its parent."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("kedro.framework", reason="pip install 'parallel-zoo[kedro]'")

from parallel import registry
from parallel.errors import RankError
from zoo.integrations.kedro.process import call
from zoo_datasets.errors import InputError


class LonelyError(Exception):
    """Does not come back from a pickle."""

    def __init__(self, one: str, other: str) -> None:
        super().__init__(one)


def shout(text: str) -> tuple[str, int]:
    print(text)
    print("aside", file=sys.stderr)
    return text.upper(), os.getpid()


def fail(kind: type[Exception], *words: str) -> None:
    raise kind(*words)


def strategies() -> list[str]:
    return [entry.name for entry in registry.entries()]


def vanish() -> None:
    os._exit(3)


def linger(note: str) -> None:
    Path(note).write_text(str(os.getpid()))
    time.sleep(600)


def test_the_value_comes_back_and_what_was_printed_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "zoo"):
        text, process = call("mine", shout, "hello", reworded=lambda line: line.replace("l", "L"))
    assert text == "HELLO"
    assert process != os.getpid()
    assert sorted(caplog.messages) == ["mine: aside", "mine: heLLo"]


def test_threads_call_at_once() -> None:
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda text: call("one", shout, text), "abc"))
    assert [text for text, _ in answers] == ["A", "B", "C"]
    assert len({process for _, process in answers}) == 3


def test_an_error_comes_back_with_its_type_and_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError, match="by nothing") as caught:
        call("mine", fail, ZeroDivisionError, "by nothing")
    (note,) = caught.value.__notes__
    assert "raise kind(*words)" in note


def test_a_users_error_is_one_line() -> None:
    with pytest.raises(InputError, match="row 3") as caught:
        call("mine", fail, InputError, "row 3")
    assert not hasattr(caught.value, "__notes__")


def test_an_error_that_does_not_pickle_is_told_by_its_last_line() -> None:
    with pytest.raises(RankError, match=r"LonelyError: a$") as caught:
        call("mine", fail, LonelyError, "a", "b")
    assert "raise kind(*words)" in caught.value.__notes__[0]


def test_a_process_that_dies_is_an_error() -> None:
    with pytest.raises(RankError, match="mine: its process ended with exit code 3"):
        call("mine", vanish)


def test_strategies_registered_here_are_known_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))
    registry.register(registry.StrategyEntry("mine", "of a test", "nowhere:Nothing"))
    assert "mine" in call("mine", strategies)


def test_the_process_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    code = f"from test_kedro_process import *; call('mine', linger, {str(note)!r})"
    path = os.pathsep.join([*sys.path, str(Path(__file__).parent)])
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = os.environ | {"PYTHONPATH": path, "TMPDIR": str(temporary)}
    parent = subprocess.Popen([sys.executable, "-c", code], env=environment)
    while not (note.exists() and note.read_text()):
        assert parent.poll() is None
        time.sleep(0.05)
    process = int(note.read_text())
    os.kill(process, 0)  # it is there
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    deadline = time.monotonic() + 60
    while Path(f"/proc/{process}").exists() and "(zombie)" not in Path(f"/proc/{process}/status").read_text():
        assert time.monotonic() < deadline, "it lives on"
        time.sleep(0.05)
    assert not list(temporary.iterdir())
