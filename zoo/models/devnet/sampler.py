"""Which rows each batch holds: half unlabelled rows, half labelled anomalies."""

from __future__ import annotations

import torch
from torch import Tensor

from parallel.rng import shared_generator


class BalancedSampler:
    """Row numbers of an epoch, drawn with replacement: a pure function of the epoch.

    Algorithm 1 asks for half and half. Unlabelled rows are at even places and anomalies at odd ones, as in the
    official code, so that every share of a batch is balanced too.

    Args:
        anomaly: bool [rows], the rows labelled as anomalies; some, not all.
        batch_size: rows of a batch, at least 2.
        batches: batches an epoch.
        seed: of the draws.
    """

    def __init__(self, anomaly: Tensor, batch_size: int, batches: int, seed: int) -> None:
        self._anomalies = anomaly.nonzero().squeeze(-1)
        self._unlabelled = (~anomaly).nonzero().squeeze(-1)
        assert len(self._anomalies) and len(self._unlabelled) and batch_size >= 2
        self.batch_size = batch_size
        self.batches = batches
        self.seed = seed

    def __call__(self, epoch: int) -> Tensor:
        """int64 [batches * batch_size]."""
        generator = shared_generator(self.seed, "sampler", epoch)
        index = torch.empty(self.batches, self.batch_size, dtype=torch.int64)
        for start, pool in enumerate((self._unlabelled, self._anomalies)):
            places = index[:, start::2]
            places.copy_(pool[torch.randint(len(pool), places.shape, generator=generator)])
        return index.flatten()
