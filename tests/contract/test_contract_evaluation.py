"""Guarantee 4: evaluation counts each sample once, and rows come back in data-set order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from contract_matrix import ONE_EACH, Layout
from pool import Pool
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor

from parallel.interface import Parallel

LAYOUTS = [Layout("single", 1), *ONE_EACH, Layout("ddp", 2), Layout("dp", 2), Layout("fsdp", 2)]


def _data(rows: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(rows) % 3 == 0
    scores = torch.randn(rows, generator=generator, dtype=torch.float64) + labels
    return scores, labels


def _evaluate(p: Parallel, rows: int, batch_size: int, shuffle: bool) -> dict[str, Any]:
    """Scores and labels of every batch, gathered once at the end."""
    found: list[dict[str, Tensor]] = []
    index = []
    for batch in p.loader(_data(rows), batch_size, shuffle=shuffle, seed=3):
        for part in p.parts(batch):
            found.append({"score": part.x, "label": part.y, "pair": torch.stack((part.x, -part.x), 1)})
            index.append(part.index)
    own = {name: torch.cat([batch[name] for batch in found]) for name in found[0]}
    places = torch.cat(index)
    return p.gather({**own, "nest": (places, [places.int()])}, places)


SIZES = [(21, 4), (21, 21), (1, 1), (2, 5)]  # (rows, batch size); 1 and 2 rows are fewer than ranks


def _evaluations(p: Parallel) -> list[dict[str, Any]]:
    return [_evaluate(p, *size, shuffle) for size in SIZES for shuffle in (False, True)]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_each_row_once_and_in_order(layout: Layout, ranks: Pool) -> None:
    for found in layout.run(ranks, _evaluations, precision="fp64"):
        for (rows, _), got in zip([size for size in SIZES for _ in range(2)], found, strict=True):
            scores, labels = _data(rows)
            assert got["score"].equal(scores)
            assert got["label"].dtype == torch.bool
            assert got["label"].equal(labels)
            assert got["pair"].equal(torch.stack((scores, -scores), 1))
            places, (again,) = got["nest"]
            assert places.equal(torch.arange(rows))
            assert again.dtype == torch.int32


@pytest.mark.parametrize("n", [2, 3])
def test_21_rows_have_scikit_learns_value_on_21(n: int, ranks: Pool) -> None:
    """Not on the 24 that padding to ranks and batches would make."""
    scores, labels = _data(21)
    got = Layout("ddp", n, 2).run(ranks, _evaluate, 21, 4, True, precision="fp64")[0]
    for metric in (roc_auc_score, average_precision_score):
        assert metric(got["label"], got["score"]) == metric(labels, scores)
    padded = np.r_[0:21, 0:3]
    assert roc_auc_score(labels[padded], scores[padded]) != roc_auc_score(labels, scores)


def _values(p: Parallel) -> dict[str, Any]:
    own = torch.tensor([1.0 + p.data_rank, 10.0])
    kept = own.clone()
    found = {
        "sum": p.sum(own),
        "mean": p.mean(own),
        "told": p.broadcast({"rank": p.rank, "text": "ä"}),
        "shares": p.data_size,
        "is_main": p.is_main,
    }
    p.barrier()
    assert own.equal(kept)
    return found


@pytest.mark.parametrize("layout", [Layout("single", 1), *ONE_EACH], ids=lambda layout: layout.spec)
def test_values_over_ranks(layout: Layout, ranks: Pool) -> None:
    """Sums are over the shares of the batch: ranks that split one model count once."""
    found = layout.run(ranks, _values)
    shares = found[0]["shares"]
    assert shares == {"single": 1, "dp": 1, "tp": 1, "ddp+tp": 2, "fsdp+tp": 2}.get(layout.spec, layout.ranks)
    assert [value["is_main"] for value in found] == [True] + [False] * (len(found) - 1)
    for value in found:
        assert value["sum"].tolist() == [sum(range(1, shares + 1)), 10.0 * shares]
        assert value["mean"].tolist() == pytest.approx([(1 + shares) / 2, 10.0])
        assert value["told"] == {"rank": 0, "text": "ä"}
