"""``zoo sample RUN``: new samples from a trained generative model."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from zoo.checkpoint import Checkpoint, read_checkpoint
from zoo.commands.outcome import Outcome, on_ranks
from zoo.config import SampleConfig
from zoo.flags import from_flags
from zoo.picture import Picture
from zoo.progress import shown_on
from zoo.table import Rows, check_output, count_rows, write_csv
from zoo_datasets.errors import InputError

if TYPE_CHECKING:
    from parallel.interface import Parallel

SUMMARY = "draw new samples from a trained model"


def run(argv: list[str]) -> Outcome | None:
    # Which options there are depends on the model, so the run is read first.
    asks_for_help = not argv or argv[0].startswith("-")
    checkpoint = None if asks_for_help else read_checkpoint(argv[0])
    if checkpoint is not None and checkpoint.entry.sample is None:
        raise InputError(f"{argv[0]}: {checkpoint.entry.name} draws no samples")
    config: SampleConfig = from_flags(
        SampleConfig if checkpoint is None else checkpoint.entry.load("sample"),
        argv,
        prog="zoo sample",
        description=f"{SUMMARY}; a model may have options of its own: zoo sample RUN --help",
        positionals={"run": "RUN"},
    )
    if checkpoint is None:
        raise InputError("the run comes first, as in `zoo sample RUN -n 10`")
    if config.output is not None:
        check_output(config.output, suffix=config.output_suffix)
    found = on_ranks(sample, config, checkpoint, config, precision=checkpoint.config.precision)
    if found is None:
        return None
    result = {
        "model": checkpoint.entry.name,
        "checkpoint": str(checkpoint.folder),
        "samples": found.samples if isinstance(found, Picture) else count_rows(found),
    }
    if config.output is None:
        rows: Rows = found
        import numpy as np

        text = io.StringIO()
        write_csv(text, rows)
        return Outcome(
            result | {"rows": {name: np.asarray(column).tolist() for name, column in rows.items()}},
            text.getvalue().rstrip(),
        )
    if isinstance(found, Picture):
        found.write(config.output)
    else:
        with config.output.open("x", encoding="utf-8", newline="") as file:
            write_csv(file, found)
    result["output"] = str(config.output)
    return Outcome(result, f"{result['samples']} samples written to {config.output}")


def sample(p: Parallel, checkpoint: Checkpoint, options: SampleConfig) -> Rows | Picture | None:
    """The samples on rank 0; called on every rank."""
    from zoo.trainer import evaluating

    with shown_on(p):
        trainer = checkpoint.trainer(p)
        with evaluating(trainer):
            samples = trainer.sample(options)
    return samples if p.is_main else None
