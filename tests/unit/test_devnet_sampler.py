"""Batches: half unlabelled rows, half anomalies, a pure function of seed and epoch."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from zoo.models.devnet.sampler import BalancedSampler


@given(
    labels=st.lists(st.booleans(), min_size=2, max_size=40).filter(lambda rows: 0 < sum(rows) < len(rows)),
    batch_size=st.integers(2, 17),
    batches=st.integers(1, 5),
    seed=st.integers(0, 2**63 - 1),
    epoch=st.integers(0, 1000),
)
def test_each_batch_alternates_unlabelled_rows_and_anomalies(labels, batch_size, batches, seed, epoch):
    anomaly = torch.tensor(labels)
    index = BalancedSampler(anomaly, batch_size, batches, seed)(epoch)
    assert index.dtype == torch.int64
    assert index.shape == (batches * batch_size,)
    drawn = anomaly[index].reshape(batches, batch_size)
    assert not drawn[:, 0::2].any()
    assert drawn[:, 1::2].all()
    again = BalancedSampler(anomaly, batch_size, batches, seed)
    again(epoch + 1)
    assert torch.equal(again(epoch), index)


def test_epochs_and_seeds_differ():
    anomaly = torch.arange(100) % 10 == 0
    orders = [BalancedSampler(anomaly, 8, 4, seed)(epoch) for seed in (0, 1) for epoch in (0, 1, 2)]
    assert len({tuple(order.tolist()) for order in orders}) == 6


def test_rows_of_a_class_are_drawn_alike_and_with_replacement():
    anomaly = torch.tensor([True, False, False, True, False, False, False])
    counts = torch.bincount(BalancedSampler(anomaly, 1000, 10, 0)(0), minlength=7)
    # 5,000 draws a class: the tolerance is 5 standard deviations of a binomial count.
    for rows, expected in ((anomaly, 2500.0), (~anomaly, 1000.0)):
        spread = (expected * (1 - expected / 5000)) ** 0.5
        assert (counts[rows] - expected).abs().max() < 5 * spread
