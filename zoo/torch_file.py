"""Files that ``torch.save`` wrote, read without unpickling anything but tensors and plain containers."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from zoo_datasets.errors import InputError


def read_torch_file(path: Path) -> Any:
    """What the file holds, on the CPU.

    Raises:
        InputError: no such file, damaged, or with more than tensors and plain containers in it.
    """
    import torch

    try:
        with warnings.catch_warnings(
            action="ignore"
        ):  # of a pickle's protocol: what is refused needs no second word
            return torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); give a file of weights") from None
    except Exception:  # on garbage torch's restricted unpickler raises whatever comes up, IndexError say
        raise InputError(
            f"{path}: not a torch checkpoint of tensors alone, which is all that is read; give a saved state_dict"
        ) from None
