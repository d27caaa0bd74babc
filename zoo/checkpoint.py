"""Checkpoints as the zoo reads them: a model's name, options and description beside its weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parallel.checkpoint import (
    CheckpointError,
    check_sizes,
    check_sums,
    is_complete,
    read_manifest,
    verify,
)
from zoo import registry
from zoo.config import TrainConfig
from zoo.fill import from_dict, to_dict
from zoo_datasets.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from parallel.interface import Parallel
    from zoo.registry import ModelEntry
    from zoo.trainer import Trainer

MANIFEST = "manifest.json"
WEIGHTS = (
    "weights/net.ema.safetensors",
    "weights/net.safetensors",
)  # which a model is used with: the first there is
CHECKPOINTS = "checkpoints"
EXTRA = ("model", "step", "config", "description")  # what the zoo adds to the manifest, and cannot do without


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint folder whose files are whole, its weights not loaded yet.

    Attributes:
        entry: the model. step: optimizer steps it was trained for.
        config: the options of its training.
        description: what its trainer said of it; "model" holds the arguments that make the bare module.
        weights_file: of the net that the model is used with: its moving average where there is one.
    """

    folder: Path
    entry: ModelEntry
    step: int
    config: TrainConfig
    description: Mapping[str, Any]
    weights_file: Path

    def weights(self) -> dict[str, Tensor]:
        """The weights under plain names, a tied tensor under each of its names.

        Raises:
            InputError: the file cannot be read.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(self.weights_file)
        except (OSError, SafetensorError) as error:
            raise InputError(f"{self.weights_file}: cannot be read: {error}") from None

    def weights_of(self, model: str) -> dict[str, Tensor] | None:
        """The weights of another model of the training, such as a GAN's discriminator; None if it has none of that name.

        Raises:
            InputError: the file is damaged.
        """
        from safetensors.torch import load_file

        name = f"weights/{model}.safetensors"
        manifest = read_manifest(self.folder)
        if name not in manifest.files:
            return None
        try:
            check_sums(self.folder, manifest, [name])
        except CheckpointError as error:
            raise InputError(f"{error}{offer(self.folder)}") from None
        return load_file(self.folder / name)

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
    """Reads a checkpoint folder, or the last one of a run directory, and checks the bytes of its weights.

    Raises:
        InputError: there is none, it is damaged, of an unknown model, or was written by something else or a later
            release; names another checkpoint of the run that is good.
    """
    folder = find_checkpoint(Path(path))
    try:
        manifest = read_manifest(folder)
        held = [name for name in WEIGHTS if name in manifest.files]
        if not held or not all(key in manifest.extra for key in EXTRA):
            raise InputError(f"{folder / MANIFEST}: not the manifest of a checkpoint that zoo wrote")
        check_sizes(folder, manifest)
        check_sums(folder, manifest, held[:1])
    except CheckpointError as error:
        raise InputError(f"{error}{offer(folder)}") from None
    model, step, config, description = (manifest.extra[key] for key in EXTRA)
    entry = registry.get(model)
    options = from_dict(entry.load("config"), config, source=str(folder / MANIFEST))
    return Checkpoint(folder, entry, step, options, description, folder / held[0])


def offer(bad: Path) -> str:
    """Another checkpoint of the run that is good, its latest, in words that go behind what is wrong with ``bad``."""
    if bad.parent.name != CHECKPOINTS:
        return ""
    run = bad.parent.parent
    for folder in checkpoints_of(run)[::-1]:
        if folder == bad:
            continue
        try:
            verify(folder)
        except CheckpointError:
            continue
        return f"; {folder} is good"
    return f"; {run} has no other that is good"


def extra_of(
    model: str,
    step: int,
    config: TrainConfig,
    description: Mapping[str, Any],
    metrics: Mapping[str, float] | None = None,
    best: Mapping[str, Any] | None = None,
    evaluation_due: bool = False,
) -> dict[str, Any]:
    """What a checkpoint's manifest holds for :func:`read_checkpoint`, and for training on from it.

    Args:
        metrics: of an evaluation after this very step. best: the best evaluation so far.
        evaluation_due: there is to be one after this step, and it was interrupted.
    """
    needed = dict(zip(EXTRA, (model, step, to_dict(config), dict(description)), strict=True))
    return finite({**needed, "metrics": dict(metrics or {}), "best": best, "evaluation_due": evaluation_due})


def finite(value: Any) -> Any:
    """The value with null in place of the numbers that JSON lacks: not-a-number and infinity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value


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
