"""ZeRO stage 1: DDP, with each optimizer state on one rank only (torch's ZeroRedundancyOptimizer)."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer

from parallel.ddp import DDP


class ZeRO1(DDP):
    """Whole tensors are dealt out greedily by size, each rank steps its own and broadcasts them."""

    def make_optimizer(
        self, cls: type[torch.optim.Optimizer], groups: list[dict[str, Any]], options: dict[str, Any]
    ) -> torch.optim.Optimizer:
        return ZeroRedundancyOptimizer(groups, cls, process_group=self.world.data, **options)
