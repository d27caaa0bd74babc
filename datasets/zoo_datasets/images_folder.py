"""Folders of images, one folder a class."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from zoo_datasets.errors import InputError, listed, shown
from zoo_datasets.images_decode import SUFFIXES
from zoo_datasets.images_types import FileImages

__all__ = ["image_files", "images_below", "read_folder"]

_EVALUATION = ("eval", "val", "test")


def read_folder(folder: Path) -> tuple[FileImages, FileImages | None]:
    """The images of ``folder/class/image``, or of ``folder/train/class/image`` and of eval, val or test beside it.

    Classes and images are in the order of their names; what is not an image by its ending is passed over.

    Raises:
        InputError: fewer than two classes, a class without images, other classes for evaluation, or a link that leads
            nowhere.
    """
    if not (folder / "train").is_dir():
        return _read(folder, _classes(folder)), None
    classes = _classes(folder / "train")
    found = [name for name in _EVALUATION if (folder / name).is_dir()]
    if len(found) != 1:
        raise InputError(
            f"{folder}: beside train it needs one folder of {', '.join(_EVALUATION)}; "
            f"it has {' and '.join(found) or 'none'}"
        )
    unknown = sorted(set(_subfolders(folder / found[0])) - set(classes))
    if unknown:
        raise InputError(f"{folder / found[0]}: {listed(unknown)} is no class of {folder / 'train'}")
    return _read(folder / "train", classes), _read(folder / found[0], classes)


def image_files(folder: Path) -> list[Path]:
    """The images below a folder, by their endings, in the order of their paths.

    Raises:
        InputError: there is no folder, or no image in it, or a link that leads nowhere.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder of images")
    found = images_below(folder)
    if not found:
        raise InputError(f"{folder}: holds no image ({', '.join(SUFFIXES)})")
    return found


def _read(folder: Path, classes: list[str]) -> FileImages:
    paths: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        own = images_below(folder / name)
        if not own and (folder / name).is_dir():  # an evaluation may lack a class
            raise InputError(
                f"{folder / name}: the class {shown(name)} holds no image ({', '.join(SUFFIXES)}); fill or remove it"
            )
        paths += own
        labels += [label] * len(own)
    if not paths:
        raise InputError(f"{folder}: holds no images of the classes {listed(classes)}")
    return FileImages(
        paths=paths, labels=np.array(labels, dtype=np.int64), classes=classes, source=str(folder)
    )


def _classes(folder: Path) -> list[str]:
    classes = _subfolders(folder)
    if len(classes) < 2:
        found = f"only the class {shown(classes[0])}" if classes else "no folders"
        raise InputError(f"{folder}: needs two folders of images or more, one a class; it has {found}")
    return classes


def _subfolders(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def images_below(folder: Path, end: str = "") -> list[Path]:
    """The files with an image's ending below a folder, but hidden ones, in the order of their paths.

    Args:
        end: what their names must end in besides.

    Raises:
        InputError: one is a link that leads nowhere.
    """
    found = []
    for path in sorted(folder.rglob(f"*{end}")):
        if path.name.startswith(".") or path.suffix.lower() not in SUFFIXES:
            continue
        if path.is_symlink() and not path.exists():
            raise InputError(f"{path}: is a link that leads nowhere; repair or remove it")
        if path.is_file():
            found.append(path)
    return found
