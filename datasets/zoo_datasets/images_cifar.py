"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009), as torchvision downloads and checks them.

The published files are pickles: torchvision opens them only when their checksums are the publisher's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from zoo_datasets.download import cache_folder
from zoo_datasets.errors import InputError
from zoo_datasets.images_types import ArrayImages

__all__ = ["cifar10", "cifar100", "find_cifar"]

_FOLDERS = {"CIFAR10": "cifar-10-batches-py", "CIFAR100": "cifar-100-python"}  # as published


def cifar10() -> tuple[ArrayImages, ArrayImages]:
    """50,000 and 10,000 images of 10 classes; downloaded once into ``$ZOO_CACHE`` or ``~/.cache/parallel-zoo``."""
    return _read("CIFAR10", "cifar10", cache_folder(), download=True)


def cifar100() -> tuple[ArrayImages, ArrayImages]:
    """50,000 and 10,000 images of 100 classes; see :func:`cifar10`."""
    return _read("CIFAR100", "cifar100", cache_folder(), download=True)


def find_cifar(folder: Path) -> tuple[ArrayImages, ArrayImages] | None:
    """CIFAR where it lies in a folder as published, or None where it does not.

    Raises:
        InputError: its files are damaged.
    """
    for kind, base in _FOLDERS.items():
        for root in (folder, folder.parent):
            if (root / base).is_dir() and folder in (root, root / base):
                return _read(kind, str(folder), root, download=False)
    return None


def _read(kind: str, source: str, root: Path, download: bool) -> tuple[ArrayImages, ArrayImages]:
    from torchvision import datasets

    try:
        parts = [getattr(datasets, kind)(root, train, download=download) for train in (True, False)]
    except OSError as error:  # urllib's errors are subclasses
        reason = " ".join(str(getattr(error, "reason", error)).split())
        raise InputError(
            f"{source}: cannot be downloaded into {root} ({reason}); fetch it elsewhere and give its folder as --data"
        ) from None
    except RuntimeError:
        raise InputError(
            f"{source}: the files below {root} are not those that were published; download them anew"
        ) from None
    train, evaluation = (_images(part, source) for part in parts)
    return train, evaluation


def _images(part: Any, source: str) -> ArrayImages:
    return ArrayImages(
        pixels=np.ascontiguousarray(part.data.transpose(0, 3, 1, 2)),
        labels=np.asarray(part.targets, dtype=np.int64),
        classes=list(part.classes),
        source=source,
    )
