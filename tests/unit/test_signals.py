"""How soon a signal is heard: by the clock, whatever a step takes."""

from __future__ import annotations

import signal
from itertools import chain, repeat

import pytest
import torch

import parallel.signals
from parallel.signals import Agreement, Signals


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


def steps_until_heard(monkeypatch: pytest.MonkeyPatch, at: int, steps: list[float], then: float) -> int:
    """Steps after the signal of step ``at`` until a notice tells of it; the first steps take ``steps`` seconds."""
    clock, signals = Clock(), Signals()
    monkeypatch.setattr(parallel.signals, "time", clock)
    agreement = None
    for step, seconds in enumerate(chain(steps, repeat(then)), start=1):
        clock.now += seconds
        if agreement is None:  # as Strategy does: after the first step
            agreement = Agreement(signals, None, torch.device("cpu"), is_first=True)
        if step == at:
            signals.stop = signal.SIGTERM
        if agreement.notice().stop:
            return step - at
    raise AssertionError


@pytest.mark.parametrize("at", [1, 2, 3, 50])
@pytest.mark.parametrize(("seconds", "most"), [(30.0, 0), (0.5, 0), (0.05, 10), (0.005, 100)])
def test_about_half_a_second(monkeypatch: pytest.MonkeyPatch, at: int, seconds: float, most: int) -> None:
    assert steps_until_heard(monkeypatch, at, [], seconds) <= most


@pytest.mark.parametrize("fast", [1, 2, 3])
def test_few_fast_steps_do_not_stand_for_all(monkeypatch: pytest.MonkeyPatch, fast: int) -> None:
    assert steps_until_heard(monkeypatch, fast + 1, [1e-6] * fast, 30.0) <= fast
