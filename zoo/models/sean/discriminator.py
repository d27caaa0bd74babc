"""The discriminator: two PatchGANs, one on the image and one on the image at half its size."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.models.sean.config import SeanConfig
from zoo.models.sean.labels import one_hot
from zoo.models.sean.layers import SLOPE, Conv2d, spectral_conv2d

Features = list[list[Tensor]]  # by scale, then by layer; a scale's last layer is its prediction
_SCALES = 2


class PatchDiscriminator(nn.Module):
    """Four 4x4 convolutions, that judge overlapping patches (Isola et al. 2017, section 3.2.2)."""

    def __init__(self, channels: int, filters: int) -> None:
        super().__init__()
        self.model0 = nn.Sequential(Conv2d(channels, filters, 4, stride=2, padding=2), nn.LeakyReLU(SLOPE))
        self.model1 = _layer(filters, 2 * filters)
        self.model2 = _layer(2 * filters, 4 * filters)
        self.model3 = nn.Sequential(Conv2d(4 * filters, 1, 4, padding=2))

    def forward(self, x: Tensor) -> list[Tensor]:
        """[batch, channels, height, width] to the features of the four layers, the last [batch, 1, h, w]."""
        features = []
        for layer in (self.model0, self.model1, self.model2, self.model3):
            x = layer(x)
            features.append(x)
        return features


def _layer(inputs: int, outputs: int) -> nn.Sequential:
    # The mean that instance normalisation takes off would take a bias off too.
    convolution = spectral_conv2d(inputs, outputs, 4, stride=2, padding=2, bias=False)
    return nn.Sequential(nn.Sequential(convolution, nn.InstanceNorm2d(outputs)), nn.LeakyReLU(SLOPE))


class Discriminator(nn.Module):
    """Judges image and label map together, at two scales (Wang et al., CVPR 2018, section 3.2)."""

    def __init__(self, config: SeanConfig) -> None:
        super().__init__()
        self.labels = config.labels
        for scale in range(_SCALES):
            self.add_module(
                f"discriminator_{scale}", PatchDiscriminator(config.labels + 3, config.discriminator_filters)
            )

    def forward(self, labels: Tensor, image: Tensor) -> Features:
        """Labels [batch, height, width] and image [batch, 3, height, width] to all layers' features."""
        x = torch.cat((one_hot(labels, self.labels, image.dtype), image), dim=1)
        features: Features = []
        for scale in range(_SCALES):
            if scale:
                x = F.avg_pool2d(x, 3, stride=2, padding=1, count_include_pad=False)
            features.append(getattr(self, f"discriminator_{scale}")(x))
        return features
