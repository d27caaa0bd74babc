"""The reference scores of each step: draws of the prior, of which the loss needs mean and standard deviation."""

from __future__ import annotations

import torch

from parallel.rng import shared_generator
from zoo.models.devnet.loss import Reference

DRAWS = 5000  # a step; the paper's l, equation 5
_BLOCK = 16  # steps drawn at once: one by one they would take a tenth of a small network's training


class ReferenceScores:
    """``step -> Reference``: a pure function of seed and step, the same on every rank and for every part.

    Args:
        seed: of the draws.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._held = -1  # which block
        self._block: list[Reference] = []

    def __call__(self, step: int) -> Reference:
        """The reference of a step, counted from 0 over all epochs."""
        number, place = divmod(step, _BLOCK)
        if number != self._held:
            generator = shared_generator(self.seed, "reference", number)
            self._block = summarise(torch.randn(_BLOCK, DRAWS, generator=generator))
            self._held = number
        return self._block[place]


def summarise(draws: torch.Tensor) -> list[Reference]:
    """Mean and unbiased standard deviation of each row [rows, draws]; unbiased as in the published port."""
    draws = draws.double()
    mean = draws.mean(dim=1)
    # torch.std takes one number at a time on the CPU, and would cost more than the draws.
    std = torch.linalg.vector_norm(draws - mean[:, None], dim=1) / (draws.shape[1] - 1) ** 0.5
    return [Reference(*pair) for pair in zip(mean.tolist(), std.tolist(), strict=True)]
