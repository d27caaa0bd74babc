"""Pictures from a trained generator: reconstructions, and the style of some pictures on the map of another."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from parallel import rng
from parallel.interface import Parallel
from zoo.fill import nearest
from zoo.models.sean.generator import Generator
from zoo.models.sean.pictures import as_pixels, coloured, grid
from zoo.models.sean.sample_config import SeanSampleConfig
from zoo.models.sean.styles import (
    Styles,
    filled,
    mean_styles,
    region_code,
    require_styles,
    style_sums,
    styles_of,
    with_regions,
)
from zoo.picture import Picture
from zoo_datasets.errors import InputError, shown
from zoo_datasets.label_maps_decode import read_pair, read_square, read_square_map
from zoo_datasets.segmented import MapFormat, Segmented, SegmentedRow

log = logging.getLogger("zoo")

_ROWS_AT_ONCE = 16


@dataclass(frozen=True)
class Sampler:
    """A wrapped generator in evaluation mode, and what is known of its data. To be called on every rank.

    Attributes:
        names: of the labels.
        map_format: of the label maps that people give.
        means: the styles of regions that a picture lacks, where they are known.
        dtype: of images and styles.
    """

    p: Parallel
    net: Generator
    names: tuple[str, ...]
    map_format: MapFormat
    means: Styles | None
    dtype: torch.dtype

    def draw(self, options: SeanSampleConfig, held_out: Segmented) -> Picture:
        """What ``zoo sample`` draws.

        Raises:
            InputError: a file that cannot be used, an unknown region, or one without a style.
        """
        if options.mask is not None:
            return self.transferred(options)
        if options.n > len(held_out):
            log.info(
                "%s holds out %d images: -n %d draws them all", held_out.source, len(held_out), options.n
            )
        return self.reconstructed(held_out.take(np.arange(min(options.n, len(held_out)))), options.seed)

    def reconstructed(self, images: Segmented, seed: int) -> Picture:
        """Each image from its own label map and style."""
        outputs, index = [], []
        for batch in self.p.loader(images, min(len(images), _ROWS_AT_ONCE), seed=seed):
            noise = {name: batch.noise(name, shape, self.dtype) for name, shape in self._shapes().items()}
            with self.p.autocast():
                output = self.net(batch["labels"], batch["image"].to(self.dtype), noise=noise)
            outputs.append(output.to(self.dtype))
            index.append(batch.index)
        drawn = self.p.gather(torch.cat(outputs), torch.cat(index)).cpu().numpy()
        rows = [images[row] for row in range(len(images))]
        return self._grid([[row["image"], output] for row, output in zip(rows, drawn, strict=True)], rows)

    def transferred(self, options: SeanSampleConfig) -> Picture:
        """The map of ``--mask`` in the style of ``--style`` and, for some regions, of others."""
        assert options.mask is not None and options.style is not None and options.style_mask is not None
        size = self.net.config.image_size
        labels = read_square_map(_there("--mask", options.mask), self.map_format, size)
        style_files = _there("--style", options.style), _there("--style-mask", options.style_mask)
        picture = read_pair(*style_files, self.map_format, size)
        regions, pictures = {}, [picture["image"]]
        for text in options.region:
            label, row, place = self._region(text)
            codes, maps = self.encoded(row)
            regions[label] = region_code(codes, maps, label, self.names[label], place)
            pictures.append(row["image"])
        style = styles_of(*(x.unsqueeze(0) for x in self.encoded(picture)))[0]
        style = with_regions(filled(style, self.means), regions, options.blend)
        target = torch.from_numpy(labels).to(self.p.device)
        require_styles(style, target, self.names, f"--mask {options.mask}")
        drawn = self.generated(target, style, options.seed).cpu().numpy()
        return self._grid([[*pictures, drawn]], [{"image": picture["image"], "labels": labels}])

    def encoded(self, row: SegmentedRow) -> tuple[Tensor, Tensor]:
        """The codes [labels, style length] of an image, and its label map."""
        image = torch.from_numpy(row["image"]).to(self.p.device, self.dtype)
        labels = torch.from_numpy(row["labels"]).to(self.p.device)
        with self.p.autocast():
            codes = self.net.encode(image.unsqueeze(0), labels.unsqueeze(0))[0]
        return codes.to(self.dtype), labels

    def generated(self, labels: Tensor, style: Styles, seed: int) -> Tensor:
        """[3, height, width] for a label map [height, width], the same on every rank."""
        first = torch.zeros(1, dtype=torch.int64, device=labels.device)
        noise = {
            name: rng.normal(rng.make_key(seed, name), first, shape, self.dtype)
            for name, shape in self._shapes().items()
        }
        with self.p.autocast():
            drawn = self.net(labels.unsqueeze(0), style=style.codes.unsqueeze(0), noise=noise)
        return drawn[0].to(self.dtype)

    def _region(self, text: str) -> tuple[int, SegmentedRow, str]:
        """The label of ``NAME=IMAGE`` or ``NAME=IMAGE,MAP``, the picture, and what messages call it."""
        name, _, file = text.partition("=")
        if name not in self.names:
            raise InputError(f"--region {text}: no region {shown(name)}; {nearest(name, self.names)}")
        label, size = self.names.index(name), self.net.config.image_size
        image, comma, label_map = file.rpartition(",")
        if comma and not Path(file).exists():
            files = _there("--region", Path(image)), _there("--region", Path(label_map))
            row = read_pair(*files, self.map_format, size)
        else:
            whole = np.full((size, size), label, dtype=np.int64)
            row = {"image": read_square(_there("--region", Path(file)), size), "labels": whole}
        return label, row, f"--region {text}"

    def _grid(self, pictures: list[list[np.ndarray]], rows: list[SegmentedRow]) -> Picture:
        count = len(self.names)
        return Picture(
            grid(
                [
                    [coloured(row["labels"], count), *map(as_pixels, images)]
                    for row, images in zip(rows, pictures, strict=True)
                ]
            ),
            len(rows),
        )

    def _shapes(self) -> dict[str, tuple[int, int, int]]:
        size = self.net.config.image_size
        return self.net.noise_shapes(size, size)


def _there(flag: str, path: Path) -> Path:
    """The path, if something is there; names the flag that it was given with if not."""
    if not path.exists():
        raise InputError(f"{flag} {path}: no such file")
    return path


def mean_styles_over(p: Parallel, net: Generator, images: Segmented, dtype: torch.dtype) -> Styles:
    """The mean style of each label over images, the same on every rank."""
    config = net.config
    total = torch.zeros(config.labels, config.style_length + 1, dtype=torch.float64, device=p.device)
    for batch in p.loader(images, _ROWS_AT_ONCE):
        with p.autocast():
            codes = net.encode(batch["image"].to(dtype), batch["labels"])
        total += style_sums(codes, batch["labels"])
    return mean_styles(p.sum(total))
