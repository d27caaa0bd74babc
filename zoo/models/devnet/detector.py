"""DevNet as a scikit-learn estimator, over the same trainer as `zoo train devnet`."""

from __future__ import annotations

from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from zoo.models.devnet.config import DevNetConfig
from zoo.models.devnet.labels import plain_labels, two_classes
from zoo.models.devnet.threshold import score_threshold
from zoo_datasets import InputError, Table
from zoo_datasets.errors import shown

if TYPE_CHECKING:
    from typing import Self

    from parallel.interface import Parallel
    from zoo.models.devnet.model import DevNet

_SCORED_AT_ONCE = 4096  # rows, so that memory stays bounded


class DevNetDetector(ClassifierMixin, BaseEstimator):
    """Deviation networks: anomaly detection with few labelled anomalies (Pang, Shen, van den Hengel, KDD 2019).

    The labels are of two classes, and the higher one (1, True) is the anomaly; the lower marks rows that are
    normal or not labelled. Texts must sort that way too (no/yes, normal/outlier), or ``fit`` refuses them; where
    neither is a word that it knows, it warns which one is taken. Scale the columns first, to [0, 1] say. The same
    ``random_state`` gives the same detector.

    Args:
        network_depth: 1 is linear, 2 has a hidden layer of 20 units, 4 has three of 1000, 250 and 20.
        epochs: each of ``batches_per_epoch`` batches of ``batch_size`` rows, half of them anomalies.
        confidence: in (0, 1), of the threshold that ``predict`` and ``decision_function`` use, see
            :func:`zoo.models.devnet.threshold.score_threshold`.
        random_state: an int, a ``RandomState``, or None for another detector at each ``fit``.

    Attributes:
        classes_: [2], the label of normal rows and that of anomalies.
        network_: the trained :class:`DevNet`, on CPU.
        threshold_: the score above which a row is an anomaly.
        n_features_in_: columns of X; feature_names_in_: their names, where X has any.
    """

    classes_: np.ndarray
    network_: DevNet
    threshold_: float

    def __init__(
        self,
        network_depth: int = 2,
        epochs: int = 50,
        batch_size: int = 512,
        batches_per_epoch: int = 20,
        confidence: float = 0.95,
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.network_depth = network_depth
        self.epochs = epochs
        self.batch_size = batch_size
        self.batches_per_epoch = batches_per_epoch
        self.confidence = confidence
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:
        """Trains on rows X [rows, columns] (array, DataFrame or sparse matrix) and their labels y [rows].

        Raises:
            ValueError: one class only, more than two, or two texts in an order that would turn them round; a label
                that is missing; NaN or infinity in X (row and column are named); an option of another type or out
                of range.
        """
        from parallel.launcher import launch

        config = self._config()
        X, y = self._validated(X, None if y is None else plain_labels(y))
        self.classes_, labels = two_classes(y)
        table = Table(X, labels, [str(column) for column in range(X.shape[1])], "X")
        self.network_ = launch(_train, "single", config, table)
        self.threshold_ = score_threshold(config.confidence)
        return self

    def score_samples(self, X: Any) -> np.ndarray:
        """The network's scores, float64 [rows]: deviations from normal rows, in standard deviations."""
        import torch

        check_is_fitted(self)
        X = self._validated(X, reset=False)
        scores = np.empty(X.shape[0])
        with torch.no_grad():
            for start in range(0, len(scores), _SCORED_AT_ONCE):
                rows = X[start : start + _SCORED_AT_ONCE]
                dense = rows if isinstance(rows, np.ndarray) else rows.toarray()
                # In float64 a row's score does not depend on which rows are scored with it.
                scores[start : start + _SCORED_AT_ONCE] = self.network_(
                    torch.from_numpy(dense.astype(np.float64))
                )
        return scores

    def decision_function(self, X: Any) -> np.ndarray:
        """How far scores lie above the threshold, float64 [rows]: positive for anomalies."""
        return self.score_samples(X) - self.threshold_

    def predict(self, X: Any) -> np.ndarray:
        """The label of each row [rows], one of ``classes_``."""
        anomaly = self.decision_function(X) > 0
        return self.classes_[anomaly.astype(np.int64)]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        tags.input_tags.sparse = True
        return tags

    def _config(self) -> DevNetConfig:
        """The options, in Python's own numbers.

        Raises:
            InputError: one of another type or out of range.
        """
        return DevNetConfig(
            network_depth=self._whole("network_depth"),  # type: ignore[arg-type]  # the network checks it
            epochs=self._whole("epochs"),
            batch_size=self._whole("batch_size"),
            batches_per_epoch=self._whole("batches_per_epoch"),
            confidence=self._number("confidence"),
            seed=self._seed(),
        )

    def _whole(self, name: str) -> int:
        value = getattr(self, name)
        if not isinstance(value, Integral) or isinstance(value, bool):
            raise InputError(f"{name} must be a whole number, not {shown(value)}")
        return int(value)

    def _number(self, name: str) -> float:
        value = getattr(self, name)
        if not isinstance(value, Real) or isinstance(value, bool):
            raise InputError(f"{name} must be a number, not {shown(value)}")
        return float(value)

    def _seed(self) -> int:
        state = self.random_state
        if isinstance(state, Integral):
            if not 0 <= state < 2**63:
                raise InputError(f"random_state must be from 0 to 2**63 - 1, not {state}")
            return int(state)
        try:
            return int(check_random_state(state).randint(2**31 - 1))
        except ValueError:
            raise InputError(
                f"random_state must be a whole number, a RandomState or None, not {shown(state)}"
            ) from None

    def _validated(self, X: Any, y: Any = "no_validation", reset: bool = True) -> Any:
        """X in float32, dense or CSR, all of it finite; and y beside it where given."""
        options = {"accept_sparse": "csr", "dtype": np.float32, "ensure_all_finite": False, "reset": reset}
        with np.errstate(over="ignore"):  # what is too large for float32 is named below
            validated = validate_data(self, X, y, **options)
        self._check_finite(validated[0] if isinstance(validated, tuple) else validated)
        return validated

    def _check_finite(self, X: Any) -> None:
        """scikit-learn's own check names neither row nor column."""
        bad = ~np.isfinite(X if isinstance(X, np.ndarray) else X.data)
        if not bad.any():
            return
        if isinstance(X, np.ndarray):
            row, column = (int(place[0]) for place in np.nonzero(bad))
            value = X[row, column]
        else:
            place = int(np.flatnonzero(bad)[0])
            row, column = int(np.searchsorted(X.indptr, place, side="right")) - 1, int(X.indices[place])
            value = X.data[place]
        name = (
            repr(str(self.feature_names_in_[column])) if hasattr(self, "feature_names_in_") else str(column)
        )
        what = "NaN" if np.isnan(value) else "infinity or a value too large for float32"
        raise InputError(
            f"X, row {row} (counted from 0), column {name}: {what}; fill it in or leave the row out"
        )


def _train(p: Parallel, config: DevNetConfig, table: Table) -> DevNet:
    from zoo.models.devnet.model import DevNet
    from zoo.models.devnet.trainer import DevNetTrainer
    from zoo.trainer import fit

    trainer = DevNetTrainer(p, config, table)
    fit(trainer)
    net = trainer.models["net"]
    assert isinstance(net, DevNet)
    return net.cpu().double()
