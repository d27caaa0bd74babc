"""Ways to spread a training loop over ranks, behind one contract. Importing it imports no torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parallel.batch import Batch
    from parallel.errors import ParallelError, RankError
    from parallel.interface import Parallel, StepInfo
    from parallel.launch import launch, launch_each
    from parallel.plan import Plan

_WHERE = {
    "Batch": "parallel.batch",
    "Parallel": "parallel.interface",
    "ParallelError": "parallel.errors",
    "Plan": "parallel.plan",
    "RankError": "parallel.errors",
    "StepInfo": "parallel.interface",
    "launch": "parallel.launch",
    "launch_each": "parallel.launch",
}

__all__ = ["Batch", "Parallel", "ParallelError", "Plan", "RankError", "StepInfo", "launch", "launch_each"]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'parallel' has no attribute {name!r}")
    module = import_module(_WHERE[name])
    # All of its names at once: importing parallel.launch makes the module itself the attribute "launch".
    globals().update({own: getattr(module, own) for own, where in _WHERE.items() if where == module.__name__})
    return globals()[name]


def __dir__() -> list[str]:
    return sorted([*globals(), *_WHERE])
