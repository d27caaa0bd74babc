"""Global batches: which samples make up each, and which of them are this rank's."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from parallel import rng
from parallel.batch import Batch, Nest, map_nest
from parallel.collectives import all_reduce
from parallel.errors import ParallelError
from parallel.mesh import World

Sampler = Callable[[int], Tensor]


def share(rows: int, rank: int, size: int) -> tuple[int, int]:
    """Rows ``start`` to ``stop`` of a global batch that are this rank's: near-equal, contiguous, in rank order."""
    return rows * rank // size, rows * (rank + 1) // size


def shares_of(rows: int, size: int) -> list[int]:
    """How many rows each of ``size`` has of them."""
    return [stop - start for start, stop in (share(rows, rank, size) for rank in range(size))]


class Loader:
    """Yields one epoch of global batches at each iteration, and knows where it stands.

    Attributes:
        rows: of the data set.

    Args:
        dataset: a tensor or a nest of tensors with one row a sample, or a map-style ``Dataset``. What a
            ``Dataset`` draws from the generators of torch or Python (augmentation) is keyed by the sample, in
            workers too.
        batch_size: rows of a global batch; the last of an epoch may hold fewer.
        move: puts a nest of this rank's rows on its device, in its precision.
        before_epoch: called with (this loader, rows of the last batch) before the first batch of each epoch.
        after_batch: called when the next batch is asked for, or the end of the epoch.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        *,
        rank: int,
        size: int,
        move: Callable[[Nest], Nest],
        device: torch.device,
        shuffle: bool = False,
        seed: int = 0,
        sampler: Sampler | None = None,
        drop_last: bool = False,
        workers: int = 0,
        before_epoch: Callable[[Loader, int], None] | None = None,
        after_batch: Callable[[], None] | None = None,
    ) -> None:
        if batch_size < 1:
            raise ParallelError(f"batch_size is {batch_size}; it must be at least 1")
        if sampler is not None and shuffle:
            raise ParallelError("give shuffle or a sampler, not both: the sampler is the order")
        self.dataset = dataset
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self.workers = workers
        self.epoch = -1  # of the pass begun last
        self.batches_done = 0  # of that pass
        self._sampler = sampler
        self._rank, self._size = rank, size
        self._move, self._device = move, device
        self._positions: dict[tuple[int, int], Tensor] = {}
        self._before_epoch = before_epoch
        self._after_batch = after_batch
        self._tensors = not isinstance(dataset, Dataset) and _is_nest_of_tensors(dataset)
        self.rows = _count_rows(dataset) if self._tensors else len(dataset)
        self._resume = False
        self._length = self.rows if sampler is None else int(sampler(0).shape[0])
        if self._tensors:
            self.dataset = self._move(dataset)  # once, not batch by batch
        if len(self) == 0:
            raise ParallelError(
                f"the loader has no batch: {self._length} samples, batch_size {batch_size}, drop_last {drop_last}"
            )

    def __len__(self) -> int:
        """Global batches an epoch."""
        whole, rest = divmod(self._length, self.batch_size)
        return whole + (1 if rest and not self.drop_last else 0)

    @property
    def samples(self) -> int:
        """Samples an epoch draws, over all ranks."""
        return min(self._length, len(self) * self.batch_size)

    def order(self, epoch: int) -> Tensor:
        """The data-set positions of an epoch's samples, int64: a pure function of (seed, epoch)."""
        if self._sampler is not None:
            return self._sampler(epoch)
        if self.shuffle:
            return torch.randperm(self.rows, generator=rng.shared_generator(self.seed, "shuffle", epoch))
        return torch.arange(self.rows)

    def state_dict(self) -> dict[str, int]:
        """Where the loader stands, in global samples, so that the number of ranks may change."""
        return {"epoch": self.epoch, "samples": self.batches_done * self.batch_size, "seed": self.seed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """The next iteration goes on behind the last batch that was given out."""
        batches, rest = divmod(state["samples"], self.batch_size)
        if rest:
            raise ParallelError(
                f"the run stopped after {state['samples']} samples of an epoch, which batch_size {self.batch_size} "
                "does not divide; go on with the batch size it was trained with"
            )
        begun = state["epoch"] >= 0 and batches == 0  # an epoch of which nothing was given out begins anew
        self.epoch = state["epoch"] - 1 if begun else state["epoch"]
        self.batches_done, self.seed = batches, state["seed"]
        self._resume = 0 < batches < len(self)

    def __iter__(self) -> Iterator[Batch]:
        first = 0
        if self._resume:
            first, self._resume = self.batches_done, False
        else:
            self.epoch += 1
        self.batches_done = first
        order = self.order(self.epoch)
        if order.shape[0] != self._length:
            raise ParallelError(
                f"the sampler gave {order.shape[0]} positions for epoch {self.epoch} and {self._length} for epoch 0; "
                "it must give as many for every epoch"
            )
        order = order[: self.samples]
        if self._before_epoch is not None:
            self._before_epoch(self, order.shape[0] - (len(self) - 1) * self.batch_size)
        batches = self._from_tensors(order, first) if self._tensors else self._from_dataset(order, first)
        for batch in batches:
            self.batches_done += 1
            yield batch
            if self._after_batch is not None:
                self._after_batch()

    def _spans(self, order: Tensor, first: int) -> Iterator[tuple[int, int, int, int]]:
        """(number, global rows, start, stop) of each batch: this rank's rows are order[start:stop]."""
        for number in range(first, len(self)):
            base = number * self.batch_size
            rows = min(self.batch_size, order.shape[0] - base)
            start, stop = share(rows, self._rank, self._size)
            yield number, rows, base + start, base + stop

    def _batch(self, data: Nest, order: Tensor, span: tuple[int, int, int, int]) -> Batch:
        number, rows, start, stop = span
        base = number * self.batch_size
        position = self._positions.get((start - base, stop - base))
        if position is None:  # there are two at most: of whole batches, and of an epoch's last
            position = torch.arange(start - base, stop - base, device=self._device)
            self._positions[start - base, stop - base] = position
        step = self.epoch * len(self) + number
        return Batch(data, rows, order[start:stop], position, self.seed, step, self.epoch)

    def _from_tensors(self, order: Tensor, first: int) -> Iterator[Batch]:
        on_device = order.to(self._device)
        in_order = self._sampler is None and not self.shuffle
        for span in self._spans(order, first):
            start, stop = span[2:]
            if in_order:  # slices cost nothing
                data = map_nest(lambda tensor: tensor[start:stop], self.dataset)  # noqa: B023
            else:
                rows = on_device[start:stop]
                data = map_nest(lambda tensor: tensor.index_select(0, rows), self.dataset)  # noqa: B023
            yield self._batch(data, order, span)

    def _from_dataset(self, order: Tensor, first: int) -> Iterator[Batch]:
        spans = list(self._spans(order, first))
        requests = [
            [(self.epoch, base, int(order[base])) for base in range(start, stop)]
            for _, _, start, stop in spans
        ]
        loader = DataLoader(
            _KeyedRows(self.dataset, self.seed),
            batch_sampler=_Fixed(requests),
            num_workers=self.workers,
            collate_fn=_first,
            pin_memory=self._device.type == "cuda",
            generator=torch.Generator(),  # so that the workers' base seed takes nothing from the global one
        )
        rows = iter(loader)
        try:
            for span, data in zip(spans, rows, strict=True):
                yield self._batch(self._move(data), order, span)
        finally:
            if self.workers:
                # An error's traceback keeps the iterator, and left to the garbage collector it takes 5 s a worker.
                rows._shutdown_workers()  # type: ignore[attr-defined]


class _KeyedRows(Dataset[Any]):
    """A data set whose random draws are seeded by (seed, epoch, place in the epoch) before each sample is read."""

    def __init__(self, dataset: Any, seed: int) -> None:
        self.dataset = dataset
        self.seed = seed

    def __getitems__(self, requests: Sequence[tuple[int, int, int]]) -> list[Nest]:
        with torch.random.fork_rng(devices=[]), _other_generators_kept():
            if requests:
                return [default_collate([self._read(*request) for request in requests])]
            one = default_collate([self._read(0, 0, 0)])  # an empty share has the shape of the others
            return [map_nest(lambda tensor: tensor[:0], one)]

    def _read(self, epoch: int, place: int, index: int) -> Any:
        key = rng.make_key(self.seed, "sample", epoch, place) & 0x7FFFFFFFFFFFFFFF
        torch.default_generator.manual_seed(key)  # torch.manual_seed takes a millisecond, for GPUs
        random.seed(key)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(key & 0xFFFFFFFF)
        return self.dataset[index]


@contextmanager
def _other_generators_kept() -> Iterator[None]:
    """Puts the generators of Python and numpy back to where they were."""
    state = random.getstate()
    numpy = sys.modules.get("numpy")
    numpy_state = numpy.random.get_state() if numpy else None
    try:
        yield
    finally:
        random.setstate(state)
        if numpy:
            numpy.random.set_state(numpy_state)


class _Fixed:
    """A batch sampler that gives out prepared requests."""

    def __init__(self, requests: list[list[tuple[int, int, int]]]) -> None:
        self.requests = requests

    def __iter__(self) -> Iterator[list[tuple[int, int, int]]]:
        return iter(self.requests)

    def __len__(self) -> int:
        return len(self.requests)


def _first(batches: list[Nest]) -> Nest:
    return batches[0]


def _is_nest_of_tensors(nest: Nest) -> bool:
    if isinstance(nest, dict):
        return bool(nest) and all(map(_is_nest_of_tensors, nest.values()))
    if isinstance(nest, tuple | list):
        return bool(nest) and all(map(_is_nest_of_tensors, nest))
    return isinstance(nest, Tensor)


def _count_rows(nest: Nest) -> int:
    counts: set[int] = set()
    map_nest(lambda tensor: counts.add(tensor.shape[0]), nest)
    if len(counts) != 1:
        raise ParallelError(f"the data set's tensors differ in their number of rows: {sorted(counts)}")
    return counts.pop()


def check_lengths(loader: Loader, world: World) -> None:
    """Raises where ranks have other numbers of rows: they would wait for one another. A collective.

    Raises:
        ParallelError: names two ranks and their numbers.
    """
    found = torch.zeros(world.size, 2, dtype=torch.int64, device=world.device)
    found[world.rank] = torch.tensor([loader.rows, loader.samples])
    all_rows, all_samples = all_reduce(found, world.all).T.tolist()
    for what, numbers in (("the data set has", all_rows), ("an epoch draws", all_samples)):
        for rank, number in enumerate(numbers):
            if number != numbers[0]:
                raise ParallelError(
                    f"{what} {numbers[0]} rows on rank 0 and {number} on rank {rank}: give every rank the whole of the "
                    "same data set, of which the loader takes its share, and the same sampler"
                )
