"""What a classifier is measured by."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class ClassRow:
    """One class: how many images it has, and how it was told apart from the others."""

    name: str
    images: int
    predicted: int
    precision: float
    recall: float
    f1: float


def accuracy(logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """top1, and top5 where there are more than five classes: shares of the images; and loss, the mean cross entropy.

    Of equal logits the first counts as higher.

    Args:
        logits: [rows, classes]. labels: int [rows].
    """
    ranked = np.argsort(-logits, axis=1, kind="stable")
    hits = ranked == labels[:, None]
    metrics = {"top1": float(hits[:, 0].mean())}
    if logits.shape[1] > 5:
        metrics["top5"] = float(hits[:, :5].any(axis=1).mean())
    wide = logits.astype(np.float64)
    highest = wide.max(axis=1, keepdims=True)
    total = highest[:, 0] + np.log(np.exp(wide - highest).sum(axis=1))
    metrics["loss"] = float((total - wide[np.arange(len(labels)), labels]).mean())
    return metrics


def confusion(predicted: np.ndarray, labels: np.ndarray, classes: int) -> np.ndarray:
    """int64 [classes, classes]: images by their class (row) and what they were taken for (column)."""
    table = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(table, (labels, predicted), 1)
    return table


def class_rows(table: np.ndarray, names: list[str]) -> list[ClassRow]:
    """Precision, recall and F1 of each class of a confusion matrix; 0 where they are 0/0."""
    rows = []
    for place, name in enumerate(names):
        hits, images, predicted = (
            int(n) for n in (table[place, place], table[place].sum(), table[:, place].sum())
        )
        precision, recall = hits / max(predicted, 1), hits / max(images, 1)
        rows.append(
            ClassRow(name, images, predicted, precision, recall, 2 * hits / max(images + predicted, 1))
        )
    return rows
