"""A global batch as one rank sees it: its rows, what they are called globally, and draws that belong to them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from parallel import rng

Nest = Any  # a tensor, or tuples, lists and dicts of nests


def map_nest(function: Callable[[Tensor], Any], nest: Nest) -> Nest:
    """Applies ``function`` to every tensor of a nest; what is not a tensor is left as it is."""
    if isinstance(nest, Tensor):
        return function(nest)
    if isinstance(nest, dict):
        return type(nest)((key, map_nest(function, value)) for key, value in nest.items())
    if isinstance(nest, tuple) and hasattr(nest, "_fields"):
        return type(nest)(*(map_nest(function, value) for value in nest))
    if isinstance(nest, tuple | list):
        return type(nest)(map_nest(function, value) for value in nest)
    return nest


@dataclass(frozen=True, slots=True)
class Batch:
    """This rank's rows of one global batch, or of one part (micro-batch) of it.

    Attributes:
        data: the rows: a tensor [rows, ...], or tuples and dicts of them, on the rank's device.
        size: rows of the *global* batch, over all ranks and parts: what a sum of losses is divided by.
        index: int64 [rows] on CPU, the rows' positions in the data set.
        position: int64 [rows], the rows' positions in the global batch.
        seed: the loader's seed.
        step: batches the loader gave before this one, over all epochs.
    """

    data: Nest
    size: int
    index: Tensor
    position: Tensor
    seed: int
    step: int
    epoch: int

    def __len__(self) -> int:
        return self.index.shape[0]

    def __getitem__(self, key: int | str) -> Any:
        return self.data[key]

    @property
    def x(self) -> Any:
        """The first member of a (x, y) batch, or the whole data where there is one tensor only."""
        return self.data[0] if isinstance(self.data, tuple | list) else self.data

    @property
    def y(self) -> Any:
        """The second member of a (x, y) batch."""
        return self.data[1]

    def key(self, name: str) -> int:
        """The key of the draws called ``name`` at this step."""
        return rng.make_key(self.seed, name, self.step)

    def noise(self, name: str, shape: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
        """Standard normal draws, [rows, *shape], that follow the sample whatever the layout; shape is one row's.

        ``dtype`` is that of the batch's floating-point data unless given.
        """
        return rng.normal(self.key(name), self.position, shape, dtype or self._dtype())

    def uniform(self, name: str, shape: Sequence[int] = (), dtype: torch.dtype | None = None) -> Tensor:
        """Uniform draws in (0, 1), [rows, *shape]; see :meth:`noise`."""
        return rng.uniform(self.key(name), self.position, shape, dtype or self._dtype())

    def randint(self, name: str, low: int, high: int, shape: Sequence[int] = ()) -> Tensor:
        """Integers in [low, high), int64 [rows, *shape]; see :meth:`noise`."""
        return rng.integers(self.key(name), self.position, low, high, shape)

    def shared_noise(self, name: str, shape: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
        """Standard normal draws of exactly ``shape`` that the whole global batch shares: equal on every rank and part."""
        generator = rng.shared_generator(self.seed, name, self.step)
        dtype = dtype or self._dtype()
        drawn = torch.randn(
            tuple(shape), generator=generator, dtype=torch.float64 if dtype == torch.float64 else None
        )
        return drawn.to(self.position.device, dtype)

    def split(self, parts: int) -> Iterator[Batch]:
        """Cuts the rows into ``parts`` near-equal parts, in order; some may be empty."""
        rows = len(self)
        for start, stop in itertools.pairwise(rows * part // parts for part in range(parts + 1)):
            yield self.rows(start, stop)

    def rows(self, start: int, stop: int) -> Batch:
        """The part that holds rows ``start`` to ``stop`` of this rank's share."""
        cut = slice(start, stop)
        data = map_nest(lambda tensor: tensor[cut], self.data)
        return replace(self, data=data, index=self.index[cut], position=self.position[cut])

    def _dtype(self) -> torch.dtype:
        found: list[torch.dtype] = []
        map_nest(lambda tensor: found.append(tensor.dtype) if tensor.is_floating_point() else None, self.data)
        return found[0] if found else torch.get_default_dtype()
