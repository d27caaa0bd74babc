"""A weight belongs to one wrapped net: its reducer or its shards know of no other."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from parallel.net import Net
from parallel.refusals import SHARED_WEIGHT


def refuse_shared(module: nn.Module, nets: Iterable[Net]) -> None:
    """Raises if one of the nets has a weight of the module, as it was given or as the strategy has made it since."""
    own = list(module.named_parameters())
    for net in nets:
        given = ((name, weight()) for name, weight in net.given.items())
        theirs = {id(weight): name for name, weight in (*given, *net.module.named_parameters())}
        for name, weight in own:
            if id(weight) in theirs:
                raise SHARED_WEIGHT.error(
                    f"weight {theirs[id(weight)]!r} of {net.name} and {name!r} of {type(module).__name__}"
                )
