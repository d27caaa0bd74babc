"""The losses of both networks, one number a sample: their means over a batch are the papers' losses."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from zoo.models.sean.discriminator import Features
from zoo_datasets.errors import InputError

GanMode = Literal["hinge", "least-squares", "original"]
GAN_MODES: tuple[GanMode, ...] = get_args(GanMode)
FEATURE_MATCHING_WEIGHT = 10.0  # Wang et al. 2018, equation 4


def discriminator_loss(features: Features, *, real: bool, mode: GanMode = "hinge") -> Tensor:
    """What the discriminator learns from real or generated images, [batch]: the mean over patches and scales.

    hinge: Lim and Ye 2017, arXiv 1705.02894; least-squares: Mao et al. 2017, equation 2 without its halves;
    original: Goodfellow et al. 2014, equation 1.
    """
    return _over_scales([_judged(scale[-1], real, mode) for scale in features])


def generator_loss(features: Features, *, mode: GanMode = "hinge") -> Tensor:
    """What the generator learns from the discriminator's features of its images, [batch]; as above.

    original: the form that does not saturate, -log D (Goodfellow et al. 2014, section 3).
    """
    if mode == "hinge":
        return _over_scales([-scale[-1] for scale in features])
    return _over_scales([_judged(scale[-1], True, mode) for scale in features])


def feature_matching_loss(fake: Features, real: Features) -> Tensor:
    """Distance of generated and real images in the discriminator's features, [batch].

    The mean absolute difference of each layer but the prediction, summed over layers and averaged over scales
    (Wang et al. 2018, equation 3). No gradient flows into ``real``.
    """
    scales = []
    for fakes, reals in zip(fake, real, strict=True):
        layers = zip(fakes[:-1], reals[:-1], strict=True)
        scales.append(torch.stack([sample_mean((f - r.detach()).abs()) for f, r in layers]).sum(0))
    return torch.stack(scales).mean(0)


def _judged(prediction: Tensor, real: bool, mode: GanMode) -> Tensor:
    """Each patch's loss, given what it should be taken for."""
    if mode == "hinge":
        return F.relu(1.0 - prediction if real else 1.0 + prediction)
    target = torch.full_like(prediction, float(real))
    if mode == "least-squares":
        return (prediction - target).square()
    if mode == "original":
        return F.binary_cross_entropy_with_logits(prediction, target, reduction="none")
    raise InputError(f"sean: GAN loss {mode!r}: give one of {', '.join(GAN_MODES)}")


def _over_scales(patches: list[Tensor]) -> Tensor:
    return torch.stack([sample_mean(scale) for scale in patches]).mean(0)


def sample_mean(x: Tensor) -> Tensor:
    """The mean of each sample, [batch], in float32 at least."""
    return x.flatten(1).mean(1, dtype=torch.promote_types(x.dtype, torch.float32))
