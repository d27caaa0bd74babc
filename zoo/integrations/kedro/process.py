"""A process of its own for a node's work: Kedro's process imports no torch, joins no group, keeps its state."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from parallel import registry
from parallel.errors import ParallelError, RankError
from zoo_datasets.errors import InputError

log = logging.getLogger(__name__)


def call(label: str, function: Callable[..., Any], *args: Any, reworded: Callable[[str], str] = str) -> Any:
    """``function(*args)`` in a new process, which ends with this one.

    Threads may call at once, and so may daemonic processes, which multiprocessing allows no children. What the
    process and its ranks print is logged line by line.

    Args:
        label: begins each line of the log.
        function: importable by name; it and ``args`` must pickle.
        reworded: a line as the log should say it.

    Raises:
        Exception: what the function raised, with its traceback as a note unless it is a user's error.
        RankError: the process died without a word.
    """
    with tempfile.TemporaryDirectory(prefix="zoo-kedro-") as folder:
        payload, result = Path(folder, "payload"), Path(folder, "result")
        payload.write_bytes(pickle.dumps((function, args, registry.entries())))
        code = _run(payload, result, lambda line: log.info("%s: %s", label, reworded(line)))
        if not result.exists():
            raise RankError(f"{label}: its process ended with exit code {code} and without a word")
        error, text, value = pickle.loads(result.read_bytes())  # noqa: S301 - of our own process
    if text is None:
        return value
    exception: Exception
    try:
        exception = pickle.loads(error)  # noqa: S301
    except Exception:  # an exception that does not come back from a pickle still has its traceback
        exception = RankError(text.strip().splitlines()[-1])
    if not isinstance(exception, InputError | ParallelError):
        exception.add_note(text)
    raise exception


def _run(payload: Path, result: Path, printed: Callable[[str], None]) -> int:
    """The exit code, once the process and all that print through it have ended."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = subprocess.Popen(
        [sys.executable, "-c", f"from {__name__} import child; child()", str(payload), str(result)],
        env=environment,
        stdin=subprocess.PIPE,  # nothing is ever written: the process sees it close when this one ends
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
        # Ctrl-C interrupts the main thread, which ends the process; other threads do not hear of it, the process must.
        start_new_session=threading.current_thread() is threading.main_thread(),
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        try:
            for line in process.stdout:
                printed(line.rstrip())
            return process.wait()
        except KeyboardInterrupt:
            process.terminate()  # ranks finish their step and save; Ctrl-C again ends them at once
            for line in process.stdout:
                printed(line.rstrip())
            raise
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def child() -> None:
    """The new process: does the work and leaves its outcome in a file."""
    payload, result = map(Path, sys.argv[1:])
    threading.Thread(target=_end_with_parent, args=(payload.parent,), daemon=True).start()
    error, text, value = b"", None, None
    try:
        function, args, entries = pickle.loads(payload.read_bytes())  # noqa: S301
        registry.adopt(entries)
        value = function(*args)
    except BaseException as exception:
        text = "".join(traceback.format_exception(exception))
        exception.__dict__.pop("__notes__", None)  # they are in the text
        with contextlib.suppress(Exception):
            error = pickle.dumps(exception)
    draft = result.with_suffix(".draft")
    draft.write_bytes(pickle.dumps((error, text, value)))
    draft.rename(result)


def _end_with_parent(folder: Path) -> None:
    with contextlib.suppress(OSError):
        os.read(0, 1)
    shutil.rmtree(folder, ignore_errors=True)  # there is no one else now
    os._exit(1)  # ranks end with this process
