"""Where the image models' data comes from: a name, a folder of images, or nothing at all."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from zoo_datasets.errors import InputError, shown
from zoo_datasets.images_cifar import cifar10, cifar100, find_cifar
from zoo_datasets.images_digits import digits
from zoo_datasets.images_folder import read_folder
from zoo_datasets.images_split import split_classes
from zoo_datasets.images_types import Images, only_classes

__all__ = ["NAMED_IMAGES", "ImageData", "load_images"]


@dataclass(frozen=True, eq=False)
class ImageData:
    """Images to train on and images to evaluate on.

    Attributes:
        classes: names of the labels 0, 1, ...; at least two.
    """

    train: Images
    eval: Images
    classes: list[str]


# Each gives the training images and, where the publisher has set them apart, those for evaluation.
NAMED_IMAGES: dict[str, Callable[[], tuple[Images, Images | None]]] = {
    "digits": lambda: (digits(), None),
    "cifar10": cifar10,
    "cifar100": cifar100,
}


def load_images(
    data: str | os.PathLike[str] | None = None,
    seed: int = 0,
    eval_fraction: float = 0.2,
    keep: Callable[[Images], Images] | None = None,
) -> ImageData:
    """Load training and evaluation images. Those of a folder are read when they are asked for.

    Args:
        data: None for ``digits``; a name of ``NAMED_IMAGES``; a folder ``class/image``, which is split at random,
            each class alike; a folder with such folders ``train`` and ``eval`` (or ``val`` or ``test``); or a
            folder where CIFAR lies as published. A name or folder may end in ``:FIRST-LAST``, for these classes
            only, counted from 0 and numbered anew: ``digits:5-9``.
        seed: of the split.
        eval_fraction: the share of each class for evaluation, where there is no split yet.
        keep: takes images away before they are split, such as those that cannot be read.

    Raises:
        InputError: one line; what is wrong with the data, or that there is no such name or path.
    """
    name = "digits" if data is None else os.fspath(data)
    base, first, last = _parse(name)
    train, evaluation = _find(base)
    if first is not None:
        assert last is not None
        train = only_classes(train, first, last)
        evaluation = None if evaluation is None else only_classes(evaluation, first, last)
    if keep is not None:
        train, evaluation = keep(train), None if evaluation is None else keep(evaluation)
    if evaluation is None:
        rows, others = split_classes(train.labels, train.classes, eval_fraction, seed, name)
        train, evaluation = train.take(rows), train.take(others)
    return ImageData(train, evaluation, train.classes)


def _find(name: str) -> tuple[Images, Images | None]:
    if name in NAMED_IMAGES:
        return NAMED_IMAGES[name]()
    path = Path(name)
    if path.is_dir():
        return find_cifar(path) or read_folder(path)
    if path.exists():
        raise InputError(f"{path}: is a file; give a folder of images, class/image")
    base = name.partition(":")[0]
    near = difflib.get_close_matches(base, NAMED_IMAGES, n=3, cutoff=0.5)
    if base in NAMED_IMAGES:
        raise InputError(f"{shown(name)}: give classes of {base} by their first and last, as in {base}:0-4")
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    raise InputError(f"no data set or folder {shown(name)}{hint} (names: {', '.join(NAMED_IMAGES)})")


def _parse(name: str) -> tuple[str, int | None, int | None]:
    """``digits:5-9`` -> ("digits", 5, 9); anything else as it is."""
    base, colon, span = name.rpartition(":")
    low, dash, high = span.partition("-")
    if not (colon and dash and low.isdecimal() and high.isdecimal()) or Path(name).exists():
        return name, None, None
    return base, int(low), int(high)
