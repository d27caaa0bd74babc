"""Names and specs ("fsdp+tp") of strategies; other people's come through entry points. Imports no torch."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any

from parallel.errors import ParallelError

ENTRY_POINTS = "parallel_zoo.strategies"
COMBINED = (
    "ddp+tp",
    "fsdp+tp",
)  # of all that can be combined, those that are named wherever strategies are listed


@dataclass(frozen=True)
class Library:
    """Another project's engine, which one of this package's extras installs.

    Attributes:
        name: what it is called. extra: what installs it. module: what it is imported as.
        config: how its own configuration is written, "json" or "yaml"; empty where no file can be handed through.
    """

    name: str
    extra: str
    module: str
    config: str = ""

    def missing(self) -> str:
        """Why it cannot be used, and what to do; empty where it is there. Imports nothing."""
        if find_spec(self.module) is None:
            return f'{self.name} is not installed: pip install "parallel-zoo[{self.extra}]"'
        return ""


@dataclass(frozen=True)
class StrategyEntry:
    """A strategy as the command line and ``launch`` know it.

    Attributes:
        summary: what it does, one line.
        engine: the :class:`parallel.engine.Engine` subclass, or "module:Class" so that listing imports no torch.
        kind: "one" process; "replicas" in one process; "data" cuts the global batch over ranks; "tensor" cuts
            layers. A combination joins one "data" and one "tensor".
        ranks: how many ranks it needs at least to be what it says.
        library: what it needs beside torch.
    """

    name: str
    summary: str
    engine: str | type[Any]
    kind: str = "data"
    ranks: int = 1
    library: Library | None = None

    def missing(self) -> str:
        """Why it cannot run in this environment, and what to do; empty where it can."""
        return "" if self.library is None else self.library.missing()

    def load(self) -> type[Any]:
        """The engine's class.

        Raises:
            ParallelError: the library behind it is not installed.
        """
        if why := self.missing():
            raise ParallelError(f"strategy {self.name!r}: {why}")
        if not isinstance(self.engine, str):
            return self.engine
        module, _, attribute = self.engine.partition(":")
        return getattr(import_module(module), attribute)


_ENTRIES: dict[str, StrategyEntry] = {}

DEEPSPEED = Library("DeepSpeed", "deepspeed", "deepspeed", config="json")
ACCELERATE = Library("Accelerate", "accelerate", "accelerate", config="yaml")
FABRIC = Library("Lightning Fabric", "fabric", "lightning_fabric")

# What users of other tools ask for by these names.
_TPU = "TPUs are reached through torch_xla, which no engine here speaks; take ddp or fsdp on GPUs or CPUs"
_ELSEWHERE = {
    "tpu": _TPU,
    "xla": _TPU,
    "pipeline": "no engine here cuts a model into stages; take fsdp, tp or fsdp+tp",
}


def register(entry: StrategyEntry) -> StrategyEntry:
    """Adds a strategy for this process and the ranks it starts; a name that another has is an error."""
    if _ENTRIES.get(entry.name, entry) != entry:
        raise ParallelError(f"a strategy named {entry.name!r} is registered already")
    _ENTRIES[entry.name] = entry
    return entry


for _entry in (
    StrategyEntry("single", "one process, the reference for all", "parallel.single:Single", kind="one"),
    StrategyEntry(
        "dp",
        "one process, each forward's rows split over its GPUs, or over threads",
        "parallel.dp:DP",
        "replicas",
    ),
    StrategyEntry("ddp", "the batch is split, gradients are summed (torch DDP)", "parallel.ddp:DDP"),
    StrategyEntry("fsdp", "parameters, gradients, optimizer states sharded (FSDP2)", "parallel.fsdp:FSDP"),
    StrategyEntry(
        "zero1", "optimizer states sharded by whole tensors (ZeroRedundancyOptimizer)", "parallel.zero:ZeRO1"
    ),
    StrategyEntry("zero2", "gradients and optimizer states sharded (FSDP2)", "parallel.fsdp:ZeRO2"),
    StrategyEntry("zero3", "parameters, gradients, optimizer states sharded (FSDP2)", "parallel.fsdp:ZeRO3"),
    StrategyEntry("zero3-offload", "zero3 with the shards in host memory", "parallel.fsdp:ZeRO3Offload"),
    StrategyEntry(
        "hsdp", "sharded within groups of ranks, replicated over them (FSDP2)", "parallel.fsdp:HSDP", ranks=4
    ),
    StrategyEntry("tp", "layers split over the ranks", "parallel.tensor:TensorParallel", "tensor"),
    *(
        StrategyEntry(
            f"deepspeed-zero{stage}{'-offload' * offload}",
            f"ZeRO stage {stage} by DeepSpeed{', its states in host memory' * offload}",
            f"parallel.adapters.deepspeed:DeepSpeedZeRO{stage}{'Offload' * offload}",
            library=DEEPSPEED,
        )
        for stage in (1, 2, 3)
        for offload in (False, True)
    ),
    StrategyEntry(
        "accelerate-ddp",
        "ddp, set up by Accelerate",
        "parallel.adapters.accelerate:AccelerateDDP",
        library=ACCELERATE,
    ),
    StrategyEntry(
        "accelerate-fsdp",
        "fsdp, set up by Accelerate (GPUs only)",
        "parallel.adapters.accelerate:AccelerateFSDP",
        library=ACCELERATE,
    ),
    StrategyEntry(
        "fabric-ddp", "ddp, set up by Lightning Fabric", "parallel.adapters.fabric:FabricDDP", library=FABRIC
    ),
    StrategyEntry(
        "fabric-fsdp",
        "fsdp, set up by Lightning Fabric (its ModelParallelStrategy)",
        "parallel.adapters.fabric:FabricFSDP",
        library=FABRIC,
    ),
):
    register(_entry)


def adopt(found: Iterable[StrategyEntry]) -> None:
    """Adds what the process that started this rank knows, where this one does not know it by itself."""
    for entry in found:
        _ENTRIES.setdefault(entry.name, entry)


def entries() -> list[StrategyEntry]:
    """Every strategy, our own first."""
    _load_entry_points()
    return list(_ENTRIES.values())


def resolve(spec: str) -> list[StrategyEntry]:
    """The entries of a spec, tensor parallel first, as they are applied.

    Raises:
        ParallelError: an unknown name (with the nearest), or names that do not combine.
    """
    _load_entry_points()
    if spec in _ENTRIES:
        return [_ENTRIES[spec]]
    names = spec.split("+")
    for name in names:
        if name.lower() in _ELSEWHERE:
            raise ParallelError(f"strategy {name!r} cannot run here: {_ELSEWHERE[name.lower()]}")
        if name not in _ENTRIES:
            near = difflib.get_close_matches(name.lower(), _ENTRIES, n=3, cutoff=0.4)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise ParallelError(
                f"unknown strategy {name!r}{hint} (known: {', '.join((*_ENTRIES, *COMBINED))})"
            )
    found = [_ENTRIES[name] for name in names]
    for entry in found:
        if entry.library is not None:
            raise ParallelError(
                f"strategy {spec!r}: {entry.name}, which {entry.library.name} carries, combines with nothing; "
                "take ddp+tp or fsdp+tp"
            )
    if sorted(entry.kind for entry in found) != ["data", "tensor"]:
        raise ParallelError(
            f"strategy {spec!r}: a combination is one that cuts the batch and one that cuts layers, as ddp+tp"
        )
    return sorted(found, key=lambda entry: entry.kind, reverse=True)


def default_ranks(spec: str, devices: int) -> int:
    """How many ranks to start where nobody says: the devices, or on a machine without, the fewest that show the way."""
    found = resolve(spec)
    if found[0].kind == "one":
        return 1
    fewest = max(2 * len(found), *(entry.ranks for entry in found))
    return devices if devices >= fewest else fewest


def in_one_process(spec: str) -> bool:
    """Whether ``nproc`` counts replicas in this process rather than ranks."""
    return resolve(spec)[0].kind == "replicas"


def check_installed(spec: str) -> None:
    """Raises where a library that a spec needs is not installed."""
    for entry in resolve(spec):
        if why := entry.missing():
            raise ParallelError(f"strategy {spec!r}: {why}")


def config_form(spec: str) -> str:
    """How the configuration of the engine behind a spec is written, "json" or "yaml"; empty where it has none."""
    return next((entry.library.config for entry in resolve(spec) if entry.library is not None), "")


def check_ranks(spec: str, nproc: int, tp: int | None = None) -> None:
    """Raises where a spec cannot run on ``nproc`` ranks, of which ``tp`` share a model."""
    found = resolve(spec)
    if tp is not None and all(entry.kind != "tensor" for entry in found):
        raise ParallelError(
            f"--tp {tp} with strategy {spec!r}, which splits no layers: take tp, ddp+tp or fsdp+tp"
        )
    if tp is not None and nproc % tp:
        raise ParallelError(f"--tp {tp} does not divide the {nproc} ranks of strategy {spec!r}")
    if nproc < 1:
        raise ParallelError(f"--nproc is {nproc}; it must be at least 1")
    if found[0].kind == "one" and nproc != 1:
        raise ParallelError(
            f"--nproc {nproc} with strategy {spec!r}, which is one process: leave it out, or take ddp"
        )
    for entry in found:
        if nproc < entry.ranks:
            raise ParallelError(
                f"strategy {spec!r} needs at least {entry.ranks} ranks, and --nproc is {nproc}"
            )


@cache
def _load_entry_points() -> None:
    for point in entry_points(group=ENTRY_POINTS):
        try:
            register(point.load())
        except Exception as error:  # another package's code: whatever it raises, say whose it is
            whose = point.dist.name if point.dist is not None else "an installed package"
            raise ParallelError(
                f"strategy {point.name!r} of {whose} cannot be loaded ({point.value}): "
                f"{type(error).__name__}: {error}; mend or uninstall it"
            ) from error
