"""The layers both networks are made of; weights start from Glorot's distribution, biases at 0."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.utils import spectral_norm

SLOPE = 0.2  # of every leaky ReLU


def initialise(weight: Tensor, bias: Tensor | None) -> None:
    """A normal distribution of Glorot's variance (Glorot and Bengio 2010, equation 12); a bias starts at 0."""
    nn.init.xavier_normal_(weight)
    if bias is not None:
        nn.init.zeros_(bias)


class Conv2d(nn.Conv2d):
    """``nn.Conv2d`` with the start of :func:`initialise`."""

    def reset_parameters(self) -> None:
        initialise(self.weight, self.bias)


class ConvTranspose2d(nn.ConvTranspose2d):
    """``nn.ConvTranspose2d`` with the start of :func:`initialise`."""

    def reset_parameters(self) -> None:
        initialise(self.weight, self.bias)


def spectral_conv2d(
    inputs: int, outputs: int, kernel_size: int, *, stride: int = 1, padding: int = 0, bias: bool = True
) -> nn.Conv2d:
    """A convolution of spectral norm 1 (Miyato et al. 2018, arXiv 1802.05957, section 2.1).

    In torch's form by hook, not the one by parametrization: it has the official names (``weight_orig``, ``weight_u``,
    ``weight_v``) and order of the power iteration.
    """
    return spectral_norm(Conv2d(inputs, outputs, kernel_size, stride, padding, bias=bias))


class LabelLinear(nn.Module):
    """One linear layer a label, as one batched product: label j's row is mapped by its own weight.

    [batch, labels, in] to [batch, labels, out]; weight [labels, out, in], bias [labels, out].
    """

    def __init__(self, labels: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(labels, outputs, inputs))
        self.bias = nn.Parameter(torch.empty(labels, outputs))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        _, outputs, inputs = self.weight.shape
        nn.init.normal_(self.weight, std=math.sqrt(2.0 / (inputs + outputs)))
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        # With the weight on the left its gradient comes in its own layout, and need not be copied.
        return torch.baddbmm(self.bias.unsqueeze(2), self.weight, x.permute(1, 2, 0)).permute(2, 0, 1)
