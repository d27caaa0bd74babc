"""``zoo evaluate RUN``: a trained model's metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from zoo.checkpoint import Checkpoint, read_checkpoint
from zoo.commands.outcome import Outcome, on_ranks, shown_metrics
from zoo.config import RunConfig
from zoo.flags import from_flags
from zoo.progress import shown_on
from zoo_datasets.errors import InputError

if TYPE_CHECKING:
    from parallel.interface import Parallel

SUMMARY = "measure a trained model"


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig(RunConfig):
    """The options of ``zoo evaluate``."""

    data: str | None = None
    """name of a data set, or a file or folder; the evaluation rows of the run's own data unless given"""


def run(argv: list[str]) -> Outcome | None:
    config = from_flags(
        EvaluateConfig, argv, prog="zoo evaluate", description=SUMMARY, positionals={"run": "RUN"}
    )
    checkpoint = read_checkpoint(config.run)
    metrics = on_ranks(measure, config, checkpoint, config.data, precision=checkpoint.config.precision)
    if metrics is None:
        return None
    result = {"model": checkpoint.entry.name, "checkpoint": str(checkpoint.folder), "metrics": metrics}
    return Outcome(result, shown_metrics(metrics))


def measure(p: Parallel, checkpoint: Checkpoint, data: str | None) -> dict[str, float] | None:
    """The metrics of a checkpoint, on rank 0; called on every rank."""
    from zoo.trainer import evaluate

    with shown_on(p):
        trainer = checkpoint.trainer(p, data=data)
        evaluation = evaluate(trainer)
    if evaluation is None:
        raise InputError(
            f"{checkpoint.folder}: {checkpoint.entry.name} has nothing to evaluate on; give --data"
        )
    return evaluation.metrics if p.is_main else None
