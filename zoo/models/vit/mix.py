"""Mixup (Zhang et al. 2018, arXiv:1710.09412) and cutmix (Yun et al. 2019, arXiv:1905.04899).

A sample's partner is given, not looked for in the batch: on another number of ranks it would be another one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Mix:
    """How a whole global batch is mixed.

    Attributes:
        share: of the target that is the sample's own; the rest is its partner's.
        box: top, bottom, left and right of what the partner's pixels replace; None mixes all pixels.
    """

    share: float
    box: tuple[int, int, int, int] | None = None

    def images(self, x: Tensor, partner: Tensor) -> Tensor:
        """[rows, channels, height, width], of both."""
        if self.box is None:
            return torch.lerp(partner, x, self.share)
        top, bottom, left, right = self.box
        mixed = x.clone()
        mixed[..., top:bottom, left:right] = partner[..., top:bottom, left:right]
        return mixed

    def targets(self, y: Tensor, partner: Tensor, classes: int, dtype: torch.dtype) -> Tensor:
        """Probabilities [rows, classes] from labels, int64 [rows]."""
        own, other = (F.one_hot(labels, classes).to(dtype) for labels in (y, partner))
        return torch.lerp(other, own, self.share)


def draw_mix(key: int, mixup: float, cutmix: float, height: int, width: int) -> Mix:
    """The draw of one step, the same on every rank: a pure function of the key.

    Args:
        key: of the draws, any 64-bit integer.
        mixup: alpha of the Beta distribution that the share comes from; 0 is no mixup.
        cutmix: the same, of the share of the area that stays; with both, one of the two is taken, each as often.
    """
    generator = np.random.Generator(np.random.PCG64(key & 0xFFFFFFFFFFFFFFFF))
    takes_cutmix = cutmix > 0 and (mixup == 0 or generator.random() < 0.5)
    alpha = cutmix if takes_cutmix else mixup
    share = float(generator.beta(alpha, alpha))
    if not takes_cutmix:
        return Mix(share)
    # The box has the share 1 - share of the area, its centre is anywhere, and what sticks out is cut off.
    side = np.sqrt(1 - share)
    rows, columns = (float(size * side / 2) for size in (height, width))
    y, x = generator.random() * height, generator.random() * width
    top, bottom = (int(np.clip(round(edge), 0, height)) for edge in (y - rows, y + rows))
    left, right = (int(np.clip(round(edge), 0, width)) for edge in (x - columns, x + columns))
    return Mix(1 - (bottom - top) * (right - left) / (height * width), (top, bottom, left, right))
