"""Signals that ask a run for something, heard on one rank and agreed on by all. Needs no torch until it is asked."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from parallel.collectives import Group

STOP = (signal.SIGTERM, signal.SIGINT)
SAVE = signal.SIGUSR1  # what SLURM is asked to send before the time limit: --signal=USR1@120

_BETWEEN = 0.5  # seconds between two agreements
_MOST_STEPS = 100  # between two agreements, should steps become slower than they were
_SAME = (
    1.0  # seconds within which a signal that comes again is the same: launchers pass on what a terminal sent
)


@dataclass(frozen=True, slots=True)
class Notice:
    """What the run is asked to do, the same on every rank.

    Attributes:
        stop: the number of the signal that asks it to stop after this step, or 0.
        save: it is asked for a checkpoint.
        seconds: since the first notice, on rank 0's clock; as of the last agreement.
    """

    stop: int = 0
    save: bool = False
    seconds: float = 0.0


class StoppedError(Exception):
    """A signal asks the run to stop; raised on every rank after the same batch of an evaluation, which is left."""


def in_main_thread() -> bool:
    """Python lets no other thread set a signal's handler."""
    return threading.current_thread() is threading.main_thread()


class Signals:
    """What this process was asked by signals since it began to listen."""

    def __init__(self) -> None:
        self.stop = 0
        self.save = False
        self._heard_at = 0.0
        self._kept: dict[int, Any] = {}

    def listen(self) -> None:
        if not self._kept and in_main_thread():
            self._kept = {number: signal.signal(number, self._hear) for number in (*STOP, SAVE)}

    def deafen(self) -> None:
        """Signals do again what they did before."""
        kept, self._kept = self._kept, {}
        for number, handler in kept.items():
            signal.signal(number, handler)

    def _hear(self, number: int, frame: object) -> None:
        if number == SAVE:
            self.save = True
        elif not self.stop:
            self.stop, self._heard_at = number, time.monotonic()
        elif time.monotonic() - self._heard_at > _SAME:  # asked again: at once
            self.deafen()
            os.kill(os.getpid(), number)


class Agreement:
    """Brings what single ranks heard to all of them at the same step, at the price of a small all-reduce now and then.

    The ranks must agree on when to ask one another, and clocks differ: so each agreement also settles, from the slowest
    rank's time a step, after how many steps the next one is: twice as many as before at the most, since steps may become
    slower than they were.
    """

    def __init__(self, signals: Signals, group: Group, device: torch.device, is_first: bool) -> None:
        self._signals = signals
        self._group = group
        self._device = device
        self._is_first = is_first
        self._begun = time.monotonic()
        self._last: float | None = None  # the last agreement; before the first no step's time is known
        self._interval = self._left = 1
        self._seconds = 0.0

    def hurry(self) -> None:
        """The next step asks the other ranks. Called on all of them."""
        self._interval = self._left = 1

    def notice(self) -> Notice:
        """Called once a step by every rank."""
        self._left -= 1
        if self._left:
            return Notice(seconds=self._seconds)
        now = time.monotonic()
        a_step = _BETWEEN if self._last is None else (now - self._last) / self._interval
        stop, save, slowest, self._seconds = self._highest(
            [self._signals.stop, self._signals.save, a_step, now - self._begun if self._is_first else 0.0]
        )
        if save:
            self._signals.save = False
        self._last = now
        wanted = int(_BETWEEN / max(slowest, 1e-9))
        self._interval = self._left = max(1, min(wanted, 2 * self._interval, _MOST_STEPS))
        return Notice(int(stop), bool(save), self._seconds)

    def _highest(self, values: list[float]) -> list[float]:
        """The highest of each over the ranks."""
        if self._group is None:
            return values
        import torch
        import torch.distributed as dist

        highest = torch.tensor(values, dtype=torch.float64, device=self._device)
        dist.all_reduce(highest, dist.ReduceOp.MAX, group=self._group)
        return highest.tolist()


class Listener:
    """What signals ask of a run, on each rank of it; see :meth:`parallel.Parallel.notice` and ``interruptible``."""

    def __init__(self, group: Group, device: torch.device, is_first: bool) -> None:
        self._ranks = group, device, is_first
        self._signals = Signals()
        self._steps: Agreement | None = None
        self._batches: Agreement | None = None  # while loaders are interruptible

    def notice(self) -> Notice:
        if self._steps is None:
            self._signals.listen()
            self._steps = Agreement(self._signals, *self._ranks)
        return self._steps.notice()

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        # Batches of an evaluation take another time than steps: an agreement of their own settles how often to ask.
        self._batches = Agreement(self._signals, *self._ranks)
        try:
            yield
        finally:
            self._batches = None

    def after_batch(self) -> None:
        """Called after each batch of a loader."""
        if self._batches is None or self._steps is None:
            return
        asked = self._batches.notice()
        self._signals.save |= asked.save  # for the next notice(), which saves
        if asked.stop:
            self._steps.hurry()
            raise StoppedError

    def close(self) -> None:
        """Signals do again what they did before."""
        self._signals.deafen()
