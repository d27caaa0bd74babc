"""Exponential moving averages of weights, right under sharding since each rank averages the shard it holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class EMA:
    """``average = decay * average + (1 - decay) * weights`` after each step; buffers are copied.

    Usable as a context, ``with ema.applied():``, within which the net holds the averages (for evaluation and
    saving).
    """

    def __init__(
        self,
        net: nn.Module,
        decay: float,
        settle: Callable[[], None],
        pieces: Callable[[], Mapping[str, Tensor]],
    ) -> None:
        if not 0.0 <= decay < 1.0:
            raise ValueError(f"EMA decay is {decay}; it must be in [0, 1)")
        self.net = net
        self.decay = decay
        self._settle = settle  # puts the parameters back to this rank's pieces
        settle()
        self._pieces = pieces
        self._weights = dict(pieces())  # listed once, since walking a net takes its time
        self.average: dict[str, Tensor] = {name: weight.clone() for name, weight in self._weights.items()}

    def follow(self, averages: Mapping[str, Tensor]) -> None:
        """Goes on with other pieces of the weights, where an engine has moved them; the averages of those it has cut."""
        self._weights = dict(self._pieces())
        self.average |= {name: averages[name].clone() for name in self.average.keys() & averages.keys()}

    @torch.no_grad()
    def update(self) -> None:
        torch._foreach_lerp_(list(self.average.values()), list(self._weights.values()), 1.0 - self.decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Swaps the averages into the net, and the weights back afterwards."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        self._settle()
        for name, held in self._weights.items():
            kept = held.clone()
            held.copy_(self.average[name])
            self.average[name].copy_(kept)
