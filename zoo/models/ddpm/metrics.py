"""How good generated vectors are where the only right ones are known."""

from __future__ import annotations

import numpy as np


def pattern_metrics(samples: np.ndarray, patterns: np.ndarray) -> dict[str, float]:
    """Holds samples [rows, features] against patterns [patterns, features], both in data units.

    Returns:
        valid: the share of samples that round to a pattern.
        patterns: how many patterns occur. largest_share: of the samples, that of the most frequent pattern.
        distance: to the nearest pattern, the mean over samples of the mean absolute difference per number.
    """
    difference = np.abs(samples[:, None, :] - patterns[None]).mean(axis=2)
    equal = (np.rint(samples)[:, None, :] == patterns[None]).all(axis=2)
    counts = equal.sum(axis=0)
    return {
        "valid": float(equal.any(axis=1).mean()),
        "patterns": float((counts > 0).sum()),
        "largest_share": float(counts.max() / len(samples)),
        "distance": float(difference.min(axis=1).mean()),
    }
