"""The generator: from a label map and a style code a region to an image."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.models.sean.config import SeanConfig
from zoo.models.sean.encoder import StyleEncoder
from zoo.models.sean.labels import one_hot, shrink, windows
from zoo.models.sean.layers import SLOPE, Conv2d, spectral_conv2d
from zoo.models.sean.normalization import Regions, SeanNorm
from zoo_datasets.errors import InputError


class SeanBlock(nn.Module):
    """A residual block of SEAN normalisations (Zhu et al. 2020, figure 4); SPADE's where not ``styled``."""

    def __init__(self, inputs: int, outputs: int, config: SeanConfig, *, styled: bool) -> None:
        super().__init__()
        middle = min(inputs, outputs)
        self.styled = styled
        self.conv_0 = spectral_conv2d(inputs, middle, 3, padding=1)
        self.conv_1 = spectral_conv2d(middle, outputs, 3, padding=1)
        self.ace_0 = SeanNorm(inputs, config.labels, config.style_length, styled=styled)
        self.ace_1 = SeanNorm(middle, config.labels, config.style_length, styled=styled)
        self.has_shortcut = inputs != outputs
        if self.has_shortcut:
            self.conv_s = spectral_conv2d(inputs, outputs, 1, bias=False)
            self.ace_s = SeanNorm(inputs, config.labels, config.style_length, styled=styled)

    def norms(self) -> list[str]:
        """The names of the block's normalisations, each of which takes noise."""
        return ["ace_0", "ace_1", "ace_s"] if self.has_shortcut else ["ace_0", "ace_1"]

    def forward(self, x: Tensor, regions: Regions, style: Tensor, noise: Mapping[str, Tensor]) -> Tensor:
        """[batch, inputs, height, width] to [batch, outputs, height, width]; noise is by :meth:`norms`."""
        y = self.conv_0(F.leaky_relu(self.ace_0(x, regions, style, noise["ace_0"]), SLOPE))
        y = self.conv_1(F.leaky_relu(self.ace_1(y, regions, style, noise["ace_1"]), SLOPE))
        if self.has_shortcut:
            x = self.conv_s(self.ace_s(x, regions, style, noise["ace_s"]))
        return x + y


class Generator(nn.Module):
    """SEAN's generator (Zhu et al. 2020, figure 4) and style encoder, under the official checkpoints' names.

    Its graph does not depend on the labels that a batch holds. It takes any size that ``config.coarsest``
    divides.
    """

    def __init__(self, config: SeanConfig) -> None:
        super().__init__()
        self.config = config
        f = config.filters
        widths = {  # of each block: channels in, channels out
            "head_0": (16 * f, 16 * f),
            "G_middle_0": (16 * f, 16 * f),
            "G_middle_1": (16 * f, 16 * f),
            "up_0": (16 * f, 8 * f),
            "up_1": (8 * f, 4 * f),
            "up_2": (4 * f, 2 * f),
            "up_3": (2 * f, f),
        }
        if config.upsampling == 7:
            widths["up_4"] = (f, f // 2)
        last = list(widths)[-1]
        self.levels = _levels(list(widths), config.upsampling)
        self.Zencoder = StyleEncoder(config.labels, config.style_length)
        self.fc = Conv2d(config.labels, 16 * f, 3, padding=1)
        for name, (inputs, outputs) in widths.items():
            self.add_module(name, SeanBlock(inputs, outputs, config, styled=name != last))
        self.conv_img = Conv2d(widths[last][1], 3, 3, padding=1)

    def noise_shapes(self, height: int, width: int) -> dict[str, tuple[int, int, int]]:
        """The shape (1, h, w) of one sample's noise for each normalisation, by name, at this image size."""
        shapes = {}
        for name, level in self.levels.items():
            factor = 2 ** (self.config.upsampling - level)
            for norm in self._block(name).norms():
                shapes[f"{name}.{norm}"] = (1, height // factor, width // factor)
        return shapes

    def encode(self, image: Tensor, labels: Tensor) -> Tensor:
        """The style codes of an image, [batch, labels, style length]; see :class:`StyleEncoder`."""
        return self.Zencoder(image, labels)

    def forward(
        self,
        labels: Tensor,
        image: Tensor | None = None,
        *,
        style: Tensor | None = None,
        noise: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        """An image for each label map.

        Args:
            labels: whole numbers [batch, height, width]; values outside 0..labels-1 belong to no region.
            image: [batch, 3, height, width] in [-1, 1], whose styles are taken region by region.
            style: [batch, labels, style length], in place of ``image``.
            noise: standard normal [batch, 1, h, w] by the names of :meth:`noise_shapes`; drawn by
                ``torch.randn`` unless given.

        Returns:
            [batch, 3, height, width] in (-1, 1).

        Raises:
            InputError: a size that cannot be halved often enough, or both or none of ``image`` and ``style``.
        """
        height, width = labels.shape[-2:]
        if height % self.config.coarsest or width % self.config.coarsest:
            raise InputError(
                f"sean: label maps of {height} x {width} pixels: give multiples of {self.config.coarsest}"
            )
        if style is None:
            if image is None:
                raise InputError("sean: the generator has no style: give it an image or style codes")
            style = self.encode(image, labels)
        elif image is not None:
            raise InputError("sean: the generator has two styles: give it an image or style codes")
        if noise is None:
            noise = {
                name: torch.randn(labels.shape[0], *shape, device=style.device, dtype=style.dtype)
                for name, shape in self.noise_shapes(height, width).items()
            }
        regions = self._regions(labels, style.dtype)
        x = self.fc(regions[0].one_hot)
        at = 0
        for name, level in self.levels.items():
            if level > at:
                x = F.interpolate(x, scale_factor=2.0, mode="nearest")
                at = level
            block = self._block(name)
            x = block(x, regions[level], style, {norm: noise[f"{name}.{norm}"] for norm in block.norms()})
        return torch.tanh(self.conv_img(F.leaky_relu(x, SLOPE)))

    def _block(self, name: str) -> SeanBlock:
        block: SeanBlock = getattr(self, name)
        return block

    def _regions(self, labels: Tensor, dtype: torch.dtype) -> dict[int, Regions]:
        """The label map at each level, computed once for all normalisations there."""
        regions = {}
        for name, level in self.levels.items():
            if level not in regions:
                small = shrink(labels, 2 ** (self.config.upsampling - level))
                hot = one_hot(small, self.config.labels, dtype)
                regions[level] = Regions(hot, windows(hot) if self._block(name).styled else None)
        return regions


def create_generator(
    *,
    labels: int = SeanConfig.labels,
    image_size: int = SeanConfig.image_size,
    filters: int = SeanConfig.filters,
    style_length: int = SeanConfig.style_length,
    upsampling: int = SeanConfig.upsampling,
    discriminator_filters: int = SeanConfig.discriminator_filters,
) -> Generator:
    """A generator from the fields of :class:`SeanConfig`."""
    return Generator(
        SeanConfig(
            labels=labels,
            image_size=image_size,
            filters=filters,
            style_length=style_length,
            upsampling=upsampling,
            discriminator_filters=discriminator_filters,
        )
    )


def _levels(blocks: list[str], upsampling: int) -> dict[str, int]:
    """How often the resolution is doubled before each block: once more for each, as a rule."""
    levels, level = {}, 0
    for position, name in enumerate(blocks):
        if position > 0 and (name != "G_middle_1" or upsampling > 5):
            level += 1
        levels[name] = level
    return levels
