"""DevNetDetector as scikit-learn, and users, expect it."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from parallel.interface import Parallel
from parallel.launcher import launch
from zoo import DevNetDetector
from zoo.models.devnet.config import DevNetConfig
from zoo.models.devnet.labels import two_classes
from zoo.models.devnet.threshold import score_threshold
from zoo.models.devnet.trainer import DevNetTrainer
from zoo.trainer import fit
from zoo_datasets import InputError, Table

SHORT = {"epochs": 2, "batches_per_epoch": 3, "batch_size": 16}


def data(rows: int = 60, columns: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = (np.arange(rows) % 6 == 0).astype(np.int64)
    return (rng.random((rows, columns)) + y[:, None]).astype(np.float32), y


def short(**options: Any) -> DevNetDetector:
    return DevNetDetector(**SHORT | options)


# The checks ask for 83 % right on easy data: 100 small batches are enough.
@parametrize_with_checks([DevNetDetector(epochs=5, batch_size=128)])
def test_scikit_learn_takes_it(estimator, check):
    check(estimator)


def test_it_is_the_trainers_network():
    X, y = data()
    config = DevNetConfig(epochs=2, batches_per_epoch=3, batch_size=16, seed=7)

    def main(p: Parallel) -> dict[str, torch.Tensor]:
        trainer = DevNetTrainer(p, config, Table(X, y, ["a", "b", "c"], "table"))
        fit(trainer)
        return p.state_dict(trainer.models["net"])

    want = launch(main, "single")
    got = short(random_state=7).fit(X, y).network_.state_dict()
    assert all(torch.equal(got[name].float(), want[name]) for name in want)


def test_it_finds_anomalies():
    X, y = data(300, seed=1)
    detector = DevNetDetector(epochs=10, batch_size=64).fit(*data(300))
    assert roc_auc_score(y, detector.decision_function(X)) > 0.99
    assert detector.score(X, y) > 0.9


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
def test_decisions_are_scores_above_the_threshold(confidence):
    X, y = data()
    detector = short(epochs=20, confidence=confidence).fit(X, y)
    scores = detector.score_samples(X)
    z = (
        torch.distributions.Normal(0.0, 1.0)
        .icdf(torch.tensor((1 + confidence) / 2, dtype=torch.float64))
        .item()
    )
    assert detector.threshold_ == pytest.approx(z)
    np.testing.assert_allclose(detector.decision_function(X), scores - z)
    assert np.array_equal(detector.predict(X), (scores > z).astype(int))
    want = detector.network_(torch.from_numpy(X).double()).detach().numpy()
    np.testing.assert_allclose(scores, want, rtol=1e-12)


def test_fit_twice_and_clone_give_the_same_detector():
    X, y = data()
    detector = short()
    first = detector.fit(X, y).score_samples(X)
    assert np.array_equal(detector.fit(X, y).score_samples(X), first)
    assert np.array_equal(clone(detector).fit(X, y).score_samples(X), first)
    assert not np.array_equal(short(random_state=1).fit(X, y).score_samples(X), first)


def test_random_state_as_elsewhere_in_scikit_learn():
    X, y = data()
    scores = [
        short(random_state=state).fit(X, y).score_samples(X)
        for state in (np.random.RandomState(3), np.random.RandomState(3), None, None)
    ]
    assert np.array_equal(scores[0], scores[1])
    assert not np.array_equal(scores[2], scores[3])


def test_training_leaves_the_global_generators_alone():
    X, y = data()
    torch.manual_seed(0)
    np.random.seed(0)
    want = torch.rand(1).item(), np.random.random()
    torch.manual_seed(0)
    np.random.seed(0)
    short().fit(X, y)
    assert (torch.rand(1).item(), np.random.random()) == want


def test_pickled_it_scores_the_same():
    X, y = data()
    detector = short().fit(X, y)
    again = pickle.loads(pickle.dumps(detector))
    assert np.array_equal(again.score_samples(X), detector.score_samples(X))
    assert np.array_equal(again.predict(X), detector.predict(X))


def test_pipeline_and_grid_search():
    X, y = data()
    search = GridSearchCV(
        make_pipeline(MinMaxScaler(), short()),
        {"devnetdetector__network_depth": [1, 2], "devnetdetector__epochs": [1, 20]},
        scoring="roc_auc",
        cv=2,
        error_score="raise",
    ).fit(X, y)
    assert search.best_params_["devnetdetector__epochs"] == 20
    assert search.best_score_ > 0.9
    assert search.predict(X).shape == (60,)


@pytest.mark.parametrize("kind", [sparse.csr_matrix, sparse.csc_matrix, sparse.coo_matrix, sparse.csr_array])
def test_sparse_rows_give_the_scores_of_dense_ones(kind):
    X, y = data()
    X[X < 0.4] = 0
    want = short().fit(X, y)
    got = short().fit(kind(X), y)
    assert np.array_equal(got.score_samples(kind(X)), want.score_samples(X))
    assert np.array_equal(got.score_samples(X), want.score_samples(X))


def test_columns_of_a_frame_are_checked_by_name():
    X, y = data()
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    detector = short().fit(frame, pd.Series(y))
    assert detector.feature_names_in_.tolist() == ["a", "b", "c"]
    assert np.array_equal(detector.score_samples(frame), short().fit(X, y).score_samples(X))
    with pytest.raises(ValueError, match="must be in the same order"):
        detector.predict(frame[["b", "a", "c"]])
    with pytest.raises(ValueError, match="feature names should match"):
        detector.predict(frame.rename(columns={"c": "d"}))
    with pytest.raises(ValueError, match="has 2 features, but DevNetDetector is expecting 3"):
        short().fit(X, y).predict(X[:, :2])


@pytest.mark.filterwarnings("ignore:y holds 'a' and 'b'")  # nobody knows which is which
@pytest.mark.parametrize(
    ("normal", "anomaly"),
    [(0, 1), (-1, 1), (False, True), (0.0, 1.0), (3, 8), ("inlier", "outlier"), ("no", "yes"), ("a", "b")],
)
def test_any_two_labels_work_and_come_back(normal, anomaly):
    X, y = data()
    labels = np.where(y == 1, anomaly, normal)
    detector = short(epochs=20).fit(X, labels)
    assert detector.classes_.tolist() == [normal, anomaly]
    assert np.array_equal(detector.decision_function(X), short(epochs=20).fit(X, y).decision_function(X))
    predicted = detector.predict(X)
    assert predicted.dtype == labels.dtype
    assert np.array_equal(predicted == anomaly, detector.decision_function(X) > 0)


CONTAINERS: dict[str, Callable[[np.ndarray], Any]] = {
    "list of int": lambda y: y.tolist(),
    "list of bool": lambda y: (y == 1).tolist(),
    "tuple of float": lambda y: tuple(map(float, y)),
    "list of text": lambda y: np.where(y == 1, "yes", "no").tolist(),
    "bool": lambda y: y == 1,
    "int8": lambda y: y.astype(np.int8),
    "float32": lambda y: y.astype(np.float32),
    "object int": lambda y: y.astype(object),
    "object bool": lambda y: (y == 1).astype(object),
    "object NumPy bool": lambda y: np.array([*map(np.bool_, y), None], dtype=object)[:-1],
    "object float": lambda y: y.astype(float).astype(object),
    "object text": lambda y: np.where(y == 1, "outlier", "inlier").astype(object),
    "object int and bool": lambda y: np.array([1 if label else False for label in y], dtype=object),
    "nullable boolean": lambda y: pd.Series(y == 1, dtype="boolean"),
    "nullable Int64": lambda y: pd.Series(y, dtype="Int64"),
    "nullable Float64": lambda y: pd.array(y, dtype="Float64"),
    "categorical of bool": lambda y: pd.Series(y == 1).astype("category"),
    "categorical of int": lambda y: pd.Categorical(y),
    "categorical of text": lambda y: pd.Series(np.where(y == 1, "true", "false")).astype("category"),
    "pandas text": lambda y: pd.Series(np.where(y == 1, "yes", "no"), dtype="string"),
    "series of object bool": lambda y: pd.Series(y == 1, dtype=object),
    "tensor": torch.from_numpy,
}


@pytest.fixture(scope="module")
def decisions() -> np.ndarray:
    X, y = data()
    return short().fit(X, y).decision_function(X)


@pytest.mark.parametrize("container", CONTAINERS)
def test_labels_in_any_container_are_the_same_labels(container, decisions):
    X, y = data()
    labels = CONTAINERS[container](y)
    detector = short().fit(X, labels)
    assert np.array_equal(detector.decision_function(X), decisions)
    assert detector.classes_.tolist() == [labels[1], labels[0]]  # as they were given


@pytest.mark.parametrize("missing", [None, np.nan, pd.NA], ids=str)
@pytest.mark.parametrize("kind", ["list", "list of text", "object bool", "nullable", "categorical"])
def test_a_missing_label_is_named_with_its_row(missing, kind):
    X, y = data()
    labels: list[Any] = (
        np.where(y == 1, "yes", "no").tolist() if kind == "list of text" else (y == 1).tolist()
    )
    labels[7] = missing
    make: dict[str, Callable[[list[Any]], Any]] = {
        "object bool": lambda labels: np.array(labels, dtype=object),
        "nullable": lambda labels: pd.Series(labels, dtype="boolean"),
        "categorical": pd.Categorical,
    }
    with pytest.raises(InputError) as caught:
        short().fit(X, make.get(kind, list)(labels))
    assert str(caught.value) == (
        "y, row 7 (counted from 0): the label is missing; give one or leave the row out"
    )


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (None, "requires y to be passed"),
        (np.zeros(60), "one class only, 0.0; it must hold two, of which the higher marks the anomalies"),
        (np.ones(60), "one class only, 1.0"),
        (np.arange(60) % 3, "y holds 3 classes, and must hold two"),
        (np.linspace(0, 1, 60), "Unknown label type: continuous"),
        (np.full(60, np.nan), r"^y, row 0 \(counted from 0\): the label is missing"),
        (["1", 0] * 30, "y mixes texts with other labels; give texts only, or numbers or booleans only"),
        (np.ones(59), "inconsistent numbers of samples"),
        (np.array(["normal", "anomaly"] * 30), "the higher, 'normal', .*: give y == 'anomaly' in its place"),
        (
            np.array(["Nominal", "Anomaly"] * 30),
            "the higher, 'Nominal', .*: give y == 'Anomaly' in its place",
        ),
    ],
)
def test_labels_that_cannot_be_used_are_explained(y, message):
    with pytest.raises(ValueError, match=message):
        short().fit(data()[0], y)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("fraud", "normal"),
        ("attack", "normal"),
        ("Anomaly", "other"),
        ("anomaly", "ok"),
        ("Defect", "Nominal"),
        ("bad", "no"),
        ("outlier ", "row"),
    ],
)
def test_texts_that_would_be_turned_round_are_refused(first, second):
    X, y = data()
    assert first < second
    with pytest.raises(InputError) as caught:
        short().fit(X, np.where(y == 1, first, second))
    assert str(caught.value) == (
        f"y holds {first!r} and {second!r}, of which the higher, {second!r}, would be taken for the anomaly: "
        f"give y == {first!r} in its place"
    )


@pytest.mark.parametrize(
    "texts", [("normal", "row"), ("Normal", "fraud"), ("fraud", "yes"), ("0", "1"), ("-1", "1"), ("9", "9.5")]
)
def test_texts_of_which_one_is_known_and_in_order_pass_in_silence(texts):  # a warning is an error here
    assert two_classes(np.array(texts))[1].tolist() == [0, 1]


def test_texts_of_numbers_must_sort_as_these_do():
    with pytest.raises(InputError, match="'10' and '9', which do not sort as their numbers do: give numbers"):
        two_classes(np.array(["9", "10"]))


@pytest.mark.parametrize("kind", [str, object])
@pytest.mark.parametrize("texts", [("fraud", "legit"), ("fraud", "not fraud"), ("bad", "good")])
def test_of_unknown_texts_it_warns_which_it_takes(texts, kind):
    first, second = texts
    with pytest.warns(
        UserWarning, match=f"{second!r}, which sorts last, is taken for the anomaly; to choose"
    ):
        assert two_classes(np.array([second, first], dtype=kind))[1].tolist() == [1, 0]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
@pytest.mark.parametrize("kind", ["array", "frame", "sparse"])
def test_cells_that_are_no_numbers_are_named(value, kind):
    X, y = data()
    good, bad = X.astype(np.float64), X.astype(np.float64)
    good[1, 0] = bad[1, 0] = 0  # so that the sparse matrix does not hold every cell
    bad[7, 2] = value
    make = {
        "array": np.asarray,
        "frame": lambda rows: pd.DataFrame(rows, columns=["a", "b", "c"]),
        "sparse": sparse.csr_matrix,
    }[kind]
    column = "'c'" if kind == "frame" else "2"
    what = "NaN" if np.isnan(value) else "infinity or a value too large for float32"
    message = rf"^X, row 7 \(counted from 0\), column {column}: {what}; "
    with pytest.raises(ValueError, match=message):
        short().fit(make(bad), y)
    detector = short().fit(make(good), y)
    with pytest.raises(ValueError, match=message):
        detector.predict(make(bad))


def test_constant_columns_work():
    X, y = data()
    X[:, 1] = 5
    assert np.isfinite(short().fit(X, y).score_samples(X)).all()


def test_no_row_and_one_row():
    X, y = data()
    with pytest.raises(ValueError, match="0 sample"):
        short().fit(X[:0], y[:0])
    with pytest.raises(ValueError, match="one class only, 1"):
        short().fit(X[:1], y[:1])
    detector = short().fit(X, y)
    assert detector.predict(X[:1]).shape == (1,)
    with pytest.raises(ValueError, match="0 sample"):
        detector.predict(X[:0])


def test_one_row_of_each_class_is_enough():
    X, y = data()
    assert short().fit(X[:2], y[:2]).predict(X).shape == (60,)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"network_depth": 3}, "network depth must be one of 1, 2 and 4, not 3"),
        ({"epochs": 0}, "epochs must be at least 1, not 0"),
        ({"batch_size": 1}, "batch_size must be at least 2"),
        ({"confidence": 1.5}, "confidence must be between 0 and 1"),
        ({"random_state": -1}, r"^random_state must be from 0 to 2\*\*63 - 1, not -1$"),
        ({"random_state": "x"}, "^random_state must be a whole number, a RandomState or None, not 'x'$"),
        ({"epochs": "x"}, "^epochs must be a whole number, not 'x'$"),
        ({"epochs": 1.5}, r"^epochs must be a whole number, not '1\.5'$"),
        ({"epochs": None}, "^epochs must be a whole number, not 'None'$"),
        ({"batch_size": True}, "^batch_size must be a whole number, not 'True'$"),
        ({"batches_per_epoch": "3"}, "^batches_per_epoch must be a whole number, not '3'$"),
        ({"network_depth": 2.0}, r"^network_depth must be a whole number, not '2\.0'$"),
        ({"confidence": "high"}, "^confidence must be a number, not 'high'$"),
        ({"confidence": np.nan}, "confidence must be between 0 and 1, not nan"),
    ],
)
def test_options_out_of_range_are_named_at_fit(options, message):
    with pytest.raises(ValueError, match=message):
        short(**options).fit(*data())


def test_options_may_be_numpys_numbers():
    X, y = data()
    got = short(epochs=np.int64(2), confidence=np.float32(0.5), random_state=np.int32(0)).fit(X, y)
    assert np.array_equal(got.score_samples(X), short().fit(X, y).score_samples(X))
    assert got.threshold_ == score_threshold(0.5)


def test_before_fit_it_says_so():
    with pytest.raises(NotFittedError):
        short().predict(data()[0])


def test_making_one_imports_no_torch():
    code = "import sys, zoo; zoo.DevNetDetector(epochs=1); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
