"""The sizes of SEAN's two networks."""

from __future__ import annotations

from dataclasses import dataclass, fields

from zoo_datasets.errors import InputError

UPSAMPLINGS = (5, 6, 7)


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
