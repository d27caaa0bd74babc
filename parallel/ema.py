"""Exponential moving averages of weights, right under sharding since each rank averages the shard it holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from parallel.tensors import local


class EMA:
    """``average = decay * average + (1 - decay) * weights`` after each step; buffers are copied.

    Usable as a context, ``with ema.applied():``, within which the net holds the averages (for evaluation and
    saving).
    """

    def __init__(self, net: nn.Module, decay: float, settle: Callable[[], None]) -> None:
        if not 0.0 <= decay < 1.0:
            raise ValueError(f"EMA decay is {decay}; it must be in [0, 1)")
        self.net = net
        self.decay = decay
        self._settle = settle  # puts the parameters back to this rank's pieces
        settle()
        # This rank's pieces, listed once, since walking a net takes its time.
        self._weights = {name: local(p).detach() for name, p in net.named_parameters()}
        self.average: dict[str, Tensor] = {name: weight.clone() for name, weight in self._weights.items()}

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
