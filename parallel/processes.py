"""The processes of a run on this machine: started, told of signals, watched, ended all together."""

from __future__ import annotations

import contextlib
import faulthandler
import io
import multiprocessing
import os
import pickle
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import spawn
from pathlib import Path
from typing import Any, NoReturn

from parallel import registry
from parallel.errors import ParallelError, RankError
from parallel.progress import read_progress
from parallel.signals import SAVE, STOP, in_main_thread

_GRACE = 3.0  # seconds that a process has to end after its report
_MAINS = ("init_main_from_name", "init_main_from_path")  # where multiprocessing says what __main__ is to be
_SETTLE = 0.5  # seconds after the first failure in which others may turn out to be its cause

_importing_main = False  # this process is a rank that imports the script that launched it


@dataclass(frozen=True)
class _Failure:
    """A rank that did not do its work.

    Attributes:
        when: of the exception, on the machine's monotonic clock; none for a rank that died without a word.
    """

    rank: int
    when: float
    error: BaseException

    @property
    def died(self) -> bool:
        return self.when < 0


class Ranks:
    """The processes of one run. Each reports once, through a pipe, and lives no longer than its parent."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.processes: list[subprocess.Popen[bytes]] = []
        self.reports: list[int] = []
        self._asked = 0  # the signal that asked the run to stop
        self._ending = False  # what the run came to is known
        self._folder = Path()

    def run(self, work: tuple[Any, ...]) -> list[Any]:
        """Calls ``parallel.launcher.take_part`` with ``work`` on every rank; rank 0's values.

        Raises:
            what the first failing rank raised, or RankError; every rank has ended by then.
        """
        # Keys that multiprocessing's own children get, so that a function of a script's __main__ unpickles there.
        wanted = ("sys_path", "sys_argv", "orig_dir", "dir", *_MAINS)
        data = spawn.get_preparation_data("rank")
        prepared = {key: data[key] for key in wanted if key in data}
        if not os.path.isfile(prepared.get("init_main_from_path", __file__)):  # "<stdin>"
            del prepared["init_main_from_path"]
        try:
            packed = io.BytesIO()
            pickler = pickle.Pickler if prepared.keys() & _MAINS else _WithoutMain
            pickler(packed).dump((registry.entries(), *work))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ParallelError(
                f"the function to launch and its arguments must pickle, since {self.size} new processes run them: "
                f"{error}"
            ) from error
        alive, held = os.pipe()  # nothing is ever written: the ranks see it close when this process ends
        with tempfile.TemporaryDirectory(prefix="parallel-") as folder, self._passing_signals():
            self._folder = Path(folder)
            payload = self._folder / "payload"
            payload.write_bytes(pickle.dumps((prepared, packed.getvalue())))
            try:
                for rank in range(self.size):
                    self._start(rank, payload, alive)
                return self._wait()
            finally:
                self._end()
                os.close(held)
                os.close(alive)

    @contextmanager
    def _passing_signals(self) -> Iterator[None]:
        """Hands signals on to the ranks, that finish their step; a second one to stop ends all at once."""

        def hear(number: int, frame: object) -> None:
            if self._ending:
                return
            if number in STOP:
                if self._asked:
                    self._stop()
                self._asked = number
            for process in self.processes:
                if process.returncode is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process.pid, number)

        if not in_main_thread():
            yield
            return
        kept = {number: signal.signal(number, hear) for number in (*STOP, SAVE)}
        try:
            yield
        finally:
            for number, handler in kept.items():
                signal.signal(number, handler)

    def _stop(self) -> NoReturn:
        raise KeyboardInterrupt if self._asked == signal.SIGINT else SystemExit(128 + self._asked)

    def _start(self, rank: int, payload: Path, alive: int) -> None:
        read, write = os.pipe()
        threads = str(max(1, (os.cpu_count() or 1) // self.size))
        environment = {"OMP_NUM_THREADS": threads, **os.environ}
        if sys.platform == "linux":
            environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
        command = [sys.executable, "-c", "from parallel.processes import serve; serve()"]
        command += [str(payload), str(rank), str(self.size), str(alive), str(write)]
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        self.processes.append(
            subprocess.Popen(
                command,
                env=environment,
                pass_fds=(alive, write),
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C reaches the ranks through this process; and see _kill
            )
        )
        os.close(write)
        self.reports.append(read)

    def _wait(self) -> list[Any]:
        """Rank 0's values once every rank has reported; raises soon after the first bad report."""
        values: dict[int, Any] = {}
        failures: list[_Failure] = []
        deadline: float | None = None
        with selectors.DefaultSelector() as selector:
            for rank, read in enumerate(self.reports):
                selector.register(read, selectors.EVENT_READ, (rank, bytearray()))
            while selector.get_map():
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    break
                for key, _ in selector.select(left):
                    rank, received = key.data
                    piece = os.read(key.fd, 1 << 20)
                    received += piece
                    if piece:
                        continue
                    selector.unregister(key.fd)
                    found = self._outcome(rank, bytes(received))
                    if isinstance(found, _Failure):
                        failures.append(found)
                        deadline = deadline or time.monotonic() + _SETTLE
                    else:
                        values[rank] = found
            silent = sorted(key.data[0] for key in selector.get_map().values())
        if failures:
            self._raise(failures, silent)
        return values[0]

    def _outcome(self, rank: int, report: bytes) -> Any:
        """What a rank reported: its value, or a failure."""
        if not report:
            process = self.processes[rank]
            self._kill(process)  # what it started, before its number is free for others
            code = process.wait()
            how = (
                f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            )
            text = f"rank {rank} of {self.size} {how} without reporting; the other ranks were ended"
            return _Failure(rank, -1.0, RankError(f"{text} ({self._steps()})"))
        when, error, text, value = pickle.loads(report)
        if text is None:
            return pickle.loads(value)
        exception: BaseException
        try:
            exception = pickle.loads(error)
        except Exception:  # an exception that does not come back from a pickle still has its traceback
            exception = RankError(text.strip().splitlines()[-1])
        exception.add_note(f"Raised on rank {rank} of {self.size}:\n{text}")
        return _Failure(rank, when, exception)

    def _raise(self, failures: list[_Failure], silent: list[int]) -> NoReturn:
        """Raises the cause: a rank that died, else the first exception, else the rank that these waited for."""
        if self._asked:  # before the ranks could be asked to finish a step
            self._stop()
        first = min(failures, key=lambda failure: (not failure.died, failure.when, failure.rank))
        said = str(first.error).lower()
        if first.died or not silent or not ("timed out" in said or "timeout" in said):
            raise first.error
        steps = read_progress(self._folder, self.size)
        stuck = min(silent, key=lambda rank: steps[rank])
        error = RankError(
            f"rank {stuck} of {self.size} is stuck: rank {first.rank} waited for it in vain ({self._steps()})"
        )
        error.add_note(f"Rank {stuck} was here:\n{self._stack(stuck)}")
        raise error from first.error

    def _steps(self) -> str:
        steps = read_progress(self._folder, self.size)
        return "steps finished: " + ", ".join(f"rank {rank}: {done}" for rank, done in enumerate(steps))

    def _stack(self, rank: int) -> str:
        """Where a rank is that does not answer: its threads' Python stacks."""
        file = self._folder / f"stack-{rank}"
        if self.processes[rank].poll() is None:
            os.kill(self.processes[rank].pid, signal.SIGUSR2)
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline and not (file.exists() and file.stat().st_size):
            time.sleep(0.02)
        return file.read_text() if file.exists() else "(no stack)"

    def _end(self) -> None:
        """Ends what is left: gives ranks that have reported well the time to leave, and the others none."""
        self._ending = True  # from here on a signal neither changes the outcome nor leaves a rank behind
        failed = sys.exception() is not None
        deadline = time.monotonic() + (0.0 if failed else _GRACE)
        for process in self.processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                self._kill(process)
                process.wait()
        for read in self.reports:
            os.close(read)

    @staticmethod
    def _kill(process: subprocess.Popen[bytes]) -> None:
        """Ends a rank and what it has started, such as a loader's workers: they are one process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


class _WithoutMain(pickle.Pickler):
    """Pickles what is of a module, since this process's ``__main__`` is none that the ranks can import."""

    def reducer_override(self, value: Any) -> Any:
        if getattr(value, "__module__", None) == "__main__" and hasattr(value, "__qualname__"):
            raise ParallelError(
                f"{value.__qualname__} is of a notebook, or of no file, and each rank must import it: put it in a "
                "module, or train on one rank, in place"
            )
        return NotImplemented


def refuse_within_main() -> None:
    """Called by every launch.

    Raises:
        ParallelError: a rank is importing the script that launched it, which launches again.
    """
    if _importing_main:
        raise ParallelError(
            "each rank imports the script that launches it, and this one launches when it is imported: put what starts "
            'it below `if __name__ == "__main__":`'
        )


def serve() -> None:
    """A rank's process: runs the work, reports the outcome, ends."""
    payload, rank, size, alive, report = Path(sys.argv[1]), *(int(word) for word in sys.argv[2:6])
    signal.signal(SAVE, signal.SIG_IGN)  # until there is something to save
    faulthandler.enable()
    stack = (payload.parent / f"stack-{rank}").open("w")
    faulthandler.register(signal.SIGUSR2, file=stack, all_threads=True)
    # Where multiprocessing keeps the sockets of this process and its children: gone with the folder if they are killed.
    multiprocessing.current_process()._config["tempdir"] = str(payload.parent)  # type: ignore[attr-defined]
    _end_with_parent(alive, payload.parent)
    _keep_from_forks(report)
    error, text, value = b"", None, b""
    try:
        value = pickle.dumps(_work(payload, rank, size))
    except BaseException as exception:
        text = "".join(traceback.format_exception(exception))
        with contextlib.suppress(Exception):
            error = pickle.dumps(exception)
            pickle.loads(error)
    with os.fdopen(report, "wb") as pipe:
        pipe.write(pickle.dumps((time.monotonic(), error, text, value)))
    if text is not None:
        # The parent ends all ranks now; leaving first would make the others fail on a lost peer.
        time.sleep(60)
        os._exit(1)


def _work(payload: Path, rank: int, size: int) -> Any:
    from parallel.launcher import Place, take_part

    global _importing_main
    prepared, packed = pickle.loads(payload.read_bytes())
    _importing_main = True
    spawn.prepare(prepared)
    _importing_main = False
    entries, main, args, turns = pickle.loads(packed)
    registry.adopt(entries)
    values = take_part(main, args, turns, Place(rank, size, rank, f"file:{payload.parent}", 0, "launch"))
    return values if rank == 0 else None


def _keep_from_forks(report: int) -> None:
    """The pipe closes when this process ends: a loader's workers would hold it for the 5 s until they notice that."""
    held = [report]

    def drop() -> None:
        if held:  # a worker's own child has it no more, and maybe another file by that number
            os.close(held.pop())

    os.register_at_fork(after_in_child=drop)


def _end_with_parent(alive: int, folder: Path) -> None:
    def watch() -> None:
        with contextlib.suppress(OSError):
            os.read(alive, 1)
        shutil.rmtree(folder, ignore_errors=True)  # there is no one else now
        os.killpg(0, signal.SIGKILL)  # this process leads its group, of what it has started

    threading.Thread(target=watch, daemon=True).start()
