"""Files of weights that others made."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

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
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # on garbage torch's restricted unpickler raises whatever comes up
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{path}: cannot be read as weights: {reason}") from error
    if not isinstance(loaded, dict) or not all(isinstance(tensor, Tensor) for tensor in loaded.values()):
        raise InputError(f"{path}: holds no weights by name: give {wanted}")
    return loaded
