"""The deviation loss (Pang et al. 2019, equations 6 to 8)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

MARGIN = 5.0


@dataclass(frozen=True, slots=True)
class Reference:
    """Mean and standard deviation of scores that normal rows would have: draws of the prior N(0, 1).

    Plain numbers, so that they cost nothing to hand to a device.
    """

    mean: float
    std: float


def deviation(scores: Tensor, reference: Reference) -> Tensor:
    """How far scores [rows] lie from the reference, in its standard deviations (equation 6)."""
    return (scores - reference.mean) / reference.std


def deviation_loss(scores: Tensor, anomaly: Tensor, reference: Reference, margin: float = MARGIN) -> Tensor:
    """The loss of each row, [rows]: |dev| of unlabelled rows, max(0, margin - dev) of anomalies (equation 7).

    Args:
        scores: [rows], from the network.
        anomaly: bool [rows], the rows labelled as anomalies.
        reference: what scores are compared with.
        margin: deviations that anomalies should reach, in standard deviations.
    """
    # A column of scores would broadcast against a row of labels, and train something else without a word.
    assert scores.shape == anomaly.shape and scores.ndim == 1, (scores.shape, anomaly.shape)
    assert anomaly.dtype == torch.bool, anomaly.dtype
    dev = deviation(scores, reference)
    return torch.where(anomaly, (margin - dev).clamp_min(0), dev.abs())
