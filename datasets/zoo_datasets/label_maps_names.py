"""The labels' names: of published data sets, or listed in a file beside the data."""

from __future__ import annotations

import os
from pathlib import Path

from zoo_datasets.errors import InputError, shown

__all__ = [
    "CITYSCAPES_IDS",
    "CITYSCAPES_TRAIN_IDS",
    "MOST_LABELS",
    "NAMES_FILE",
    "check_names",
    "read_names",
    "with_count",
]

MOST_LABELS = 255  # a PNG's 8 bits, and 255 is for no label
NAMES_FILE = "labels.txt"

# Cordts et al., CVPR 2016: labelIds and, of those used in training, labelTrainIds.
CITYSCAPES_IDS = (
    "unlabeled", "ego vehicle", "rectification border", "out of roi", "static", "dynamic", "ground", "road",
    "sidewalk", "parking", "rail track", "building", "wall", "fence", "guard rail", "bridge", "tunnel", "pole",
    "polegroup", "traffic light", "traffic sign", "vegetation", "terrain", "sky", "person", "rider", "car",
    "truck", "bus", "caravan", "trailer", "train", "motorcycle", "bicycle",
)  # fmt: skip
CITYSCAPES_TRAIN_IDS = (
    "road", "sidewalk", "building", "wall", "fence", "pole", "traffic light", "traffic sign", "vegetation",
    "terrain", "sky", "person", "rider", "car", "truck", "bus", "train", "motorcycle", "bicycle",
)  # fmt: skip


def read_names(folder: Path) -> tuple[str, ...] | None:
    """The names that ``labels.txt`` in a folder lists, one a line, label 0's first; None where there is no such file.

    Raises:
        InputError: not text, no names or too many, an empty line between names, or a name twice.
    """
    path = folder / NAMES_FILE
    if not os.path.lexists(path):  # a link that leads nowhere is an error
        return None
    try:
        lines = path.read_text(encoding="utf-8-sig").rstrip().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise InputError(f"{path}: cannot be read ({reason})") from None
    names = [line.strip() for line in lines]
    for number, name in enumerate(names, start=1):
        if not name:
            raise InputError(f"{path}, line {number}: is empty; give each label a name")
        if name in names[: number - 1]:
            raise InputError(f"{path}, line {number}: the name {shown(name)} is there twice")
    if not 1 <= len(names) <= MOST_LABELS:
        raise InputError(f"{path}: lists {len(names)} labels; it may be 1 to {MOST_LABELS}")
    return tuple(names)


def with_count(names: tuple[str, ...] | None, count: int | None, source: str) -> tuple[str, ...]:
    """Names for as many labels as are asked for; those without one are called by their numbers.

    Args:
        names: that are known. count: that is asked for; as many as there are names unless given.

    Raises:
        InputError: a count that is out of range or too small, or neither of the two.
    """
    known = names or ()
    if count is None:
        if names is None:
            raise InputError(
                f"{source}: nothing says how many labels there are; give --labels N, or name them in a file "
                f"{NAMES_FILE} there, one a line"
            )
        return names
    if not 1 <= count <= MOST_LABELS:
        raise InputError(f"--labels {count}: may be 1 to {MOST_LABELS}")
    if count < len(known):
        raise InputError(f"--labels {count}: {source} has {len(known)} labels")
    return known + tuple(str(label) for label in range(len(known), count))


def check_names(names: tuple[str, ...] | None, known: tuple[str, ...], source: str) -> None:
    """Raises unless labels of these names may be those that a model knows.

    A label that nothing names, and that :func:`with_count` or a converter calls by its number, may be any.

    Args:
        names: of the data's labels; None where it names none. known: of the model's.

    Raises:
        InputError: the first label that differs; or there are more or fewer.
    """
    for label, (ours, theirs) in enumerate(zip(names or (), known, strict=False)):
        if ours != theirs and str(label) not in (ours, theirs):
            raise InputError(
                f"{source}: label {label} is {shown(ours)}, and the model's is {shown(theirs)}; number the labels, and "
                f"name them in {NAMES_FILE}, as the model does"
            )
    if names is None:
        return
    rest = range(len(names), len(known))
    if len(names) > len(known) or any(known[label] != str(label) for label in rest):
        raise InputError(
            f"{source}: has {len(names)} labels, and the model {len(known)}; give data of the model's labels"
        )
