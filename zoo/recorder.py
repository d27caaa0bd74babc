"""Who is told how a training goes. The base class does nothing, as in training in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Record:
    """The numbers of one step, or of one evaluation.

    Attributes:
        step: optimizer steps done, from 1. epoch: the pass over the data it belongs to, from 1.
        values: by name, such as loss, grad_norm and lr; or an evaluation's metrics.
    """

    step: int
    epoch: int
    values: Mapping[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it, and ``Record(**...)`` gives it back."""
        return {"step": self.step, "epoch": self.epoch, "values": dict(self.values)}


class Recorder:
    """Called by :func:`zoo.trainer.fit` on the rank that has it, in this order; none of it is collective."""

    def begin(self, steps: int, steps_per_epoch: int, done: int = 0, evaluation_due: bool = False) -> None:
        """The data is read and the model built; the run has ``steps``, of which ``done`` are done already.

        ``evaluation_due``: it begins with the evaluation after those.
        """

    def tick(self, step: int) -> None:
        """Called every step, so it must cost next to nothing."""

    def steps(self, records: Sequence[Record]) -> None:
        """The steps since the last call, every ``log_every`` steps and at the end of the run."""

    def evaluation(self, record: Record) -> None:
        """The model was evaluated after ``record.step``."""
