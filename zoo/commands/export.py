"""``zoo export RUN``: a trained model's weights as one file that plain PyTorch loads."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from zoo.checkpoint import Checkpoint, read_checkpoint
from zoo.commands.outcome import Outcome
from zoo.config import OptionError
from zoo.flags import from_flags
from zoo.registry import resolve
from zoo.table import check_new
from zoo_datasets.errors import InputError

PLAIN = "plain"

SUMMARY = "write a trained model's weights as safetensors"


@dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """The options of ``zoo export``."""

    run: Path
    """a run directory, or a checkpoint in it"""
    to: Path
    """file to write, such as net.safetensors; the folder of another layout's files"""
    layout: str = PLAIN
    """plain for one file under the names of `zoo.load`, or a form of the model's own, as official for sean"""

    def __post_init__(self) -> None:
        if self.layout == PLAIN and self.to.suffix != ".safetensors":
            raise OptionError("to", f"must end in .safetensors, not {self.to.name}")


def run(argv: list[str]) -> Outcome:
    config = from_flags(
        ExportConfig, argv, prog="zoo export", description=SUMMARY, positionals={"run": "RUN"}
    )
    if config.layout != PLAIN:
        return _in_layout(read_checkpoint(config.run), config)
    check_new(config.to, "--to")
    checkpoint = read_checkpoint(config.run)
    weights = checkpoint.weights()
    from safetensors.torch import save_file

    beside: Path | None = None
    if checkpoint.entry.export is not None:
        beside = checkpoint.entry.load("export")(checkpoint, config.to.parent)

    arguments = json.dumps(checkpoint.description["model"])
    save_file(weights, config.to, {"format": "pt", "model": checkpoint.entry.name, "arguments": arguments})
    numbers = sum(tensor.numel() for tensor in weights.values())
    result = {
        "model": checkpoint.entry.name,
        "checkpoint": str(checkpoint.folder),
        "to": str(config.to),
        "beside": str(beside) if beside else None,
        "tensors": len(weights),
        "parameters": numbers,
    }
    also = f", and {beside}" if beside else ""
    return Outcome(result, f"{len(weights)} tensors, {numbers:,} numbers written to {config.to}{also}")


def _in_layout(checkpoint: Checkpoint, config: ExportConfig) -> Outcome:
    layouts = checkpoint.entry.layouts
    if config.layout not in layouts:
        known = ", ".join((PLAIN, *layouts))
        raise InputError(f"--layout {config.layout}: {checkpoint.entry.name} has {known}")
    if config.to.exists() and not config.to.is_dir():
        raise InputError(f"--to {config.to}: is a file; --layout {config.layout} writes into a folder")
    files = resolve(layouts[config.layout])(checkpoint, config.to)
    result = {
        "model": checkpoint.entry.name,
        "checkpoint": str(checkpoint.folder),
        "to": str(config.to),
        "files": [str(file) for file in files],
    }
    return Outcome(result, "\n".join(f"written to {file}" for file in files))
