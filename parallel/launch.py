"""Starts the ranks of a run, or joins those that torchrun or SLURM started. The starting process needs no torch."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing import spawn
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parallel import registry
from parallel.errors import ParallelError, RankError

if TYPE_CHECKING:
    from parallel.interface import Parallel

_GRACE = 3.0  # seconds between asking a rank to end and ending it


@dataclass(frozen=True)
class Options:
    """What ``launch`` hands to the strategy; the same on every rank."""

    precision: str = "fp32"
    accumulate: int = 1
    tp: int | None = None
    local_batchnorm: bool = False
    compile: bool = False
    device: str | None = None
    replicas: int = 1

    def __post_init__(self) -> None:
        precisions = ("fp64", "fp32", "bf16-mixed", "fp16-mixed")
        if self.precision not in precisions:
            raise ParallelError(
                f"--precision {self.precision!r} is unknown; it is one of {', '.join(precisions)}"
            )
        if self.accumulate < 1:
            raise ParallelError(f"--accumulate is {self.accumulate}; it must be at least 1")
        if self.tp is not None and self.tp < 1:
            raise ParallelError(f"--tp is {self.tp}; it must be at least 1")


@dataclass(frozen=True)
class Place:
    """One rank among all, and where they meet."""

    rank: int
    size: int
    local_rank: int
    address: str  # "" when there is one rank
    port: int
    found: str  # how we know: "torchrun", "SLURM", "launch"
    turn: int = 0  # of the runs that these processes do one after another


@dataclass(frozen=True)
class _Turn:
    """One strategy's run, on the first ``size`` ranks."""

    spec: str
    options: Options
    size: int


def launch(
    main: Callable[..., Any],
    spec: str = "single",
    *args: Any,
    nproc: int | None = None,
    precision: str = "fp32",
    accumulate: int = 1,
    tp: int | None = None,
    local_batchnorm: bool = False,
    compile: bool = False,
    device: str | None = None,
) -> Any:
    """Calls ``main(p, *args)`` on every rank and returns rank 0's value.

    Under torchrun or srun this process is a rank and joins the others. Otherwise one rank runs in place, and
    several are started as new processes, that meet on a free port of the loopback interface; ``main`` and
    ``args`` must pickle.

    Args:
        spec: a strategy's name, or two joined by "+".
        nproc: ranks to start; by default one a GPU, or 2 on a machine without (4 for two-dimensional specs).
        tp: ranks that split one model, for specs with tensor parallel.
        device: "cpu" or "cuda"; by default cuda where there is any.

    Raises:
        ParallelError: the strategy cannot do what is asked.
        Exception: what the first failing rank raised, with that rank's traceback as a note; all are ended.
        RankError: a rank ended without a word.
    """
    place = find_launch()
    turn = _turn(spec, nproc, Options(precision, accumulate, tp, local_batchnorm, compile, device), place)
    if place is not None and turn.size != place.size:
        raise ParallelError(f"strategy {spec!r} is one process, and {place.found} started {place.size}")
    return _run_turns(main, args, [turn], place)[0]


def launch_each(
    main: Callable[..., Any],
    specs: Sequence[str],
    *args: Any,
    nproc: int | None = None,
    precision: str = "fp32",
    accumulate: int = 1,
    tp: int | None = None,
    local_batchnorm: bool = False,
    compile: bool = False,
    device: str | None = None,
) -> list[Any]:
    """:func:`launch` for several strategies in turn, by processes that start once: rank 0's value of each.

    ``nproc`` is for the strategies that have ranks or replicas, ``tp`` for those that split layers; "single" may
    be among them.
    """
    place = find_launch()
    turns = []
    for spec in specs:
        kinds = {entry.kind for entry in registry.resolve(spec)}
        degree = tp if "tensor" in kinds else None
        options = Options(precision, accumulate, degree, local_batchnorm, compile, device)
        turns.append(_turn(spec, None if "one" in kinds else nproc, options, place))
    return _run_turns(main, args, turns, place)


def _turn(spec: str, nproc: int | None, options: Options, place: Place | None) -> _Turn:
    """Checks what can be checked before a rank starts."""
    one = registry.resolve(spec)[0].kind == "one"
    if place is not None:
        if nproc is not None and nproc != place.size:
            raise ParallelError(
                f"--nproc {nproc} under {place.found}, which started {place.size} ranks: leave it out"
            )
        nproc = 1 if one else place.size
    elif nproc is None:
        nproc = registry.default_ranks(spec, _devices(spec, options.device))
    registry.check_ranks(spec, nproc)
    if registry.in_one_process(spec):
        return _Turn(spec, replace(options, replicas=nproc), 1)
    return _Turn(spec, options, nproc)


def find_launch(environ: Mapping[str, str] = os.environ) -> Place | None:
    """The place that a launcher gave this process, or None.

    Only a whole launch counts: a stray RANK or SLURM_NTASKS (of the shell that ``salloc`` opened, say) is no
    launch.
    """
    torchrun = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    if all(environ.get(name) for name in torchrun):
        rank, size, local_rank = (int(environ[name]) for name in torchrun[:3])
        return Place(rank, size, local_rank, environ["MASTER_ADDR"], int(environ["MASTER_PORT"]), "torchrun")
    slurm = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS")
    if all(environ.get(name) for name in slurm) and environ.get("SLURM_STEP_NUM_TASKS") != "1":
        address = environ.get("MASTER_ADDR") or environ.get("SLURM_LAUNCH_NODE_IPADDR")
        if not address:
            raise ParallelError(
                "srun started this process but names no SLURM_LAUNCH_NODE_IPADDR: set MASTER_ADDR"
            )
        port = int(environ.get("MASTER_PORT") or 20000 + int(environ["SLURM_JOB_ID"]) % 20000)
        return Place(
            int(environ["SLURM_PROCID"]),
            int(environ["SLURM_STEP_NUM_TASKS"]),
            int(environ["SLURM_LOCALID"]),
            address,
            port,
            "SLURM",
        )
    return None


def _devices(spec: str, device: str | None) -> int:
    """GPUs of this machine, asked without importing torch where the driver says there are none."""
    if device == "cpu" or registry.resolve(spec)[0].kind == "one" or not os.path.exists("/dev/nvidiactl"):
        return 0
    import torch

    return torch.cuda.device_count()


def _run_turns(
    main: Callable[..., Any], args: tuple[Any, ...], turns: Sequence[_Turn], place: Place | None
) -> list[Any]:
    """Rank 0's values; under a launcher this rank's."""
    size = max((turn.size for turn in turns), default=1)
    if place is None and size > 1:
        return _Ranks(size).run(main, args, turns)
    return _take_part(main, args, turns, place or Place(0, 1, 0, "", 0, "launch"))


def _take_part(
    main: Callable[..., Any], args: tuple[Any, ...], turns: Sequence[_Turn], place: Place
) -> list[Any]:
    """Runs this rank's part of every turn; None stands for the turns that have no part for it."""
    from parallel.setup import create

    values: list[Any] = []
    for number, turn in enumerate(turns):
        if place.rank >= turn.size:
            values.append(None)
            continue
        p: Parallel = create(turn.spec, turn.options, replace(place, size=turn.size, turn=number))
        try:
            values.append(main(p, *args))
        finally:
            p.close()
    return values


class _Ranks:
    """The processes of one run on this machine. Each reports once, through a pipe, and lives no longer than its parent."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.processes: list[subprocess.Popen[bytes]] = []
        self.reports: list[int] = []

    def run(self, main: Callable[..., Any], args: tuple[Any, ...], turns: Sequence[_Turn]) -> list[Any]:
        # Keys that multiprocessing's own children get, so that a function of a script's __main__ unpickles
        # there.
        wanted = ("sys_path", "sys_argv", "orig_dir", "dir", "init_main_from_name", "init_main_from_path")
        data = spawn.get_preparation_data("rank")
        prepared = {key: data[key] for key in wanted if key in data}
        try:
            work = pickle.dumps((main, args, registry.entries()))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ParallelError(
                f"the function to launch and its arguments must pickle, since {self.size} new processes run them: {error}"
            ) from error
        alive, held = os.pipe()  # nothing is ever written: the ranks see it close when this process ends
        with tempfile.TemporaryDirectory(prefix="parallel-") as folder:
            payload = Path(folder) / "payload"
            payload.write_bytes(pickle.dumps((prepared, work, turns)))
            try:
                for rank in range(self.size):
                    self._start(rank, payload, alive)
                return self._wait()
            finally:
                self._end()
                os.close(held)
                os.close(alive)

    def _start(self, rank: int, payload: Path, alive: int) -> None:
        read, write = os.pipe()
        threads = str(max(1, (os.cpu_count() or 1) // self.size))
        environment = {"OMP_NUM_THREADS": threads, **os.environ}
        if sys.platform == "linux":
            environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
        command = [sys.executable, "-c", "from parallel.launch import _child; _child()"]
        command += [str(payload), str(rank), str(self.size), str(alive), str(write)]
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        self.processes.append(
            subprocess.Popen(
                command,
                env=environment,
                pass_fds=(alive, write),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        )
        os.close(write)
        self.reports.append(read)

    def _wait(self) -> list[Any]:
        """Rank 0's values once every rank has reported; raises at the first bad report."""
        values: dict[int, Any] = {}
        with selectors.DefaultSelector() as selector:
            for rank, read in enumerate(self.reports):
                selector.register(read, selectors.EVENT_READ, (rank, bytearray()))
            while selector.get_map():
                for key, _ in selector.select():
                    rank, received = key.data
                    piece = os.read(key.fd, 1 << 20)
                    received += piece
                    if not piece:
                        selector.unregister(key.fd)
                        values[rank] = self._value(rank, bytes(received))
        return values[0]

    def _value(self, rank: int, report: bytes) -> Any:
        if not report:
            code = self.processes[rank].wait()
            how = (
                f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            )
            raise RankError(f"rank {rank} of {self.size} {how} without reporting; the other ranks were ended")
        error, text, value = pickle.loads(report)
        if text is None:
            return pickle.loads(value)
        exception: Exception
        try:
            exception = pickle.loads(error)
        except Exception:  # an exception that does not come back from a pickle still has its traceback
            exception = RankError(text.strip().splitlines()[-1])
        exception.add_note(f"Raised on rank {rank} of {self.size}:\n{text}")
        raise exception

    def _end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
        deadline = time.monotonic() + _GRACE
        for process in self.processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for read in self.reports:
            os.close(read)


def _child() -> None:
    """A rank's process: runs the work, reports the outcome, ends."""
    payload, rank, size, alive, report = sys.argv[1], *(int(word) for word in sys.argv[2:6])
    faulthandler.enable()
    _end_with_parent(alive)
    error, text, value = b"", None, b""
    try:
        prepared, work, turns = pickle.loads(Path(payload).read_bytes())
        spawn.prepare(prepared)
        main, args, entries = pickle.loads(work)
        registry.adopt(entries)
        place = Place(rank, size, rank, f"file:{Path(payload).parent}", 0, "launch")
        values = _take_part(main, args, turns, place)
        value = pickle.dumps(values if rank == 0 else None)
    except BaseException as exception:
        text = "".join(traceback.format_exception(exception))
        with contextlib.suppress(Exception):
            error = pickle.dumps(exception)
            pickle.loads(error)
    with os.fdopen(report, "wb") as pipe:
        pipe.write(pickle.dumps((error, text, value)))
    if text is not None:
        time.sleep(
            60
        )  # the parent ends all ranks now; leaving first would make the others fail on a lost peer
        os._exit(1)


def _end_with_parent(alive: int) -> None:
    def watch() -> None:
        with contextlib.suppress(OSError):
            os.read(alive, 1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
