"""The learning rate over a run."""

from __future__ import annotations

from collections.abc import Callable


def linear_decay(total: int) -> Callable[[int], float]:
    """The factor of the learning rate at each step: 1 for the first half of the run, then down to 0 in a line.

    Zhu et al. 2020 train 50 epochs; the decay is that of pix2pix and SPADE (Park et al. 2019, appendix A), by steps
    and not by epochs.

    Args:
        total: steps of the run.
    """
    constant = total - total // 2

    def factor(step: int) -> float:
        return min(1.0, (total - step) / max(total - constant, 1)) if step < total else 0.0

    return factor
