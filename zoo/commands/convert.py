"""``zoo convert FILE``: a checkpoint that others published, as one of the zoo's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo import registry
from zoo.checkpoint import extra_of
from zoo.commands.outcome import Outcome
from zoo.config import TrainConfig
from zoo.flags import from_flags
from zoo_datasets.errors import InputError

if TYPE_CHECKING:
    from torch import nn

    from parallel.interface import Parallel

SUMMARY = "turn a published checkpoint into one that evaluate, predict and load take"


@dataclass(frozen=True, kw_only=True)
class ConvertConfig:
    """The options of ``zoo convert``."""

    file: Path
    """the published checkpoint"""
    model: str
    """whose checkpoint it is, a model of `zoo list`"""
    to: Path | None = None
    """checkpoint folder to create; runs/MODEL/FILE without its ending unless given"""


def run(argv: list[str]) -> Outcome:
    from parallel import launch

    config = from_flags(
        ConvertConfig, argv, prog="zoo convert", description=SUMMARY, positionals={"file": "FILE"}
    )
    entry = registry.get(config.model)
    if entry.convert is None:
        raise InputError(f"--model {config.model}: has no published checkpoints to convert")
    if not config.file.is_file():
        what = "is a directory, and a file is needed" if config.file.is_dir() else "no such file"
        raise InputError(f"{config.file}: {what}")
    folder = config.to or Path("runs") / entry.name / config.file.stem
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"--to {folder}: exists already; give a folder that is new or empty")
    options, description, models = entry.load("convert")(config.file)
    tensors = launch(write, "single", entry, folder, options, description, models)
    result = {"model": entry.name, "checkpoint": str(folder), "tensors": tensors}
    return Outcome(result, f"{tensors} tensors written to {folder}")


def write(
    p: Parallel,
    entry: registry.ModelEntry,
    folder: Path,
    config: TrainConfig,
    description: Mapping[str, Any],
    models: Mapping[str, nn.Module],
) -> int:
    """Saves the models as a checkpoint of no steps; returns the number of their tensors."""
    wrapped = {name: p.wrap(model) for name, model in models.items()}
    p.save(folder, models=wrapped, extra=extra_of(entry.name, 0, config, description))
    return sum(len(model.state_dict()) for model in wrapped.values())
