"""Libraries read and write environment variables while they set themselves up; this process keeps its own."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

import torch

from parallel.mesh import World


@contextmanager
def as_launched(
    world: World, variables: Mapping[str, str] = MappingProxyType({}), hidden: tuple[str, ...] = ()
) -> Iterator[None]:
    """Within it the environment is that of a rank which torchrun started; afterwards it is what it was.

    Args:
        variables: to be set too.
        hidden: prefixes of variables that are not to be seen: what a library would take for its user's wishes.
    """
    kept = dict(os.environ)
    for name in kept:
        if name.startswith(hidden):
            del os.environ[name]
    os.environ |= {
        "RANK": str(world.rank),
        "WORLD_SIZE": str(world.size),
        "LOCAL_RANK": str(world.local_rank),
        "OMP_NUM_THREADS": str(torch.get_num_threads()),  # where it is unset, they set the threads
        "MASTER_ADDR": kept.get("MASTER_ADDR", "127.0.0.1"),  # asked for, and not used: the ranks have met
        **variables,
    }
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(kept)
