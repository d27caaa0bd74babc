"""Where a model of regions gets its data from: a folder of images and label maps, or nothing at all."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from zoo_datasets.errors import InputError, shown
from zoo_datasets.images_split import split_classes
from zoo_datasets.label_maps_decode import read_pair
from zoo_datasets.label_maps_folder import Pair, read_layout
from zoo_datasets.label_maps_names import check_names, with_count
from zoo_datasets.scenes import generated_scenes
from zoo_datasets.segmented import Segmented, SegmentedData, SegmentedRow

__all__ = ["LabelMapFiles", "load_label_maps"]


@dataclass(frozen=True, eq=False, kw_only=True)
class LabelMapFiles(Segmented):
    """Images and label maps in files, decoded when they are read.

    Attributes:
        pairs: paths by row.
    """

    pairs: list[Pair]

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, row: int) -> SegmentedRow:
        return read_pair(*self.pairs[row], self.map_format, self.size)

    def take(self, rows: np.ndarray) -> LabelMapFiles:
        return replace(self, pairs=[self.pairs[row] for row in rows])

    def name(self, row: int) -> str:
        return str(self.pairs[row][0])


def load_label_maps(
    data: str | os.PathLike[str] | None,
    size: int,
    labels: int | None = None,
    seed: int = 0,
    dont_care: bool = False,
    eval_fraction: float = 0.2,
    known: tuple[str, ...] | None = None,
) -> SegmentedData:
    """Load images and label maps to train on and to evaluate on; those of a folder are read when asked for.

    Args:
        data: None for generated scenes; or a folder, see :func:`zoo_datasets.label_maps_folder.read_layout`.
        size: height and width, in pixels, that the middle square of each is brought to.
        labels: how many there are; what the data says unless given. ``labels.txt`` in the folder names them, one
            a line.
        seed: of the scenes, or of the split.
        dont_care: take 255 in label maps for no label, whatever the layout.
        eval_fraction: the share for evaluation, where nothing is set apart yet.
        known: the names of a trained model's labels, which the data's are to be; ``labels`` does not count then.

    Raises:
        InputError: one line; what is wrong with the data, that there is no such folder, or labels that are not
            those known.
    """
    if data is None:
        scenes = generated_scenes(size, seed)
        names = _names(scenes.names, labels, known, "scenes")
        return SegmentedData(replace(scenes.train, names=names), replace(scenes.eval, names=names))
    folder, source = Path(data), os.fspath(data)
    if not folder.is_dir():
        raise InputError(f"no folder {shown(source)}; give one of images and label maps")
    found = read_layout(folder)
    names = _names(found.names, labels, known, source)
    train = LabelMapFiles(
        names=names,
        size=size,
        source=source,
        first=found.first,
        dont_care=dont_care or found.dont_care,
        pairs=list(found.train),
    )
    if found.eval is not None:
        return SegmentedData(train, replace(train, pairs=list(found.eval)))
    if len(train) < 2:
        raise InputError(f"{source}: needs two images or more, one to train and one to evaluate on")
    rows, others = split_classes(np.zeros(len(train), np.int64), [source], eval_fraction, seed, source)
    return SegmentedData(train.take(rows), train.take(others))


def _names(
    found: tuple[str, ...] | None, labels: int | None, known: tuple[str, ...] | None, source: str
) -> tuple[str, ...]:
    if known is None:
        return with_count(found, labels, source)
    check_names(found, known, source)
    return known
