"""Files of weights that others made: safetensors, or what ``torch.save`` wrote, of which no object is unpickled."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo_datasets.errors import InputError, listed

if TYPE_CHECKING:
    from torch import Tensor

# What published checkpoints keep weights under, and what wrappers put before their names.
_NESTED = ("state_dict_ema", "model_ema", "state_dict", "model")
_PREFIXES = ("module.", "_orig_mod.")


def read_weights_file(path: Path) -> Any:
    """What the file holds, on the CPU: tensors by name, and in a file of torch's whatever plain containers hold them.

    Raises:
        InputError: no such file, damaged, or with more than tensors and plain containers in it.
    """
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with warnings.catch_warnings(action="ignore"):  # of a pickle's protocol: it is refused anyway
            return torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); give a file of weights") from None
    except SafetensorError as error:
        raise InputError(f"{path}: cannot be read as safetensors: {' '.join(str(error).split())}") from None
    except Exception:  # on garbage torch's restricted unpickler raises whatever comes up, IndexError say
        raise InputError(
            f"{path}: not a torch checkpoint of tensors alone, which is all that is read; give a saved state_dict"
        ) from None


def read_weights(path: Path, wanted: str = "a saved state_dict") -> dict[str, Tensor]:
    """The tensors of a file by name.

    Nested keys ("state_dict", "model" and their averages) are followed, prefixes of wrappers taken off.

    Args:
        wanted: what to give, for messages.

    Raises:
        InputError: no such file, damaged, or with more than tensors and plain containers in it.
    """
    from torch import Tensor

    if not path.is_file():
        raise InputError(f"{path}: no such file of weights; give {wanted}")
    found = read_weights_file(path)
    for key in _NESTED:
        while isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
    if not isinstance(found, Mapping) or not all(isinstance(name, str) for name in found):
        raise InputError(f"{path}: holds no weights by name; give {wanted}")
    weights = {_plain(name): value for name, value in found.items() if isinstance(value, Tensor)}
    if found and not weights:
        raise InputError(f"{path}: holds no weights; its keys are {listed(list(found))}; give {wanted}")
    return weights


def _plain(name: str) -> str:
    for prefix in _PREFIXES * 2:  # in either order
        name = name.removeprefix(prefix)
    return name
