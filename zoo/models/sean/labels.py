"""Label maps as tensors: one channel a label, and the 3x3 neighbourhood of every pixel."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def shrink(labels: Tensor, factor: int) -> Tensor:
    """The nearest-neighbour label map at 1/``factor`` of the size; ``factor`` divides height and width."""
    return labels[..., ::factor, ::factor]


def one_hot(labels: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """[batch, height, width] whole numbers to [batch, count, height, width] of 0 and 1.

    A value outside 0..count-1 (255, "don't care") is in no channel.
    """
    return (labels.unsqueeze(1) == torch.arange(count, device=labels.device).view(-1, 1, 1)).to(dtype)


def windows(regions: Tensor) -> Tensor:
    """The 3x3 neighbourhood of every pixel, zero outside the map: a convolution is a matrix product with it.

    One-hot regions [batch, labels, height, width] to [batch, labels * 9, height * width].
    """
    return F.unfold(regions, kernel_size=3, padding=1)
