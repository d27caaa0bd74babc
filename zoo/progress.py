"""How far a command is, on stderr: a bar on a terminal, plain lines in a pipe. Results go to stdout."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

    from parallel.interface import Parallel

_LOGGERS = (logging.getLogger("zoo"), logging.getLogger("parallel"))

_BETWEEN_TICKS = 0.1  # seconds between two drawings of the bar
_BETWEEN_LINES = 1.0  # seconds between two lines of numbers in a pipe, so that a fast run does not flood it


_shown: list[Progress] = []  # those entered, the innermost last


class Progress(logging.Handler):
    """Shows steps, numbers and log messages while it is entered; for the one rank that prints."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._total = 0
        self._bar: Bar | None = None
        self._task: TaskID | None = None
        self._stack = ExitStack()
        self._next_tick = self._next_line = 0.0

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():
            self._bar = self._stack.enter_context(_make_bar())
        self._stack.enter_context(listening(self))
        _shown.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _shown.remove(self)
        self._stack.close()
        self._bar = self._task = None

    def begin(self, what: str, total: int) -> None:
        """Counts from 0 to ``total`` from here on."""
        self._total = total
        if self._bar is not None:
            self._task = self._bar.add_task(what, total=total, numbers="")

    def tick(self, done: int) -> None:
        """``done`` of ``total`` are done. Most calls only look at the clock."""
        now = time.monotonic()
        if now < self._next_tick and done < self._total:
            return
        self._next_tick = now + _BETWEEN_TICKS
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done)

    def numbers(self, done: int, text: str) -> None:
        """The latest numbers: beside the bar, or a line of their own."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, numbers=text)
            return
        now = time.monotonic()
        if now >= self._next_line or done == self._total:
            self._next_line = now + _BETWEEN_LINES
            self._write(f"step {done}/{self._total}  {text}")

    def emit(self, record: logging.LogRecord) -> None:
        self._write(self.format(record))

    def _write(self, text: str) -> None:
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            print(text, file=sys.stderr, flush=True)


@contextmanager
def stage(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Counts the steps of work inside a command, such as an evaluation: a bar of its own on a terminal."""
    bar = _shown[-1]._bar if _shown else None
    if bar is None:
        yield lambda done: None
        return
    task = bar.add_task(what, total=total, numbers="")
    try:
        yield lambda done: bar.update(task, completed=done)
    finally:
        bar.remove_task(task)


def shown_on(p: Parallel) -> AbstractContextManager[Progress | None]:
    """Shows on the rank that prints what zoo and parallel say."""
    return Progress() if p.is_main else nullcontext()


@contextmanager
def listening(handler: logging.Handler) -> Iterator[None]:
    """Hands the handler what zoo and parallel log, from INFO up; elsewhere they log from WARNING up."""
    levels = [logger.level for logger in _LOGGERS]
    for logger in _LOGGERS:
        logger.setLevel(logging.INFO)
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger, level in zip(_LOGGERS, levels, strict=True):
            logger.setLevel(level)
            logger.removeHandler(handler)


def _make_bar() -> Bar:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[numbers]}"),
        console=Console(stderr=True),
    )
