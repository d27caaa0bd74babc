"""Starts the ranks of a run, or joins those that torchrun or SLURM started. The starting process needs no torch."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parallel import registry
from parallel.adapters import config as engine_configs
from parallel.adapters.config import EngineConfig
from parallel.errors import ParallelError
from parallel.processes import Ranks, refuse_within_main

if TYPE_CHECKING:
    from parallel.interface import Parallel


_TURNS = itertools.count()  # under a launcher every rank takes part in, or passes, the same ones


@dataclass(frozen=True)
class Options:
    """What ``launch`` hands to the strategy; the same on every rank."""

    precision: str = "fp32"
    accumulate: int = 1
    tp: int | None = None
    local_batchnorm: bool = False
    compile: bool = False
    device: str | None = None
    timeout: float = 1800.0
    on_nan: str | None = None
    replicas: int = 1
    engine_config: EngineConfig | None = None

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
        if self.timeout <= 0:
            raise ParallelError(f"--timeout is {self.timeout}; it must be more than 0 seconds")
        if self.on_nan not in (None, "stop", "skip"):
            raise ParallelError(f"--on-nan {self.on_nan!r} is unknown; it is stop or skip")


@dataclass(frozen=True)
class Place:
    """One rank among all, and where they meet."""

    rank: int
    size: int
    local_rank: int
    address: str  # "" when there is one rank
    port: int
    found: str  # how we know: "torchrun", "SLURM", "launch"
    turn: int = 0  # of all runs that these processes do one after another, in one launch or in several


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
    timeout: float = 1800.0,
    on_nan: str | None = None,
    engine_config: str | Path | None = None,
    in_place: bool = True,
) -> Any:
    """Calls ``main(p, *args)`` on every rank and returns rank 0's value.

    Under torchrun or srun this process is a rank and joins the others. Otherwise one rank runs in place, and
    several are started as new processes, that meet in a file of the run's own; ``main`` and ``args`` must
    pickle.

    Args:
        spec: a strategy's name, or two joined by "+".
        nproc: ranks to start; by default one a GPU, or 2 on a machine without (4 for two-dimensional specs).
        tp: ranks that split one model, for specs with tensor parallel.
        device: "cpu" or "cuda"; by default cuda where there is any.
        timeout: seconds that a rank waits for the others before it gives up, and the run ends.
        on_nan: what a gradient with NaN or infinity does: "stop" raises NonFiniteError, "skip" leaves the step out.
            None lets it into the weights, and asks nothing of the device.
        engine_config: a file in the form of the engine behind the strategy (DeepSpeed's JSON, Accelerate's YAML).
        in_place: False starts a process for a single rank too, so that this one outlives it.

    Raises:
        ParallelError: the strategy cannot do what is asked.
        Exception: what the first failing rank raised, with that rank's traceback as a note; all are ended.
        RankError: a rank ended without a word.
    """
    place = find_launch()
    turn = _turn(
        spec,
        nproc,
        Options(precision, accumulate, tp, local_batchnorm, compile, device, timeout, on_nan),
        place,
        engine_config,
    )
    if place is not None and turn.size != place.size:
        raise ParallelError(f"strategy {spec!r} is one process, and {place.found} started {place.size}")
    return _run_turns(main, args, [turn], place, in_place)[0]


def launch_each(
    main: Callable[..., Any],
    specs: Sequence[str],
    *args: Any,
    nproc: int | None = None,
    tp: int | None = None,
    engine_config: str | Path | None = None,
    **options: Any,
) -> list[Any]:
    """:func:`launch` for several strategies in turn, by processes that start once: rank 0's value of each.

    ``nproc`` is for the strategies that have ranks or replicas, ``tp`` for those that split layers, ``engine_config`` for
    those that another project's engine carries; "single" may be among them. The other options are :func:`launch`'s.
    """
    place = find_launch()
    turns = []
    takers = [spec for spec in specs if registry.config_form(spec)] or specs
    for spec in specs:
        kinds = {entry.kind for entry in registry.resolve(spec)}
        degree = tp if "tensor" in kinds else None
        own = engine_config if spec in takers else None
        turns.append(
            _turn(spec, None if "one" in kinds else nproc, Options(tp=degree, **options), place, own)
        )
    return _run_turns(main, args, turns, place)


def _turn(
    spec: str,
    nproc: int | None,
    options: Options,
    place: Place | None,
    engine_config: str | Path | None = None,
) -> _Turn:
    """Checks what can be checked before a rank starts."""
    registry.check_installed(spec)
    if engine_config is not None:
        form = registry.config_form(spec)
        if not form:
            raise ParallelError(
                f"--engine-config {engine_config} with strategy {spec!r}, which has no configuration of its own: "
                "leave it out"
            )
        options = replace(options, engine_config=engine_configs.read(engine_config, form))
    one = registry.resolve(spec)[0].kind == "one"
    if place is not None:
        if nproc is not None and nproc != place.size:
            raise ParallelError(
                f"--nproc {nproc} under {place.found}, which started {place.size} ranks: leave it out"
            )
        nproc = 1 if one else place.size
    elif nproc is None:
        nproc = registry.default_ranks(spec, _devices(spec, options.device))
    registry.check_ranks(spec, nproc, options.tp)
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
        port = int(environ.get("MASTER_PORT") or _port(*(int(environ[name]) for name in slurm[:2])))
        return Place(
            int(environ["SLURM_PROCID"]),
            int(environ["SLURM_STEP_NUM_TASKS"]),
            int(environ["SLURM_LOCALID"]),
            address,
            port,
            "SLURM",
        )
    return None


def _port(job: int, step: int) -> int:
    """One that all ranks of a SLURM step come to by themselves, and no other step of the job, running beside it."""
    return 20000 + (job + 7919 * step) % 20000  # a prime: neighbouring jobs' steps lie far apart too


def describe_launch(environ: Mapping[str, str] = os.environ) -> str:
    """One line for a log: who started the ranks, or which variables of a launcher were found and left aside; or ""."""
    if (place := find_launch(environ)) is not None:
        return f"{place.size} ranks were started by {place.found}"
    telling = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_JOB_ID", "SLURM_PROCID", "SLURM_NTASKS")
    found = ", ".join(f"{name}={environ[name]}" for name in telling if environ.get(name))
    return f"no whole launch by torchrun or srun, and so left aside: {found}" if found else ""


def _devices(spec: str, device: str | None) -> int:
    """GPUs of this machine, asked without importing torch where the driver says there are none."""
    if device == "cpu" or registry.resolve(spec)[0].kind == "one" or not os.path.exists("/dev/nvidiactl"):
        return 0
    import torch

    return torch.cuda.device_count()


def _run_turns(
    main: Callable[..., Any],
    args: tuple[Any, ...],
    turns: Sequence[_Turn],
    place: Place | None,
    in_place: bool = True,
) -> list[Any]:
    """Rank 0's values; under a launcher this rank's."""
    if place is not None and place.found == "torchrun":
        from torch.distributed.elastic.multiprocessing.errors import record

        # Leaves the traceback where torchrun's agent looks for the first failure.
        return record(take_part)(main, args, turns, place)  # type: ignore[return-value]
    refuse_within_main()
    size = max((turn.size for turn in turns), default=1)
    if place is None and (size > 1 or not in_place):
        return Ranks(size).run((main, args, turns))
    return take_part(main, args, turns, place or Place(0, 1, 0, "", 0, "launch"))


def take_part(
    main: Callable[..., Any], args: tuple[Any, ...], turns: Sequence[_Turn], place: Place
) -> list[Any]:
    """Runs this rank's part of every turn; None stands for the turns that have no part for it."""
    from parallel.setup import create

    values: list[Any] = []
    for turn, number in zip(turns, _TURNS, strict=False):
        if place.rank >= turn.size:
            values.append(None)
            continue
        p: Parallel = create(turn.spec, turn.options, replace(place, size=turn.size, turn=number))
        try:
            values.append(main(p, *args))
            p.wait_for_saves()
            p.barrier()  # one that asked nothing of the others would leave while they are still joining
        except BaseException:
            if place.size == 1:
                p.close()
            raise  # with peers the connections stay: closed, they would make the others fail and hide the cause
        p.close()
    return values
