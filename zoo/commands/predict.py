"""``zoo predict RUN``: a trained model's answer to every row of a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from zoo.checkpoint import Checkpoint, read_checkpoint
from zoo.commands.outcome import Outcome, on_ranks
from zoo.config import RunConfig
from zoo.flags import from_flags
from zoo.progress import shown_on
from zoo.table import Rows, check_output, count_rows, write_csv

if TYPE_CHECKING:
    from parallel.interface import Parallel

SUMMARY = "answer every row of a file with a trained model"


@dataclass(frozen=True, kw_only=True)
class PredictConfig(RunConfig):
    """The options of ``zoo predict``."""

    input: Path
    """file of rows, with the columns that the model was trained on"""
    output: Path
    """CSV file to write: one row of answers a row of --input, in its order"""


def run(argv: list[str]) -> Outcome | None:
    config = from_flags(
        PredictConfig, argv, prog="zoo predict", description=SUMMARY, positionals={"run": "RUN"}
    )
    check_output(config.output)
    checkpoint = read_checkpoint(config.run)
    rows = on_ranks(predict, config, checkpoint, config.input, precision=checkpoint.config.precision)
    if rows is None:
        return None
    with config.output.open("x", encoding="utf-8", newline="") as file:
        write_csv(file, rows)
    result = {
        "model": checkpoint.entry.name,
        "checkpoint": str(checkpoint.folder),
        "output": str(config.output),
        "rows": count_rows(rows),
    }
    return Outcome(result, f"{result['rows']} rows written to {config.output}")


def predict(p: Parallel, checkpoint: Checkpoint, path: Path) -> Rows | None:
    """The answers on rank 0; called on every rank."""
    from zoo.trainer import evaluating

    with shown_on(p):
        trainer = checkpoint.trainer(p)
        with evaluating(trainer):
            rows = trainer.predict(path)
    return rows if p.is_main else None
