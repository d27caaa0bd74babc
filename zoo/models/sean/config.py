"""SEAN's options: the sizes of its two networks, and how they are trained."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar, Literal

from zoo.config import PretrainedConfig, require
from zoo_datasets.errors import InputError

UPSAMPLINGS = (5, 6, 7)
SCENES = "scenes"


@dataclass(frozen=True, kw_only=True)
class SeanConfig:
    """The sizes of the generator and the discriminator; the defaults are the paper's.

    Attributes:
        labels: number of labels of a map; a pixel with any other value belongs to no region.
        image_size: height and width of the images, in pixels; a multiple of ``2**upsampling``.
        filters: channels of the generator's last block; the first has 16 times as many.
        style_length: length of a region's style code.
        upsampling: how many times the generator doubles its resolution: 5, 6 or 7.
        discriminator_filters: channels of the discriminator's first layer.
    """

    labels: int = 19
    image_size: int = 256
    filters: int = 64
    style_length: int = 512
    upsampling: int = 5
    discriminator_filters: int = 64

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, int) or value < 1:
                raise InputError(f"sean: {field.name} is {value!r}: give a whole number of at least 1")
        if self.upsampling not in UPSAMPLINGS:
            raise InputError(f"sean: upsampling is {self.upsampling}: give one of {UPSAMPLINGS}")
        if self.upsampling == 7 and self.filters % 2:
            raise InputError(f"sean: filters is {self.filters}: upsampling 7 needs an even number")
        if self.image_size % self.coarsest:
            raise InputError(
                f"sean: image_size is {self.image_size}: give a multiple of {self.coarsest} (2**upsampling)"
            )

    @property
    def coarsest(self) -> int:
        """Side, in pixels of the image, of one pixel of the generator's first block."""
        return 2**self.upsampling


@dataclass(frozen=True, kw_only=True)
class SeanTrainConfig(PretrainedConfig):
    """Sizes for two CPU cores. The paper's are ``--image-size 256 --filters 64 --style-length 512 --lr 2e-4``."""

    default_epochs: ClassVar[int] = 1

    data: str | None = SCENES
    """scenes, which are generated, or a folder of images and label maps"""
    labels: int | None = None
    """how many labels there are; as many as the data says unless given"""
    dont_care: bool = False
    """take 255 in label maps for no label"""
    flip: bool = False
    """mirror half of the training images; labels whose names tell left from right change sides with them"""
    workers: int = 0
    """processes on each rank that read images"""
    image_size: int = 64
    """pixels of a side that images are brought to, a multiple of 2**upsampling"""
    filters: int = 8
    """channels of the generator's last block; the first has 16 times as many"""
    style_length: int = 32
    """length of a region's style code"""
    upsampling: Literal[5, 6, 7] = 5
    """how often the generator doubles its resolution"""
    discriminator_filters: int = 16
    """channels of the discriminator's first layer"""
    batch_size: int = 4
    """images of a global batch, whatever the number of ranks"""
    lr: float = 1e-3
    """learning rate of Adam: the generator's is half of it, the discriminator's twice"""
    gan_loss: Literal["hinge", "least-squares", "original"] = "hinge"
    """what the networks play for"""
    feature_matching: float = 10.0
    """weight of the distance in the discriminator's features"""
    vgg_weights: str | None = None
    """VGG-19's weights for the perceptual loss: hub (downloaded by torchvision) or a file; that loss is off without"""
    perceptual: float = 10.0
    """weight of the perceptual loss, where it is on"""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("labels", "filters", "style_length", "discriminator_filters"):
            value = getattr(self, name)
            require(value is None or value >= 1, name, f"must be at least 1, not {value}")
        require(self.workers >= 0, "workers", f"must not be negative, not {self.workers}")
        require(self.lr > 0, "lr", f"must be above 0, not {self.lr:g}")
        for name in ("feature_matching", "perceptual"):
            require(getattr(self, name) >= 0, name, f"must not be negative, not {getattr(self, name):g}")
        require(
            self.upsampling < 7 or self.filters % 2 == 0,
            "filters",
            f"must be even for upsampling 7, not {self.filters}",
        )
        coarsest = 2**self.upsampling
        require(
            self.image_size >= 1 and self.image_size % coarsest == 0,
            "image_size",
            f"must be a multiple of 2**upsampling, {coarsest}, not {self.image_size}",
        )

    def sizes(self, labels: int) -> SeanConfig:
        """The networks' sizes, for data of so many labels."""
        return SeanConfig(
            labels=labels,
            image_size=self.image_size,
            filters=self.filters,
            style_length=self.style_length,
            upsampling=self.upsampling,
            discriminator_filters=self.discriminator_filters,
        )
