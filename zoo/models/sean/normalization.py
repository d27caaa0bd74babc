"""SEAN normalisation: every pixel scaled and shifted by the label map and by the styles of its regions."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.models.sean.layers import Conv2d, LabelLinear

_HIDDEN = 128  # channels between the label map and its modulation


class Regions(NamedTuple):
    """A label map at the resolution of one block.

    Attributes:
        one_hot: [batch, labels, height, width].
        windows: [batch, labels * 9, height * width], see :func:`zoo.models.sean.labels.windows`; None where
            no block uses styles.
    """

    one_hot: Tensor
    windows: Tensor | None


class Spade(nn.Module):
    """Scale and shift from the label map alone (Park et al., CVPR 2019, arXiv 1903.07291, equation 1).

    Holds the layers; :class:`SeanNorm` runs them, since it blends the last two with the styles'.
    """

    def __init__(self, channels: int, labels: int) -> None:
        super().__init__()
        # Nothing uses it: official checkpoints hold its buffers, and so they go in and out unchanged.
        self.param_free_norm = nn.BatchNorm2d(channels, affine=False)
        self.mlp_shared = nn.Sequential(Conv2d(labels, _HIDDEN, 3, padding=1), nn.ReLU())
        self.mlp_gamma = Conv2d(_HIDDEN, channels, 3, padding=1)
        self.mlp_beta = Conv2d(_HIDDEN, channels, 3, padding=1)


class SeanNorm(nn.Module):
    """One SEAN normalisation (Zhu et al. 2020, section 3.2, figure 3), called ACE in official checkpoints.

    The activations get noise, a learned amount a channel, and batch normalisation; then scale and shift, each
    alpha * (from the styles) + (1 - alpha) * (from the label map), alpha the sigmoid of a learned number.

    The styles' part is a 3x3 convolution W of the style map, in which each pixel holds mu_j, the mapped style
    of its label j. That map is the one-hot label map times mu, so this is a convolution of the one-hot map by
    kernels W mu_j of each sample: over ``labels`` channels instead of ``style_length``, and with no style map
    in memory. Scale and shift share the windows of the one-hot map.

    Args:
        styled: False leaves the styles out (the generator's last block).
    """

    blending_gamma: Tensor
    blending_beta: Tensor

    def __init__(self, channels: int, labels: int, style_length: int, *, styled: bool) -> None:
        super().__init__()
        self.styled = styled
        self.noise_var = nn.Parameter(torch.zeros(channels))
        self.param_free_norm = nn.BatchNorm2d(channels, affine=False)
        self.Spade = Spade(channels, labels)
        if styled:
            self.blending_gamma = nn.Parameter(torch.zeros(1))
            self.blending_beta = nn.Parameter(torch.zeros(1))
            self.fc_mu = LabelLinear(labels, style_length, style_length)
            self.conv_gamma = Conv2d(style_length, channels, 3, padding=1)
            self.conv_beta = Conv2d(style_length, channels, 3, padding=1)
        else:
            # Nothing blends here; official checkpoints hold the two numbers all the same.
            self.register_buffer("blending_gamma", torch.zeros(1))
            self.register_buffer("blending_beta", torch.zeros(1))

    def reset_parameters(self) -> None:
        for tensor in (self.noise_var, self.blending_gamma, self.blending_beta):
            nn.init.zeros_(tensor)

    def forward(self, x: Tensor, regions: Regions, style: Tensor, noise: Tensor) -> Tensor:
        """Normalises x [batch, channels, height, width].

        Args:
            style: [batch, labels, style length]; not read where not ``styled``.
            noise: standard normal, [batch, 1, height, width].
        """
        noisy = x + (noise * self.noise_var.view(-1, 1, 1)).to(x.dtype)
        normalised = self.param_free_norm(noisy)
        gamma, beta = self.modulation(regions, style)
        return torch.addcmul(beta, normalised, 1.0 + gamma)

    def modulation(self, regions: Regions, style: Tensor) -> tuple[Tensor, Tensor]:
        """gamma and beta, each [batch, channels, height, width]: a pixel is scaled by 1 + gamma, shifted by beta."""
        hidden = self.Spade.mlp_shared(regions.one_hot)
        if not self.styled:
            return self.Spade.mlp_gamma(hidden), self.Spade.mlp_beta(hidden)
        assert regions.windows is not None
        mu = F.relu(self.fc_mu(style))
        return (
            _blend(self.blending_gamma, self.conv_gamma, mu, regions.windows, self.Spade.mlp_gamma, hidden),
            _blend(self.blending_beta, self.conv_beta, mu, regions.windows, self.Spade.mlp_beta, hidden),
        )


def _blend(
    blending: Tensor, style_conv: Conv2d, mu: Tensor, windows: Tensor, mask_conv: Conv2d, hidden: Tensor
) -> Tensor:
    """alpha * style_conv(style map) + (1 - alpha) * mask_conv(hidden), [batch, channels, height, width]."""
    assert style_conv.bias is not None and mask_conv.bias is not None
    # Blending the weights costs less than blending the maps, and keeps none of these for backward.
    alpha = torch.sigmoid(blending)
    bias = alpha * style_conv.bias + (1.0 - alpha) * mask_conv.bias
    mask = F.conv2d(hidden, (1.0 - alpha) * mask_conv.weight, bias, padding=1)
    kernels = style_kernels(style_conv.weight, alpha * mu)
    return torch.baddbmm(mask.flatten(2), kernels, windows).view_as(mask)


def style_kernels(weight: Tensor, mu: Tensor) -> Tensor:
    """The kernels over the one-hot label map that a convolution of the style map amounts to.

    Weight [channels, style length, 3, 3] and mapped styles mu [batch, labels, style length] to
    [batch, channels, labels * 9]; times :func:`zoo.models.sean.labels.windows` it is the convolution.
    """
    return torch.einsum("bls,csk->bclk", mu, weight.flatten(2)).flatten(2)
