"""Files of weights that others made."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from zoo.weights_file import read_weights_file
from zoo_datasets.errors import InputError


def read_weights(path: Path, wanted: str) -> Mapping[str, Tensor]:
    """Tensors by name, of a safetensors file or a ``torch.save`` of plain tensors; no object is unpickled.

    Args:
        wanted: what to give, for messages.

    Raises:
        InputError: no such file, or something else in it.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file: give {wanted}")
    loaded = read_weights_file(path)
    if not isinstance(loaded, dict) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in loaded.items()
    ):
        raise InputError(f"{path}: holds no weights by name: give {wanted}")
    return loaded
