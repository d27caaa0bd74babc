"""What the commands share: the form of their result, and work on ranks."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from zoo.config import LaunchConfig

STOPPED = 75  # sysexits.h's EX_TEMPFAIL: a signal stopped the training, it has saved, and --resume goes on


@dataclass(frozen=True)
class Outcome:
    """What a command found: JSON-able for ``--json``, as text for people, and the exit code."""

    result: Mapping[str, Any]
    text: str
    code: int = 0


def on_ranks(main: Callable[..., Any], config: LaunchConfig, *args: Any, **options: Any) -> Any:
    """Calls ``main(p, *args)`` on the ranks that ``config`` asks for; rank 0's value, and elsewhere None."""
    from parallel import launch

    return launch(main, config.parallel, *args, **config.launch_options(), **options)


def shown_trace(error: BaseException) -> str:
    """The traceback of a fault: of the rank where it happened, if that was in another process."""
    notes = [note for note in getattr(error, "__notes__", ()) if note.startswith("Raised on rank")]
    return "\n".join(notes or traceback.format_exception(error)).rstrip()


def shown_metrics(metrics: Mapping[str, float]) -> str:
    """One metric a line."""
    width = max(map(len, metrics), default=0)
    return "\n".join(f"{name:<{width}}  {value:.4f}" for name, value in metrics.items())
