"""Style codes: what an image looks like in each region of its label map."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from zoo.models.sean.labels import one_hot, shrink
from zoo.models.sean.layers import SLOPE, Conv2d, ConvTranspose2d


class StyleEncoder(nn.Module):
    """Image and label map to a style code for each region (Zhu et al. 2020, section 3.1).

    A bottleneck network gives every second pixel a style; a region's code is the mean over its pixels, zeros
    where the region is absent.
    """

    def __init__(self, labels: int, style_length: int) -> None:
        super().__init__()
        self.labels = labels
        self.model = nn.Sequential(
            nn.ReflectionPad2d(1),
            Conv2d(3, 32, 3),
            nn.InstanceNorm2d(32),
            nn.LeakyReLU(SLOPE),
            Conv2d(32, 64, 3, stride=2, padding=1),
            nn.InstanceNorm2d(64),
            nn.LeakyReLU(SLOPE),
            Conv2d(64, 128, 3, stride=2, padding=1),
            nn.InstanceNorm2d(128),
            nn.LeakyReLU(SLOPE),
            ConvTranspose2d(128, 256, 3, stride=2, padding=1, output_padding=1),
            nn.InstanceNorm2d(256),
            nn.LeakyReLU(SLOPE),
            nn.ReflectionPad2d(1),
            Conv2d(256, style_length, 3),
            nn.Tanh(),
        )

    def forward(self, image: Tensor, labels: Tensor) -> Tensor:
        """Image [batch, 3, height, width] and labels [batch, height, width] to [batch, labels, style length].

        Height and width are multiples of 4.
        """
        features = self.model(image)
        return region_mean(features, one_hot(shrink(labels, 2), self.labels, features.dtype))


def region_mean(features: Tensor, regions: Tensor) -> Tensor:
    """The mean feature of each region, as one matrix product; zeros for a region without pixels.

    Features [batch, channels, h, w] and one-hot regions [batch, labels, h, w] to [batch, labels, channels].
    """
    area = regions.sum((2, 3), keepdim=True).clamp(min=1.0)
    return torch.bmm((regions / area).flatten(2), features.flatten(2).mT)
