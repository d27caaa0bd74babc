"""Checkpoints as the zoo reads them: a model's name, options and description beside its weights."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo import registry
from zoo.config import TrainConfig
from zoo.fill import from_dict, to_dict
from zoo_datasets.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from parallel.interface import Parallel
    from zoo.registry import ModelEntry
    from zoo.trainer import Trainer

MANIFEST, WEIGHTS = "manifest.json", "weights"
CHECKPOINTS = "checkpoints"
EXTRA = ("model", "step", "config", "description")  # what the zoo adds to the manifest, and cannot do without


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint folder, its weights not read yet.

    Attributes:
        entry: the model. step: optimizer steps it was trained for.
        config: the options of its training.
        description: what its trainer said of it; "model" holds the arguments that make the bare module.
        ties: names of the net's state that share another name's tensor, and so are not in the file.
    """

    folder: Path
    entry: ModelEntry
    step: int
    config: TrainConfig
    description: Mapping[str, Any]
    ties: Mapping[str, str]

    def weights(self) -> dict[str, Tensor]:
        """The weights of the net that the model is used with, their moving average where there is one.

        Raises:
            InputError: the file is damaged or not there.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        averages = self.folder / WEIGHTS / "net.ema.safetensors"
        file = averages if averages.exists() else self.folder / WEIGHTS / "net.safetensors"
        try:
            weights = load_file(file)
        except (OSError, SafetensorError) as error:
            raise InputError(f"{file}: damaged, or not there: {error}") from None
        return weights | {name: weights[owner] for name, owner in self.ties.items()}

    def module(self) -> nn.Module:
        """The net in evaluation mode, in the precision of its weights, on the CPU."""
        import torch

        net = registry.create(self.entry, self.description["model"])
        weights = self.weights()
        if any(tensor.dtype == torch.float64 for tensor in weights.values()):
            net.double()
        try:
            net.load_state_dict(weights)
        except RuntimeError as error:
            why = " ".join(str(error).split())
            raise InputError(f"{self.folder}: its weights do not fit {self.entry.name}: {why}") from None
        return net.eval()

    def trainer(self, p: Parallel, **options: Any) -> Trainer[Any]:
        """The model's trainer, ready to evaluate, predict and sample; ``options`` replace the training's."""
        trainer: Trainer[Any] = self.entry.load("trainer")(p, replace(self.config, **options))
        trainer.restore(self.module(), self.description)
        return trainer


def read_checkpoint(path: Path | str) -> Checkpoint:
    """Reads a checkpoint folder, or the last one of a run directory.

    Raises:
        InputError: there is none, it is of an unknown model or was written by something else.
    """
    folder = find_checkpoint(Path(path))
    manifest = folder / MANIFEST
    try:
        found = json.loads(manifest.read_text(encoding="utf-8"))
        model, step, config, description = (found["extra"][key] for key in EXTRA)
        ties = found["models"]["net"]
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{manifest}: not the manifest of a checkpoint that zoo wrote") from None
    entry = registry.get(model)
    options = from_dict(entry.load("config"), config, source=str(manifest))
    return Checkpoint(folder, entry, step, options, description, ties)


def extra_of(
    model: str,
    step: int,
    config: TrainConfig,
    description: Mapping[str, Any],
    metrics: Mapping[str, float] | None = None,
    best: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What a checkpoint's manifest holds for :func:`read_checkpoint`, and for training on from it.

    Args:
        metrics: of an evaluation after this very step. best: the best evaluation so far.
    """
    needed = dict(zip(EXTRA, (model, step, to_dict(config), dict(description)), strict=True))
    return finite({**needed, "metrics": dict(metrics or {}), "best": best})


def finite(value: Any) -> Any:
    """The value with null in place of the numbers that JSON lacks: not-a-number and infinity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value


def is_complete(folder: Path) -> bool:
    """Whether a folder is a checkpoint: its manifest is written last."""
    return (folder / MANIFEST).is_file()


def step_folder(run: Path, step: int) -> Path:
    """Where a run keeps the checkpoint of a step."""
    return run / CHECKPOINTS / f"step-{step:08d}"


def checkpoints_of(run: Path) -> list[Path]:
    """A run's complete checkpoints, the last one last."""
    return sorted(folder.parent for folder in run.glob(f"{CHECKPOINTS}/step-*/{MANIFEST}"))


def find_checkpoint(path: Path) -> Path:
    """The checkpoint folder that a path means: itself, or the last one of the run directory it is.

    Raises:
        InputError: no such folder, or no complete checkpoint in it.
    """
    if is_complete(path):
        return path
    if not path.is_dir():
        raise InputError(f"{path}: no such run; give a run directory or a checkpoint in it")
    found = checkpoints_of(path)
    if not found:
        raise InputError(f"{path}: holds no complete checkpoint; give a run directory or a checkpoint in it")
    return found[-1]


def load(path: Path | str) -> nn.Module:
    """The trained model of a run directory or checkpoint: a plain module in evaluation mode, on the CPU.

    Raises:
        InputError: there is no such checkpoint.
    """
    return read_checkpoint(path).module()
