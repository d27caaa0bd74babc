"""Checkpoints of the published toy: `{"model": state}` in a `.pth`, with four linear layers fc1 .. fc4."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from zoo.models.ddpm.config import DDPMConfig
from zoo.models.ddpm.data import load_vectors
from zoo.models.ddpm.model import DenoisingMLP
from zoo.weights_file import read_weights_file
from zoo_datasets.errors import InputError, listed

WRAPPERS = ("module.", "_orig_mod.")  # what DataParallel, DDP and torch.compile put before names


def convert(path: Path) -> tuple[DDPMConfig, dict[str, Any], dict[str, nn.Module]]:
    """What ``zoo convert`` writes: options, description and network; see :func:`load_published`."""
    network = load_published(path)
    features, width = network.features, network.fc1.out_features
    config = DDPMConfig(length=features, width=width, ema=0.0, lr=1e-4, initial_weights="torch")
    vectors = load_vectors(config)
    assert vectors.patterns is not None
    description = {
        "model": {"features": features, "steps": network.steps, "width": width, "time_embedding": 0},
        "columns": vectors.columns,
        "normaliser": asdict(vectors.normaliser),
        "patterns": vectors.patterns.tolist(),
        "schedule": config.schedule,
        "prediction": config.prediction,
    }
    return config, description, {"net": network}


def load_published(path: Path, steps: int = 1000) -> DenoisingMLP:
    """The network saved in `path`, with the vector length, width and dtype of its weights.

    `steps` is the T it was trained with, which the file does not tell (published: 1000).
    Raises InputError where the file is missing, holds more than tensors (no object is unpickled), or another
    network.
    """
    return published_network(read_weights_file(path), str(path), steps)


def published_network(checkpoint: object, source: str, steps: int = 1000) -> DenoisingMLP:
    """The network whose state dict `checkpoint` is, or holds under "model". `source` names it in errors.

    Raises InputError where names or shapes are not the published toy's, whatever the vector length and width.
    """
    state = _state(checkpoint, source)
    last = state.get("fc4.weight")
    if last is None or last.ndim != 2:
        raise InputError(f"{source}: no matrix fc4.weight, so not a toy DDPM; it has {listed(list(state))}")
    features, width = last.shape
    network = DenoisingMLP(features, steps, width).to(last.dtype)
    wanted = {name: list(tensor.shape) for name, tensor in network.state_dict().items()}
    found = {name: list(tensor.shape) for name, tensor in state.items()}
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            raise InputError(
                f"{source}: {name} is {found.get(name, 'missing')}, but a toy DDPM of width {width} "
                f"for vectors of {features} numbers has {wanted.get(name, 'none')}; convert another file"
            )
    network.load_state_dict(state)
    return network


def _state(checkpoint: object, source: str) -> dict[str, Tensor]:
    """The tensors of a checkpoint, under plain names."""
    state = checkpoint.get("model", checkpoint) if isinstance(checkpoint, Mapping) else checkpoint
    if not isinstance(state, Mapping) or not all(_is_weight(value) for value in state.values()):
        raise InputError(f'{source}: no state dict of weights, neither at the top nor under "model"')
    return {_plain(str(name)): value for name, value in state.items()}


def _is_weight(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _plain(name: str) -> str:
    while name.startswith(WRAPPERS):
        name = name.split(".", 1)[1]
    return name
