"""The two classes that a detector's labels hold, whatever they come in."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.utils.multiclass import check_classification_targets

from zoo_datasets import InputError
from zoo_datasets.labels import ANOMALY_WORDS, NORMAL_WORDS, as_number, is_missing


def plain_labels(y: Any) -> Any:
    """Labels as an array of a plain type: booleans or numbers in an array of objects are found by their own.

    Args:
        y: [rows] of booleans, numbers or texts, in a list, an array, or anything that makes one, such as a pandas
            ``Series`` of a nullable or a categorical type. What makes no array of rows comes back as it is.

    Raises:
        InputError: a label is missing (its row is named), or texts and numbers are mixed.
    """
    # Made an array by NumPy, a list of texts and NaN would have the text "nan".
    values = np.asarray(y) if hasattr(y, "dtype") else np.asarray(y, dtype=object)
    if values.ndim == 0 or values.dtype.kind not in "fO":
        return y if values.ndim == 0 else values
    numbers = values.dtype.kind == "f"
    texts = [isinstance(label, str) for label in values.flat] if not numbers else []
    missing = np.isnan(values.ravel()) if numbers else _missing(values)
    if missing.any():
        raise InputError(
            f"y, row {int(missing.argmax())} (counted from 0): the label is missing; give one or leave the row out"
        )
    if numbers or all(texts):
        return values
    if any(texts):
        raise InputError("y mixes texts with other labels; give texts only, or numbers or booleans only")
    return np.array(values.tolist())


def _missing(values: np.ndarray) -> np.ndarray:
    """Bool [rows]: where an array of objects holds None, NaN or pandas' NA; texts are labels, whatever they say."""
    return np.array([not isinstance(label, str) and is_missing(label) for label in values.flat], dtype=bool)


def two_classes(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The two labels, and int64 [rows], 1 where the higher stands.

    Warns where they are texts of which none is known to name the anomaly or the normal rows.

    Raises:
        InputError: one class only, more than two, or two texts in an order that would turn them round.
    """
    check_classification_targets(y)
    classes, labels = np.unique(y, return_inverse=True)
    if len(classes) > 2:
        raise InputError(
            "Only binary classification is supported. The type of the target is multiclass: y holds "
            f"{len(classes)} classes, and must hold two, the higher for anomalies"
        )
    if len(classes) == 1:
        raise InputError(
            f"y holds one class only, {classes[0]}; it must hold two, of which the higher marks the anomalies"
        )
    if isinstance(classes[0], str):
        _check_order(str(classes[0]), str(classes[1]))
    return classes, labels.astype(np.int64)


def _check_order(first: str, second: str) -> None:
    """Refuses texts of which the anomaly is not the one that sorts last, as scikit-learn has it; warns if none is known.

    They mean what they mean in a table's label column.
    """
    low, high = as_number(first), as_number(second)
    if low is not None and high is not None:
        if low < high:
            return
        raise InputError(
            f"y holds the texts {first!r} and {second!r}, which do not sort as their numbers do: give numbers"
        )
    words = first.strip().casefold(), second.strip().casefold()
    if words[0] in ANOMALY_WORDS or words[1] in NORMAL_WORDS:
        raise InputError(
            f"y holds {first!r} and {second!r}, of which the higher, {second!r}, would be taken for the anomaly: "
            f"give y == {first!r} in its place"
        )
    if words[0] not in NORMAL_WORDS and words[1] not in ANOMALY_WORDS:
        warnings.warn(
            f"y holds {first!r} and {second!r}, and {second!r}, which sorts last, is taken for the anomaly; "
            f"to choose, give booleans: y == {second!r}, or y == {first!r}",
            stacklevel=4,  # who called fit
        )
