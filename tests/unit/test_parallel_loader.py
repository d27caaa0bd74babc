"""The loader: shares partition every global batch, and order and draws depend on neither ranks nor workers."""

from __future__ import annotations

import itertools
import multiprocessing
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import Dataset

from parallel.batch import Batch, map_nest
from parallel.errors import ParallelError
from parallel.loader import Loader, share

CPU = torch.device("cpu")


def loader(dataset: Any, batch_size: int, rank: int = 0, size: int = 1, **options: Any) -> Loader:
    return Loader(dataset, batch_size, rank=rank, size=size, move=lambda nest: nest, device=CPU, **options)


def epochs(of: Loader, count: int) -> Iterator[Batch]:
    for _ in range(count):
        yield from of


SIZES = {"rows": st.integers(1, 40), "batch_size": st.integers(1, 45), "size": st.integers(1, 7)}


@given(rows=st.integers(0, 1000), size=st.integers(1, 64))
def test_shares_are_near_equal_and_in_order(rows: int, size: int) -> None:
    bounds = [share(rows, rank, size) for rank in range(size)]
    assert bounds[0][0] == 0
    assert bounds[-1][1] == rows
    assert all(left[1] == right[0] for left, right in itertools.pairwise(bounds))
    lengths = [stop - start for start, stop in bounds]
    assert max(lengths) - min(lengths) <= 1


@settings(deadline=None)
@given(**SIZES, shuffle=st.booleans(), drop_last=st.booleans(), seed=st.integers(0, 2**62))
def test_shares_partition_every_global_batch(
    rows: int, batch_size: int, size: int, shuffle: bool, drop_last: bool, seed: int
) -> None:
    options: dict[str, Any] = {"shuffle": shuffle, "seed": seed, "drop_last": drop_last}
    data = {"x": torch.arange(rows), "pair": (torch.arange(rows) * 2.0,)}
    if drop_last and batch_size > rows:
        with pytest.raises(ParallelError, match="the loader has no batch"):
            loader(data, batch_size, **options)
        return
    alone = loader(data, batch_size, **options)
    shares = [loader(data, batch_size, rank, size, **options) for rank in range(size)]
    assert {len(each) for each in shares} == {len(alone)}  # no rank waits for one that has ended
    drawn = 0
    for whole, *pieces in zip(epochs(alone, 2), *(epochs(each, 2) for each in shares), strict=True):
        assert torch.cat([piece["x"] for piece in pieces]).equal(whole["x"])
        assert torch.cat([piece["pair"][0] for piece in pieces]).equal(whole["pair"][0])
        assert torch.cat([piece.index for piece in pieces]).equal(whole.index)
        assert whole["x"].equal(whole.index)
        assert torch.cat([piece.position for piece in pieces]).equal(torch.arange(whole.size))
        assert {(p.size, p.step, p.epoch) for p in pieces} == {(len(whole), whole.step, whole.epoch)}
        drawn += len(whole)
    assert drawn == 2 * alone.samples == 2 * (rows // batch_size * batch_size if drop_last else rows)


@settings(deadline=None)
@given(
    rows=st.integers(2, 30), seed=st.integers(0, 1000), sizes=st.tuples(st.integers(1, 9), st.integers(1, 9))
)
def test_the_order_depends_on_seed_and_epoch_only(rows: int, seed: int, sizes: tuple[int, int]) -> None:
    first, second = (loader(torch.arange(rows), size, shuffle=True, seed=seed) for size in sizes)
    for epoch in range(3):
        order = torch.cat([batch.data for batch in first])
        assert order.equal(torch.cat([batch.data for batch in second]))
        assert order.equal(first.order(epoch))
        assert order.sort().values.equal(torch.arange(rows))


def test_three_epochs_three_orders() -> None:
    """By epochs, by steps, and with a break in each: nobody has to set the epoch."""
    by_epochs = loader(torch.arange(50), 10, shuffle=True)
    orders = [torch.cat([batch.data for batch in by_epochs]) for _ in range(3)]
    by_steps = loader(torch.arange(50), 10, shuffle=True)
    broken = []
    for _ in range(3):
        for batch in by_steps:
            broken.append(batch.data)
            break
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert not orders[one].equal(orders[other])
        assert not broken[one].equal(broken[other])
    assert all(first.equal(order[:10]) for first, order in zip(broken, orders, strict=True))


def test_shuffling_is_uniform() -> None:
    """Over 300 epochs each sample is first about 30 times of 10 samples: binomial, deviation 5.2."""
    counts = torch.bincount(
        torch.tensor(
            [int(loader(torch.arange(10), 10, shuffle=True, seed=3).order(epoch)[0]) for epoch in range(300)]
        ),
        minlength=10,
    )
    assert int(counts.min()) > 30 - 5 * 5.2
    assert int(counts.max()) < 30 + 5 * 5.2


def test_draws_differ_from_epoch_to_epoch() -> None:
    data = loader(torch.zeros(4, 2), 4)
    drawn = [batch.noise("z", (2,)) for batch in epochs(data, 3)]
    assert not drawn[0].equal(drawn[1])
    assert not drawn[1].equal(drawn[2])


# Resuming


class Rows(Dataset[dict[str, Tensor]]):
    """Augments by the generators of torch, Python and numpy, as transforms do."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {
            "x": torch.full((2,), float(index)),
            "noise": torch.randn(2),
            "coin": torch.tensor(random.random()),
            "dice": torch.tensor(np.random.randint(10**6)),
        }


def values(batch: Batch) -> list[Any]:
    found: list[Any] = [batch.size, batch.step, batch.epoch, batch.index.tolist(), batch.position.tolist()]
    map_nest(lambda tensor: found.append(tensor.tolist()), batch.data)
    return found


@settings(deadline=None, max_examples=25)
@given(
    rows=st.integers(1, 9),
    batch_size=st.integers(1, 6),
    sizes=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    steps=st.integers(0, 12),
    tensors=st.booleans(),
)
def test_resumes_at_any_batch_on_any_number_of_ranks(
    rows: int, batch_size: int, sizes: tuple[int, int], steps: int, tensors: bool
) -> None:
    data: Any = torch.arange(rows) if tensors else Rows(rows)
    options: dict[str, Any] = {"shuffle": True, "seed": 4}
    unbroken = loader(data, batch_size, 0, sizes[1], **options)
    want = [values(batch) for batch in epochs(unbroken, 20)][steps : steps + 6]
    before = loader(data, batch_size, 0, sizes[0], **options)
    for _, _ in zip(range(steps), epochs(before, 20), strict=False):
        pass
    after = loader(data, batch_size, 0, sizes[1], shuffle=True, seed=0)
    after.load_state_dict(before.state_dict())
    got: list[list[Any]] = []
    while len(got) < 6:
        got += [values(batch) for batch in after]
    assert got[: len(want)] == want


def test_another_batch_size_cannot_go_on_amid_an_epoch() -> None:
    before = loader(torch.arange(20), 5)
    for _ in zip(range(3), before, strict=False):
        pass
    with pytest.raises(
        ParallelError, match="after 15 samples of an epoch, which batch_size 4 does not divide"
    ):
        loader(torch.arange(20), 4).load_state_dict(before.state_dict())


# Data sets and workers


def augmented(size: int, workers: int) -> dict[str, list[Tensor]]:
    """Every global batch of two epochs, put together from ``size`` shares."""
    shares = [loader(Rows(11), 4, rank, size, shuffle=True, seed=1, workers=workers) for rank in range(size)]
    found: dict[str, list[Tensor]] = {key: [] for key in ("x", "noise", "coin", "dice")}
    for pieces in zip(*(epochs(each, 2) for each in shares), strict=True):
        for key, batches in found.items():
            batches.append(torch.cat([piece[key] for piece in pieces]))
    return found


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("workers", [0, 2])
def test_augmentation_is_keyed_by_the_sample(size: int, workers: int) -> None:
    """By neither the rank, nor the worker, nor who drew before; and the caller's draws go on as if nothing were."""
    want = augmented(1, 0)
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)
    state = torch.get_rng_state(), random.getstate(), np.random.get_state(legacy=False)["state"]["key"]
    got = augmented(size, workers)
    assert torch.get_rng_state().equal(state[0])
    assert random.getstate() == state[1]
    assert (np.random.get_state(legacy=False)["state"]["key"] == state[2]).all()
    for key, batches in want.items():
        assert all(one.equal(other) for one, other in zip(batches, got[key], strict=True)), key


class Torn(Dataset[Tensor]):
    """One of its rows cannot be read."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Tensor:
        if index == 5:
            raise OSError("row 5 is torn")
        return torch.zeros(1)


def test_an_error_in_a_worker_ends_the_workers() -> None:
    """At once: the error, which somebody may keep, keeps torch's iterator, whose own end takes 5 s a worker."""
    before = multiprocessing.active_children()  # the pool's ranks
    with pytest.raises(OSError, match="row 5 is torn") as kept:
        list(loader(Torn(), 3, workers=2))
    assert set(multiprocessing.active_children()) <= set(before), kept


def test_augmentation_differs_from_sample_to_sample_and_from_epoch_to_epoch() -> None:
    batches = list(epochs(loader(Rows(6), 3), 2))
    for key in ("noise", "coin", "dice"):
        drawn = torch.cat([batch[key] for batch in batches])
        assert drawn.unique().numel() == drawn.numel()


def test_an_empty_share_of_a_data_set_has_the_shape_of_the_others() -> None:
    (batch,) = loader(Rows(2), 2, rank=0, size=3)
    assert len(batch) == 0
    assert batch["x"].shape == (0, 2)
    assert batch["coin"].shape == (0,)


# Samplers


def test_a_sampler_is_the_order() -> None:
    def drawn(epoch: int) -> Tensor:
        return torch.randint(0, 5, (7,), generator=torch.Generator().manual_seed(epoch))

    shares = [loader(torch.arange(5) * 10, 3, rank, 2, sampler=drawn) for rank in range(2)]
    assert len(shares[0]) == 3
    for epoch in range(2):
        got = torch.cat([torch.cat((a.data, b.data)) for a, b in zip(*shares, strict=True)])
        assert got.equal(drawn(epoch) * 10)


@pytest.mark.parametrize("length", [5, 9])
def test_a_sampler_whose_length_changes_is_refused(length: int) -> None:
    data = loader(torch.arange(9), 3, sampler=lambda epoch: torch.arange(7 if epoch == 0 else length))
    assert len(list(data)) == 3
    with pytest.raises(
        ParallelError, match=f"the sampler gave {length} positions for epoch 1 and 7 for epoch 0"
    ):
        list(data)


# Refusals


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch_size": 0}, "batch_size is 0; it must be at least 1"),
        ({"batch_size": -3}, "batch_size is -3; it must be at least 1"),
        (
            {"batch_size": 2, "shuffle": True, "sampler": torch.arange},
            "give shuffle or a sampler, not both: the sampler is the order",
        ),
        (
            {"batch_size": 6, "drop_last": True},
            "the loader has no batch: 5 samples, batch_size 6, drop_last True",
        ),
    ],
)
def test_refusals(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ParallelError) as caught:
        loader(torch.arange(5), **options)
    assert str(caught.value) == said


def test_tensors_of_other_lengths_are_refused() -> None:
    with pytest.raises(
        ParallelError, match=r"the data set's tensors differ in their number of rows: \[3, 4\]"
    ):
        loader({"x": torch.zeros(3), "y": torch.zeros(4)}, 2)


def test_no_rows_are_refused() -> None:
    with pytest.raises(ParallelError, match="the loader has no batch: 0 samples"):
        loader(torch.zeros(0, 3), 2)
