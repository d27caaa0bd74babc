"""Models that no rank but the first ever holds whole: built without memory, cut, and only then given their weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from parallel.checkpoint.whole import load_full_state
from parallel.errors import ParallelError
from parallel.mesh import World
from parallel.net import Net


@dataclass(frozen=True)
class Source:
    """Rank 0's real weights, for a module on the meta device; the other ranks' are empty."""

    state: Mapping[str, Tensor]
    other_buffers: Mapping[str, Tensor]  # those that a state dict leaves out


def build(factory: Callable[[], nn.Module], is_main: bool) -> tuple[nn.Module, Source]:
    """The module on the meta device, and what rank 0's factory gave.

    Raises:
        ParallelError: the factory needs values while it builds, or ties weights.
    """
    real = factory() if is_main else None
    try:
        with torch.device("meta"):
            module = factory()
    except (NotImplementedError, RuntimeError) as error:
        raise ParallelError(
            f"the factory cannot build on the meta device ({str(error).splitlines()[0]}); give p.wrap the module itself"
        ) from error
    if len(list(module.parameters())) != len(list(module.named_parameters(remove_duplicate=False))):
        raise ParallelError(
            f"{type(module).__name__} ties weights, which a factory cannot: give p.wrap the module itself"
        )
    if real is None:
        return module, Source({}, {})
    state = real.state_dict()
    return module, Source(state, {name: b for name, b in real.named_buffers() if name not in state})


def materialise(net: Net, source: Source, world: World) -> None:
    """Gives each rank memory for its pieces, and rank 0's weights in them; a collective."""
    net.module.to_empty(device=world.device)
    load_full_state(net, source.state, world.all)
    in_state = net.module.state_dict(keep_vars=True)
    for name, buffer in net.module.named_buffers():
        if name not in in_state:
            if name in source.other_buffers:
                buffer.copy_(source.other_buffers[name])
            if world.all is not None:
                dist.broadcast(buffer, src=0, group=world.all)
