"""Files of weights that others made: safetensors, or what ``torch.save`` wrote, of which no object is unpickled."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from zoo_datasets.errors import InputError


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
