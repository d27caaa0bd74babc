"""From a confidence to a threshold on scores, through the prior N(0, 1) of normal rows' scores."""

from __future__ import annotations

from statistics import NormalDist

CONFIDENCES = (0.80, 0.95, 0.99, 0.99999)


def score_threshold(confidence: float) -> float:
    """The score z with P(|N(0, 1)| <= z) = confidence: 1.96 for 95 %.

    The loss pulls the scores of normal rows towards that prior, so that a score above z is an anomaly's with this
    confidence (Pang et al. 2019, "Interpretability of Anomaly Scores"). The paper's z for 95 % is 1.96, the
    two-sided quantile, and so are all here.

    Args:
        confidence: in (0, 1).
    """
    return NormalDist().inv_cdf((1 + confidence) / 2)
