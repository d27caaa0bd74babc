"""DevNet on 1, 2 and 3 ranks is DevNet in one process: losses, gradient norms, weights, scores and their order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from pool import Pool
from sklearn.metrics import average_precision_score, roc_auc_score

from parallel.ddp import DDP
from parallel.interface import Parallel
from parallel.testing import Trace, differences
from zoo.models.devnet.config import DevNetConfig
from zoo.models.devnet.reference import ReferenceScores
from zoo.models.devnet.trainer import DevNetTrainer
from zoo.parity import train
from zoo.trainer import evaluate, evaluating, fit

Run = Callable[..., Trace]


@contextmanager
def unreduced(p: Parallel) -> Iterator[None]:
    """The gradients of a rank's own rows only."""
    with mock.patch.object(DDP, "before_backward", lambda *_: None):
        yield


@contextmanager
def noise_by_rank(p: Parallel) -> Iterator[None]:
    """Reference scores that differ from rank to rank."""
    seeded = ReferenceScores.__init__
    with mock.patch.object(ReferenceScores, "__init__", lambda self, seed: seeded(self, seed + p.rank)):
        yield


@contextmanager
def sound(p: Parallel) -> Iterator[None]:
    yield


def run(p: Parallel, config: DevNetConfig, broken: Callable[[Parallel], object] = sound) -> Trace:
    with broken(p):
        return train(DevNetTrainer(p, config), "devnet")[0]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """37 rows to train on and 21 to evaluate, dense and as libsvm."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    for kind in ("dense", "sparse"):
        (folder / kind).mkdir()
    for name, rows in (("train", 37), ("eval", 21)):
        y = (np.arange(rows) % 5 == 0).astype(int)
        x = rng.random((rows, 6)) + 0.3 * y[:, None]
        x[x < 0.3] = 0
        table = [",".join(["class", *"abcdef"])] + [
            ",".join(map(str, (label, *row))) for label, row in zip(y, x.tolist(), strict=True)
        ]
        (folder / "dense" / f"{name}.csv").write_text("\n".join(table) + "\n")
        lines = [
            " ".join([str(label)] + [f"{i + 1}:{value}" for i, value in enumerate(row) if value])
            for label, row in zip(y, x.tolist(), strict=True)
        ]
        (folder / "sparse" / f"{name}.svm").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def alone(ranks: Pool) -> Run:
    """One process with one part, each run once."""
    known: dict[tuple[str, str], Trace] = {}

    def reference(config: DevNetConfig, precision: str) -> Trace:
        key = (repr(config), precision)
        if key not in known:
            known[key] = ranks.run(run, "single", 1, config, precision=precision)[0]
        return known[key]

    return reference


def config_of(data: Path, kind: str = "dense", depth: int = 2, batch_size: int = 10) -> DevNetConfig:
    return DevNetConfig(
        data=str(data / kind),
        network_depth=depth,
        batch_size=batch_size,
        steps=20,
        batches_per_epoch=6,
        known_outliers=5,
        contamination=0.1,
        seed=3,
    )


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize(
    ("batch_size", "parts"),
    [(10, 1), (2, 2)],  # 3 ranks do not divide 10 rows; 2 rows leave shares and parts of none
    ids=["uneven", "empty"],
)
def test_ddp_equals_one_process(ranks, alone, data, n, depth, batch_size, parts):
    config = config_of(data, depth=depth, batch_size=batch_size)
    want = alone(config, "fp64")
    got = ranks.run(run, "ddp", n, config, precision="fp64", accumulate=parts)[0]
    assert len(want.losses) == len(want.norms) == 20
    assert len(want.answers["score"]) == 21
    assert not differences(want, got, "fp64")


@pytest.mark.parametrize("parts", [2, 3])
def test_parts_equal_the_whole_batch_in_one_process(ranks, alone, data, parts):
    config = config_of(data)
    got = ranks.run(run, "single", 1, config, precision="fp64", accumulate=parts)[0]
    assert not differences(alone(config, "fp64"), got, "fp64")


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_in_single_precision_too(ranks, alone, data, n, depth):
    config = config_of(data, depth=depth)
    got = ranks.run(run, "ddp", n, config, precision="fp32")[0]
    assert not differences(alone(config, "fp32"), got, "fp32")


def test_sparse_rows_on_ranks_equal_dense_ones_in_one_process(ranks, alone, data):
    got = ranks.run(run, "ddp", 3, config_of(data, kind="sparse"), precision="fp64", accumulate=2)[0]
    assert not differences(alone(config_of(data), "fp64"), got, "fp64")


@pytest.mark.parametrize("broken", [unreduced, noise_by_rank])
def test_the_comparison_sees_what_is_broken(ranks, alone, data, broken):
    config = config_of(data)
    got = ranks.run(run, "ddp", 2, config, broken, precision="fp64")[0]
    found = differences(alone(config, "fp64"), got, "fp64")
    assert {"loss", "grad_norm", "weights", "answers"} == {difference.split(":")[0] for difference in found}


def trained_answers(p: Parallel, config: DevNetConfig, file: Path) -> tuple[object, ...]:
    trainer = DevNetTrainer(p, config)
    fit(trainer)
    evaluation = evaluate(trainer)
    trainer.description = trainer.describe()
    with evaluating(trainer):
        return evaluation, trainer.predict(file)


@pytest.mark.parametrize("n", [2, 3])
def test_every_rank_has_each_row_once_and_in_order(ranks, data, n):
    config, file = config_of(data), data / "dense" / "eval.csv"
    ((want, want_rows),) = ranks.run(trained_answers, "single", 1, config, file, precision="fp64")
    y, scores = np.array(want.rows["anomaly"]), np.array(want.rows["score"])
    assert want.metrics["auc_roc"] == roc_auc_score(y, scores)
    assert want.metrics["auc_pr"] == average_precision_score(y, scores)
    for got, rows in ranks.run(trained_answers, "ddp", n, config, file, precision="fp64"):
        assert got.metrics == pytest.approx(want.metrics, rel=1e-12)
        assert got.rows["anomaly"] == want.rows["anomaly"]
        assert got.rows["score"] == pytest.approx(want.rows["score"], rel=1e-8)
        assert rows["score"] == pytest.approx(want_rows["score"], rel=1e-8)
        assert rows["anomaly"] == want_rows["anomaly"]
