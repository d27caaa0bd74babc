"""How a tensor-parallel layer's tensor is cut, so that the whole can be put together and taken apart again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Split:
    """A tensor cut along ``axis``; where ``blocks`` tensors are fused along it, each block is cut by itself."""

    axis: int
    blocks: int
    group: dist.ProcessGroup

    def take(self, whole: Tensor, rank: int, degree: int) -> Tensor:
        """A rank's piece of the whole."""
        fused = whole.unflatten(self.axis, (self.blocks, -1))
        return fused.chunk(degree, self.axis + 1)[rank].flatten(self.axis, self.axis + 1)

    def take_own(self, whole: Tensor) -> Tensor:
        return self.take(whole, dist.get_rank(self.group), dist.get_world_size(self.group))

    def join(self, pieces: Sequence[Tensor]) -> Tensor:
        """The whole from all pieces, in rank order."""
        fused = [piece.unflatten(self.axis, (self.blocks, -1)) for piece in pieces]
        return torch.cat(fused, self.axis + 1).flatten(self.axis, self.axis + 1)

    def gather(self, piece: Tensor) -> Tensor:
        """The whole tensor, on every rank of the group: a collective."""
        piece = piece.contiguous()
        pieces = [torch.empty_like(piece) for _ in range(dist.get_world_size(self.group))]
        dist.all_gather(pieces, piece, group=self.group)
        return self.join(pieces)

    def whole_shape(self, piece: torch.Size) -> torch.Size:
        shape = list(piece)
        shape[self.axis] *= dist.get_world_size(self.group)
        return torch.Size(shape)
