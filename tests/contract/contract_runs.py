"""Some steps of a net of one's own, and whether they are one process's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from contract_matrix import Layout
from pool import Pool
from torch import Tensor, nn

from parallel.batch import Batch
from parallel.interface import Parallel
from parallel.testing import Trace, differences


def noise(*shape: int) -> Tensor:
    return torch.randn(37, *shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)


def train(
    p: Parallel, data: Any, steps: int, step: Callable[[Batch, Trace], Tensor], weights: dict[str, nn.Module]
) -> Trace:
    """Some steps on global batches of 10; ``step`` gives this rank's share of the loss."""
    trace = Trace()
    while len(trace.losses) < steps:
        for batch in p.loader(data, 10, shuffle=True, seed=2):
            trace.losses.append(float(p.sum(step(batch, trace))))
            if len(trace.losses) == steps:
                break
    for prefix, net in weights.items():
        trace.weights |= {f"{prefix}.{name}": value for name, value in p.state_dict(net).items()}
    return trace


def same(layout: Layout, ranks: Pool, function: Callable[..., Trace], *args: Any) -> None:
    want = ranks.run(function, "single", 1, *args, precision="fp64")[0]
    got = layout.run(ranks, function, *args, precision="fp64")[0]
    assert not differences(want, got, "fp64")
