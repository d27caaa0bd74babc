"""Where the tabular models' data comes from: a name, a file, a folder, or nothing at all."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from zoo_datasets.download import cache_folder, fetch
from zoo_datasets.errors import InputError
from zoo_datasets.splits import stratified_split
from zoo_datasets.tabular import SUFFIXES, Table, align_columns, read_table, require_both_classes

__all__ = ["ANNTHYROID_SHA256", "ANNTHYROID_URL", "NAMED", "TabularData", "load_tabular"]

# ADRepository of the authors of DevNet (Pang et al., KDD 2019), at one commit, so that it cannot change.
ANNTHYROID_URL = (
    "https://raw.githubusercontent.com/GuansongPang/ADRepository-Anomaly-detection-datasets/"
    "875e2afa52250db6dc1c716d7fbbaf7f2db45c76/numerical%20data/DevNet%20datasets/"
    "annthyroid_21feat_normalised.csv"
)
ANNTHYROID_SHA256 = "e99d27d8d34ef4c6af1bd5fa76d9c0d39de8b1321f67955e2d3fc65747887fc8"

_ANOMALY_SHARE = 0.05


@dataclass(frozen=True, eq=False)
class TabularData:
    """Rows to train on and rows to evaluate on: both with labels of both classes, and the same columns."""

    train: Table
    eval: Table


def load_tabular(
    data: str | os.PathLike[str] | None,
    label: str | None = None,
    seed: int = 0,
    eval_fraction: float = 0.2,
) -> TabularData:
    """Load training and evaluation rows.

    Args:
        data: None for ``breast-cancer``; a name of ``NAMED`` (a file of that name is ``./NAME``); a file,
            which is split at random, each class alike; or a folder with one ``train`` and one ``eval`` file
            (.csv, .parquet, .pq, .svm or .libsvm). Values of files are taken as they are.
        label: the label column of a file, see ``read_table``.
        seed: of the split; a folder is split already and does not use it.
        eval_fraction: the share of rows for evaluation, see ``stratified_split``.

    Raises:
        InputError: one line; what is wrong with the data, or that there is no such name or path.
    """
    name = "breast-cancer" if data is None else os.fspath(data)
    if name in NAMED:
        if label is not None:
            raise InputError(f"{name} has its own labels; leave out --label {label}")
        return NAMED[name](seed, eval_fraction)
    path = Path(name)
    if path.is_dir():
        return _folder(path, label)
    if path.exists() or path.suffix.lower() in SUFFIXES:
        return _split(read_table(path, label), seed, eval_fraction)
    near = difflib.get_close_matches(name, NAMED, n=3, cutoff=0.5)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    raise InputError(f"no data set, file or folder {name!r}{hint} (names: {', '.join(NAMED)})")


def breast_cancer(seed: int, eval_fraction: float) -> TabularData:
    """Breast cancer Wisconsin (diagnostic) of scikit-learn, malignant as the anomaly, thinned to 5 %.

    The 357 benign rows and a fixed choice of 19 malignant ones; 30 features, each brought to [0, 1] by its
    range in the training rows (evaluation rows may lie outside).
    """
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    y = (bunch.target == 0).astype(np.int64)  # scikit-learn's 0 is malignant
    normal, malignant = np.flatnonzero(y == 0), np.flatnonzero(y == 1)
    kept = round(len(normal) * _ANOMALY_SHARE / (1 - _ANOMALY_SHARE))
    chosen = malignant[np.argsort(np.random.PCG64(0).random_raw(len(malignant)), kind="stable")[:kept]]
    rows = np.sort(np.concatenate([normal, chosen]))
    columns = [str(name) for name in bunch.feature_names]
    # In 64 bits until it is scaled.
    data = _split(Table(bunch.data[rows], y[rows], columns, "breast-cancer"), seed, eval_fraction)
    low, high = data.train.x.min(axis=0), data.train.x.max(axis=0)

    def scaled(table: Table) -> Table:
        return replace(table, x=((table.x - low) / (high - low)).astype(np.float32))

    return TabularData(scaled(data.train), scaled(data.eval))


def annthyroid(seed: int, eval_fraction: float) -> TabularData:
    """Thyroid disease as DevNet's authors publish it: 7,200 rows, 534 anomalies, 21 features in [0, 1].

    Downloaded once into the cache folder (``$ZOO_CACHE`` or ``~/.cache/parallel-zoo``), or put there by hand.
    """
    path = cache_folder() / "annthyroid_21feat_normalised.csv"
    table = read_table(fetch(ANNTHYROID_URL, ANNTHYROID_SHA256, path), label="class")
    return _split(replace(table, source="annthyroid"), seed, eval_fraction)


NAMED: dict[str, Callable[[int, float], TabularData]] = {
    "breast-cancer": breast_cancer,
    "annthyroid": annthyroid,
}


def _split(table: Table, seed: int, eval_fraction: float) -> TabularData:
    assert table.y is not None
    require_both_classes(table.y, table.source)
    train, evaluation = stratified_split(table.y, eval_fraction, seed, table.source)
    return TabularData(
        train=table.take(train, f"{table.source} (training rows)"),
        eval=table.take(evaluation, f"{table.source} (evaluation rows)"),
    )


def _folder(folder: Path, label: str | None) -> TabularData:
    train = read_table(_only(folder, "train"), label)
    evaluation = read_table(_only(folder, "eval"), label if train.label is None else train.label)
    for table in (train, evaluation):
        assert table.y is not None
        require_both_classes(table.y, table.source)
    if train.is_sparse and evaluation.is_sparse:
        # Either file may lack features that the other has: libsvm leaves out what is zero.
        columns = sorted({*train.columns, *evaluation.columns}, key=int)
        train = align_columns(train, columns)
    return TabularData(train, align_columns(evaluation, train.columns))


def _only(folder: Path, stem: str) -> Path:
    found = sorted(path for suffix in SUFFIXES if (path := folder / f"{stem}{suffix}").exists())
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise InputError(f"{folder}: needs one {stem} file of {', '.join(SUFFIXES)}; it has {names}")
    return found[0]
