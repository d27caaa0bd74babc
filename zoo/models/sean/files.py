"""Files of weights that others made."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from zoo.torch_file import read_torch_file
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
    if path.suffix == ".safetensors":
        try:
            return load_file(path)
        except (OSError, SafetensorError) as error:
            raise InputError(
                f"{path}: cannot be read as safetensors: {' '.join(str(error).split())}"
            ) from None
    loaded = read_torch_file(path)
    if not isinstance(loaded, dict) or not all(isinstance(tensor, Tensor) for tensor in loaded.values()):
        raise InputError(f"{path}: holds no weights by name: give {wanted}")
    return loaded
