"""Pieces that are numbers in a row: how DeepSpeed deals a tensor out, whatever its axes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from parallel.collectives import Group, gather_rows


@dataclass
class Flat:
    """This rank's numbers of a whole tensor that is read row by row.

    Attributes:
        tensor: [numbers], whose memory the engine goes on using.
        shape: of the whole.
        start: the place of the first of them in the whole.
        group: the ranks that hold the others, in rank order.
        grad: [numbers], summed over the ranks, while an engine has it ready for a step.
    """

    tensor: Tensor
    shape: tuple[int, ...]
    start: int
    group: Group
    grad: Tensor | None = None

    @property
    def region(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Its place, as :mod:`parallel.checkpoint.regions` writes it: one axis, of the whole flattened."""
        return (((self.start, self.start + self.tensor.numel()),),)

    @property
    def whole_bytes(self) -> int:
        return math.prod(self.shape) * self.tensor.element_size()

    def take(self, whole: Tensor) -> Tensor:
        """The numbers of ``whole`` that lie where this rank's do."""
        return whole.reshape(-1)[self.start : self.start + self.tensor.numel()]

    def gather(self) -> Tensor:
        """The whole tensor, on every rank; a collective."""
        return gather_rows(self.tensor, self.group).view(torch.Size(self.shape))
