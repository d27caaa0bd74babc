"""Images on their way to the net: brought to its size, augmented, with a partner where they are to be mixed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from parallel.rng import shared_generator
from zoo.models.vit.config import ViTConfig
from zoo_datasets.images_types import ArrayImages, Images, as_channels

Transform = Callable[[Tensor], Tensor]


class Samples(Dataset[dict[str, Tensor]]):
    """A row an image: "image", uint8 [channels, size, size], and "label"; of its partner too, if it has one.

    Args:
        transform: from an image of any size to one of the net's; what it draws from torch's generator is keyed by
            the loader.
        pairs: a row number is ``row * len(images) + partner``; see :class:`PairSampler`.
    """

    def __init__(
        self, images: Images, channels: int, transform: Transform | None, pairs: bool = False
    ) -> None:
        self.images, self.channels, self.transform, self.pairs = images, channels, transform, pairs

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        if not self.pairs:
            return self._read(number, "")
        row, partner = divmod(number, len(self.images))
        return self._read(row, "") | self._read(partner, "partner_")

    def _read(self, row: int, prefix: str) -> dict[str, Tensor]:
        image = torch.from_numpy(self.images.read(row, self.channels))
        if self.transform is not None:
            image = self.transform(image)
        return {f"{prefix}image": image, f"{prefix}label": torch.tensor(int(self.images.labels[row]))}


class PairSampler:
    """Row numbers of an epoch, each image once, and once as a partner: a pure function of the epoch.

    Partners are drawn over the whole data, so that it does not matter which rank has whom.
    """

    def __init__(self, rows: int, seed: int) -> None:
        self.rows, self.seed = rows, seed

    def __call__(self, epoch: int) -> Tensor:
        """int64 [rows], ``row * rows + partner``."""
        order, partners = (
            torch.randperm(self.rows, generator=shared_generator(self.seed, name, epoch))
            for name in ("shuffle", "partner")
        )
        return order * self.rows + partners


def evaluation_rows(images: Images, size: int, channels: int) -> Any:
    """What a loader takes to give the images in order: the middle square, brought to the size."""
    if isinstance(images, ArrayImages) and images.pixels.shape[2:] == (size, size):
        return _in_memory(images, channels)
    return Samples(images, channels, FitSquare(size))


def training_rows(images: Images, size: int, channels: int, config: ViTConfig) -> Any:
    """What a loader takes to give the images augmented; see :func:`evaluation_rows`."""
    pairs = bool(config.mixup or config.cutmix)
    augment = augmentation(size, config)
    if not pairs and augment is None and isinstance(images, ArrayImages):
        return evaluation_rows(images, size, channels)
    return Samples(images, channels, augment or FitSquare(size), pairs)


@dataclass(frozen=True)
class FitSquare:
    """The middle square of an image, resized with an antialiased bicubic filter."""

    size: int

    def __call__(self, image: Tensor) -> Tensor:
        from torchvision.transforms.v2 import InterpolationMode
        from torchvision.transforms.v2 import functional as T

        if image.shape[-2:] == (self.size, self.size):
            return image
        square = T.center_crop(image, [min(image.shape[-2:])] * 2)
        return T.resize(square, [self.size, self.size], InterpolationMode.BICUBIC, antialias=True)


def augmentation(size: int, config: ViTConfig) -> Transform | None:
    """Random crop, mirroring and RandAugment (Cubuk et al. 2020, arXiv:1909.13719), or None where none is asked for."""
    from torchvision.transforms import v2

    bicubic = v2.InterpolationMode.BICUBIC
    steps: list[Transform] = []
    if config.crop < 1:
        steps.append(
            v2.RandomResizedCrop(size, scale=(config.crop, 1.0), interpolation=bicubic, antialias=True)
        )
    if config.flip:
        steps.append(v2.RandomHorizontalFlip())
    if config.randaugment:
        steps.append(v2.RandAugment(config.randaugment, config.magnitude))
    if not steps:
        return None
    if config.crop == 1:
        steps.insert(0, FitSquare(size))
    return v2.Compose(steps)


def _in_memory(images: ArrayImages, channels: int) -> dict[str, Tensor]:
    pixels = as_channels(images.pixels, channels)
    return {"image": torch.from_numpy(pixels), "label": torch.from_numpy(images.labels)}
