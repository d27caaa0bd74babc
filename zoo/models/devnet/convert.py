"""Checkpoints of the published PyTorch port: a `.pth` of `{"model": state, "n_input": columns}`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from zoo.models.devnet.config import DevNetConfig
from zoo.models.devnet.model import DevNet
from zoo.weights_file import read_weights_file
from zoo_datasets.errors import InputError, listed

LAYERS = {"hidden.0": "fc", "score": "output"}  # ours of depth 2, and what its one network calls them


def convert(path: Path) -> tuple[DevNetConfig, dict[str, Any], dict[str, nn.Module]]:
    """What ``zoo convert`` writes: options, description and network; see :func:`load_published`.

    The port does not say which columns of which data it was trained on: their number is checked at use.
    """
    network = load_published(path)
    model = {"in_features": network.in_features, "depth": network.depth}
    description = {"model": model, "columns": None, "label": None, "data": None}
    return DevNetConfig(data=None, network_depth=2), description, {"net": network}


def load_published(path: Path) -> DevNet:
    """The network saved in ``path``, in the dtype of its weights.

    Nothing is unpickled but tensors and plain containers.

    Raises:
        InputError: no such file, not a checkpoint of tensors alone, or another network.
    """
    return published_network(read_weights_file(path), str(path))


def published_network(checkpoint: object, source: str) -> DevNet:
    """The network whose weights a checkpoint of the port holds under "model"; ``source`` names it in errors.

    Raises:
        InputError: names or shapes are not those of the port's network.
    """
    state = checkpoint.get("model") if isinstance(checkpoint, Mapping) else None
    if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()):
        raise InputError(
            f'{source}: no weights under "model", so not a checkpoint of the published DevNet port'
        )
    first = state.get("fc.weight")
    if first is None or first.ndim != 2:
        found = listed([str(name) for name in state])
        raise InputError(
            f"{source}: no matrix fc.weight, so not a checkpoint of the published DevNet port; it has {found}"
        )
    network = DevNet(first.shape[1], depth=2).to(first.dtype)
    wanted = {_theirs(name): tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    given = {str(name): tuple(tensor.shape) for name, tensor in state.items()}
    for name in sorted(wanted.keys() | given.keys()):
        if wanted.get(name) != given.get(name):
            raise InputError(
                f"{source}: {name} is {given.get(name, 'missing')}, where the published DevNet port for "
                f"{network.in_features} columns has {wanted.get(name, 'nothing')}"
            )
    network.load_state_dict({name: state[_theirs(name)] for name in network.state_dict()})
    return network


def _theirs(name: str) -> str:
    layer, _, tensor = name.rpartition(".")
    return f"{LAYERS[layer]}.{tensor}"
