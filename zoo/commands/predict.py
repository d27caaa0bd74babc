"""``zoo predict RUN``: a trained model's answer to every row of a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.checkpoint import Checkpoint, read_checkpoint
from zoo.commands.outcome import Outcome, on_ranks
from zoo.config import RunConfig, require
from zoo.flags import from_flags
from zoo.progress import shown_on
from zoo.table import Rows, check_new, check_output, count_rows, write_csv

if TYPE_CHECKING:
    import numpy as np

    from parallel.interface import Parallel

_FEATURES = (".npy", ".safetensors")

SUMMARY = "answer every row of a file with a trained model"


@dataclass(frozen=True, kw_only=True)
class PredictConfig(RunConfig):
    """The options of ``zoo predict``."""

    input: Path
    """file of rows, with the columns that the model was trained on"""
    output: Path
    """CSV file to write: one row of answers a row of --input, in its order"""
    features: Path | None = None
    """file to write embeddings to, one a row, .npy or .safetensors, where the model has them"""

    def __post_init__(self) -> None:
        super().__post_init__()
        ending = self.features.suffix if self.features else _FEATURES[0]
        require(
            ending in _FEATURES,
            "features",
            f"must end in {' or '.join(_FEATURES)}, not {ending or 'nothing'}",
        )


def run(argv: list[str]) -> Outcome | None:
    config = from_flags(
        PredictConfig, argv, prog="zoo predict", description=SUMMARY, positionals={"run": "RUN"}
    )
    check_output(config.output)
    if config.features is not None:
        check_new(config.features, "--features")
    checkpoint = read_checkpoint(config.run)
    answers = on_ranks(predict, config, checkpoint, config, precision=checkpoint.config.precision)
    if answers is None:
        return None
    rows, features = answers
    with config.output.open("x", encoding="utf-8", newline="") as file:
        write_csv(file, rows)
    if config.features is not None:
        write_features(config.features, features)
    result = {
        "model": checkpoint.entry.name,
        "checkpoint": str(checkpoint.folder),
        "output": str(config.output),
        "rows": count_rows(rows),
        "features": str(config.features) if config.features else None,
    }
    also = f", embeddings to {config.features}" if config.features else ""
    return Outcome(result, f"{result['rows']} rows written to {config.output}{also}")


def predict(p: Parallel, checkpoint: Checkpoint, config: PredictConfig) -> tuple[Rows, Any] | None:
    """The answers, and the embeddings if they are asked for, on rank 0; called on every rank."""
    from zoo.trainer import evaluating

    with shown_on(p):
        trainer = checkpoint.trainer(p)
        with evaluating(trainer):
            rows = trainer.predict(config.input)
            features = trainer.features(config.input) if config.features else None
    return (rows, features) if p.is_main else None


def write_features(path: Path, features: np.ndarray) -> None:
    """Writes float [rows, width] as .npy, or as the tensor "features" of a .safetensors file."""
    import numpy as np

    if path.suffix == ".npy":
        np.save(path, features, allow_pickle=False)
        return
    from safetensors.numpy import save_file

    save_file({"features": np.ascontiguousarray(features)}, path)
