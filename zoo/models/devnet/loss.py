"""The deviation loss (Pang et al. 2019, section 3.3, equations 6 to 8)."""

from __future__ import annotations

import torch
from torch import Tensor

MARGIN = 5.0
REFERENCE_SIZE = 5000


def deviation(scores: Tensor, reference: Tensor) -> Tensor:
    """How far scores lie from the reference scores of normal rows, in their standard deviations (equation 6).

    Args:
        scores: [rows].
        reference: draws of the prior, N(0, 1), [draws]; the paper takes 5,000.
    """
    mean = reference.mean()
    # Unbiased, as the published port's. A vector norm, since torch.std takes one number at a time on the CPU: with it
    # 5,000 draws would cost as much as the network's forward pass.
    std = torch.linalg.vector_norm(reference - mean) / (len(reference) - 1) ** 0.5
    return (scores - mean) / std


def deviation_loss(scores: Tensor, anomaly: Tensor, reference: Tensor, margin: float = MARGIN) -> Tensor:
    """The loss of each row, [rows]: |dev| of unlabelled rows, max(0, margin - dev) of anomalies (equation 7).

    Args:
        scores: [rows], from the network.
        anomaly: bool [rows], the rows labelled as anomalies.
        reference: see :func:`deviation`.
        margin: deviations that anomalies should reach, in standard deviations.
    """
    # A column of scores would broadcast against a row of labels, and train something else without a word.
    assert scores.shape == anomaly.shape and scores.ndim == 1, (scores.shape, anomaly.shape)
    assert anomaly.dtype == torch.bool, anomaly.dtype
    dev = deviation(scores, reference)
    return torch.where(anomaly, (margin - dev).clamp_min(0), dev.abs())
