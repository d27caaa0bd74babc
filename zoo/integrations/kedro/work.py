"""What the nodes do in processes of their own: the commands' work on ranks, from plain data and paths."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from parallel import launch
from zoo.checkpoint import Checkpoint
from zoo.commands.outcome import on_ranks
from zoo.config import LaunchConfig, SampleConfig, TrainConfig
from zoo.progress import shown_on
from zoo.run import train as train_on_ranks
from zoo_datasets.errors import InputError

if TYPE_CHECKING:
    from parallel.interface import Parallel
    from zoo.picture import Picture
    from zoo.registry import ModelEntry
    from zoo.table import Rows


def train(entry: ModelEntry, config: TrainConfig) -> dict[str, Any]:
    """What ``zoo train --json`` prints."""
    result: dict[str, Any] = on_ranks(train_on_ranks, config, entry, config)
    return result


def evaluate(checkpoint: Checkpoint, config: LaunchConfig, data: str | None) -> tuple[dict[str, float], Rows]:
    """A checkpoint's metrics, and the rows they were computed from."""
    found: tuple[dict[str, float], Rows] = on_ranks(
        _measure, config, checkpoint, data, precision=checkpoint.config.precision
    )
    return found


def report(checkpoint: Checkpoint, metrics: dict[str, float], rows: Rows, folder: Path) -> None:
    """Plots and tables of an evaluation, drawn into an existing folder."""
    launch(_draw, "single", checkpoint, metrics, rows, folder)


def predict(checkpoint: Checkpoint, config: LaunchConfig, data: Path) -> Rows:
    """A checkpoint's answer to every row of a file."""
    rows: Rows = on_ranks(_answer, config, checkpoint, data, precision=checkpoint.config.precision)
    return rows


def sample(checkpoint: Checkpoint, config: SampleConfig) -> Rows | Picture:
    """New samples of a checkpoint's model."""
    samples: Rows | Picture = on_ranks(
        _sample, config, checkpoint, config, precision=checkpoint.config.precision
    )
    return samples


def _measure(p: Parallel, checkpoint: Checkpoint, data: str | None) -> tuple[dict[str, float], Rows]:
    from zoo.trainer import evaluate

    with shown_on(p):
        evaluation = evaluate(checkpoint.trainer(p, data=data))
    if evaluation is None:
        raise InputError(f"{checkpoint.entry.name} has nothing to evaluate on; give the node data")
    return evaluation.metrics, evaluation.rows


def _draw(p: Parallel, checkpoint: Checkpoint, metrics: dict[str, float], rows: Rows, folder: Path) -> None:
    from zoo.trainer import Evaluation

    checkpoint.trainer(p).report(folder, Evaluation(metrics, rows))


def _answer(p: Parallel, checkpoint: Checkpoint, data: Path) -> Rows:
    from zoo.trainer import evaluating

    with shown_on(p):
        trainer = checkpoint.trainer(p)
        with evaluating(trainer):
            return trainer.predict(data)


def _sample(p: Parallel, checkpoint: Checkpoint, options: SampleConfig) -> Rows | Picture:
    from zoo.trainer import evaluating

    with shown_on(p):
        trainer = checkpoint.trainer(p)
        with evaluating(trainer):
            return trainer.sample(options)
