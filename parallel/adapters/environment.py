"""Libraries read and write environment variables while they set themselves up; this process keeps its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from parallel.mesh import World


@contextmanager
def as_launched(world: World, *hidden: str) -> Iterator[None]:
    """Within it the environment is that of a rank which torchrun started; afterwards it is what it was.

    Args:
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
    }
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(kept)
