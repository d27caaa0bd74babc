"""Ways to spread a training loop over ranks, behind one contract. Importing it imports no torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parallel.batch import Batch
    from parallel.errors import ParallelError, RankError
    from parallel.interface import Parallel, StepInfo
    from parallel.launcher import launch, launch_each
    from parallel.plan import Plan

_WHERE = {
    "Batch": "parallel.batch",
    "Parallel": "parallel.interface",
    "ParallelError": "parallel.errors",
    "Plan": "parallel.plan",
    "RankError": "parallel.errors",
    "StepInfo": "parallel.interface",
    "launch": "parallel.launcher",
    "launch_each": "parallel.launcher",
}

__all__ = ["Batch", "Parallel", "ParallelError", "Plan", "RankError", "StepInfo", "launch", "launch_each"]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'parallel' has no attribute {name!r}")
    value = getattr(import_module(_WHERE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_WHERE])
