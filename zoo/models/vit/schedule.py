"""The learning rate over a run."""

from __future__ import annotations

import math
from collections.abc import Callable


def warmup_cosine(total: int, warmup: float) -> Callable[[int], float]:
    """The factor of the learning rate at each step: a linear rise, then half a cosine down to zero.

    Linear warm-up after Goyal et al. (2017, arXiv:1706.02677, section 2.2), cosine after Loshchilov and Hutter
    (2017, arXiv:1608.03983, equation 5) without restarts. Steps are those of the global batch.

    Args:
        total: steps of the run.
        warmup: the share of them that rises.
    """
    rising = round(total * warmup)

    def factor(step: int) -> float:
        if step < rising:
            return (step + 1) / rising
        done = (step - rising) / max(total - rising, 1)
        return 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))

    return factor
