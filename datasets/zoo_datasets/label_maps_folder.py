"""Folders of images and label maps, in the layouts that data sets are published in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from zoo_datasets.errors import InputError, listed
from zoo_datasets.images_decode import SUFFIXES
from zoo_datasets.images_folder import images_below
from zoo_datasets.label_maps_names import CITYSCAPES_IDS, CITYSCAPES_TRAIN_IDS, read_names

__all__ = ["Folder", "Pair", "read_layout"]

Pair = tuple[Path, Path]  # an image and its label map

_EVALUATION = ("eval", "val", "test")
_ADE20K = tuple(str(label) for label in range(150))  # its 150 names come in a file of their own
_CITYSCAPES_MAPS = {
    "_gtFine_labelTrainIds.png": CITYSCAPES_TRAIN_IDS,
    "_gtFine_labelIds.png": CITYSCAPES_IDS,
}


@dataclass(frozen=True)
class Folder:
    """What a folder holds.

    Attributes:
        train, eval: images with their maps; ``eval`` is None where nothing is set apart.
        names: the labels', where they are known.
        first, dont_care: see :class:`zoo_datasets.segmented.MapFormat`.
    """

    train: Sequence[Pair]
    eval: Sequence[Pair] | None
    names: tuple[str, ...] | None
    first: int = 0
    dont_care: bool = False


def read_layout(folder: Path) -> Folder:
    """The images and label maps of a folder, in the order of their names. Nothing is decoded.

    - ``images/NAME.jpg`` with ``labels/NAME.png``, or both under ``train`` and under one of eval, val and test;
      this is how CelebAMask-HQ is prepared for the official SEAN.
    - ADE20K: ``images/training`` with ``annotations/training``, and ``validation`` beside them; 0 is no label.
    - Cityscapes: ``leftImg8bit/train/CITY/NAME_leftImg8bit.png`` with ``gtFine/train/CITY/NAME_gtFine_labelTrainIds.png``
      or, where there are none, ``..._labelIds.png``; and ``val``; 255 is no label.

    Raises:
        InputError: another layout, an image or a map without the other, or a link that leads nowhere; names it.
    """
    names = read_names(folder)
    if (folder / "leftImg8bit").is_dir() and (folder / "gtFine").is_dir():
        return _cityscapes(folder, names)
    if (folder / "images").is_dir() and (folder / "annotations").is_dir():
        train, evaluation = (
            _paired(folder / "images" / split, folder / "annotations" / split)
            for split in ("training", "validation")
        )
        return Folder(train, evaluation, names or _ADE20K, first=1)
    if (folder / "images").is_dir() and (folder / "labels").is_dir():
        return Folder(_paired(folder / "images", folder / "labels"), None, names)
    if (folder / "train" / "images").is_dir() and (folder / "train" / "labels").is_dir():
        found = [name for name in _EVALUATION if (folder / name).is_dir()]
        if len(found) != 1:
            raise InputError(
                f"{folder}: beside train it needs one folder of {', '.join(_EVALUATION)}; "
                f"it has {' and '.join(found) or 'none'}"
            )
        train, evaluation = (
            _paired(folder / split / "images", folder / split / "labels") for split in ("train", found[0])
        )
        return Folder(train, evaluation, names)
    raise InputError(
        f"{folder}: holds no images with label maps; they may lie as images/ and labels/, as train/ and test/ with "
        "these two in each, as ADE20K's images/ and annotations/, or as Cityscapes' leftImg8bit/ and gtFine/"
    )


def _cityscapes(folder: Path, names: tuple[str, ...] | None) -> Folder:
    gt = folder / "gtFine"
    suffix = next(
        (ending for ending in _CITYSCAPES_MAPS if any(gt.rglob(f"*{ending}"))), "_gtFine_labelIds.png"
    )

    def split(name: str) -> list[Pair]:
        return _paired(folder / "leftImg8bit" / name, gt / name, "_leftImg8bit.png", suffix)

    return Folder(split("train"), split("val"), names or _CITYSCAPES_MAPS[suffix], dont_care=True)


def _paired(images: Path, maps: Path, image_end: str = "", map_end: str = "") -> list[Pair]:
    """The files below two folders that have the same name, but for their endings.

    Args:
        image_end, map_end: endings that others do not count without; any image's suffix unless given.
    """
    for folder in (images, maps):
        if not folder.is_dir():
            raise InputError(f"{folder}: no such folder")
    all_images, all_maps = _by_name(images, image_end), _by_name(maps, map_end)
    if not all_images:
        raise InputError(f"{images}: holds no image ({image_end or ', '.join(SUFFIXES)})")
    for ours, theirs, here, what in (
        (all_images, all_maps, images, f"label map in {maps}"),
        (all_maps, all_images, maps, f"image in {images}"),
    ):
        alone = [str(path.relative_to(here)) for name, path in ours.items() if name not in theirs]
        if alone:
            raise InputError(f"{here}: {listed(alone)}: no {what} of that name; add or remove")
    return [(all_images[name], all_maps[name]) for name in sorted(all_images)]


def _by_name(folder: Path, end: str) -> dict[str, Path]:
    """The images below a folder by their paths there, without ending."""
    found: dict[str, Path] = {}
    for path in images_below(folder, end):
        relative = path.relative_to(folder)
        name = str(relative).removesuffix(end) if end else str(relative.with_suffix(""))
        if name in found:
            raise InputError(f"{path}: has the name of {found[name].name} but for its ending; remove one")
        found[name] = path
    return found
