"""How good scores are: metrics, tables and plots."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np

from zoo.models.devnet.threshold import CONFIDENCES, score_threshold

_NORMAL, _ANOMALY = "#4477aa", "#cc3311"  # told apart without colour vision too


@dataclass(frozen=True)
class ThresholdRow:
    """What flagging every score above one threshold gives.

    Attributes:
        confidence: in (0, 1).
        threshold: see :func:`zoo.models.devnet.threshold.score_threshold`.
        flagged: rows above the threshold.
        precision: the share of anomalies among them, 0 where there is none.
        recall: the share of anomalies that is flagged.
        f1: their harmonic mean, 0 where both are 0.
    """

    confidence: float
    threshold: float
    flagged: int
    precision: float
    recall: float
    f1: float

    @property
    def name(self) -> str:
        """The confidence in percent: 95, 99.999."""
        return f"{self.confidence * 100:g}"


def threshold_rows(
    scores: np.ndarray, y: np.ndarray, confidences: Sequence[float] = CONFIDENCES
) -> list[ThresholdRow]:
    """Precision, recall and F1 at the thresholds of some confidences.

    Args:
        scores: [rows], higher is more anomalous.
        y: [rows], 1 for anomalies; at least one.
    """
    rows = []
    for confidence in confidences:
        threshold = score_threshold(confidence)
        flagged = scores > threshold
        hits, found, anomalies = int((flagged & (y == 1)).sum()), int(flagged.sum()), int((y == 1).sum())
        precision, recall, f1 = hits / max(found, 1), hits / anomalies, 2 * hits / (found + anomalies)
        rows.append(ThresholdRow(confidence, threshold, found, precision, recall, f1))
    return rows


def score_metrics(scores: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Rows, AUC-ROC, AUC-PR (average precision, as the official code); precision, recall and F1 by confidence.

    Args:
        scores: [rows], higher is more anomalous.
        y: [rows], 1 for anomalies; both classes are there.

    Returns:
        The metrics by name; of scores that are not all finite the two areas are NaN.
    """
    from sklearn.metrics import average_precision_score, roc_auc_score

    ranked = bool(np.isfinite(scores).all())  # scikit-learn refuses others
    metrics: dict[str, float] = {
        "rows": len(y),
        "auc_roc": float(roc_auc_score(y, scores)) if ranked else math.nan,
        "auc_pr": float(average_precision_score(y, scores)) if ranked else math.nan,
    }
    for row in threshold_rows(scores, y):
        metrics |= {f"{name}_at_{row.name}": getattr(row, name) for name in ("precision", "recall", "f1")}
    return metrics


def write_report(folder: Path, scores: np.ndarray, y: np.ndarray, title: str) -> list[Path]:
    """Writes report.md, thresholds.csv, scores.png and precision_recall.png; see :func:`score_metrics`."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = threshold_rows(scores, y)
    metrics = score_metrics(scores, y)
    written = [
        folder / name for name in ("report.md", "thresholds.csv", "scores.png", "precision_recall.png")
    ]
    written[0].write_text(_markdown(metrics, rows, y, title), encoding="utf-8")
    with open(written[1], "w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, [field.name for field in fields(ThresholdRow)])
        table.writeheader()
        table.writerows(asdict(row) for row in rows)
    _plot_scores(written[2], scores, y, rows, title)
    _plot_precision_recall(written[3], scores, y, metrics, rows, title)
    return written


def _markdown(metrics: dict[str, float], rows: list[ThresholdRow], y: np.ndarray, title: str) -> str:
    lines = [
        f"# {title}",
        "",
        f"{len(y)} rows, {int((y == 1).sum())} of them anomalies.",
        "",
        "| metric | value |",
        "|---|---:|",
        f"| AUC-ROC | {metrics['auc_roc']:.4f} |",
        f"| AUC-PR | {metrics['auc_pr']:.4f} |",
        "",
        "A row is flagged where its score is above the threshold: the two-sided quantile, at that confidence,",
        "of N(0, 1), the prior of normal rows' scores.",
        "",
        "| confidence | threshold | flagged | precision | recall | F1 |",
        "|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {row.name} % | {row.threshold:.4f} | {row.flagged} "
        f"| {row.precision:.4f} | {row.recall:.4f} | {row.f1:.4f} |"
        for row in rows
    ]
    lines += ["", "![scores by class](scores.png)", "", "![precision and recall](precision_recall.png)", ""]
    return "\n".join(lines)


def _plot_scores(path: Path, scores: np.ndarray, y: np.ndarray, rows: list[ThresholdRow], title: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")  # without pyplot: no global state, no display
    axes = figure.subplots()
    finite = np.isfinite(scores)
    edges = _bin_edges(scores[finite])
    for value, name, colour in ((0, "normal", _NORMAL), (1, "anomaly", _ANOMALY)):
        own, rows_of_class = scores[finite & (y == value)], int((y == value).sum())
        # Each class by its own size, or the few anomalies could not be seen.
        weights = np.full(len(own), 1 / rows_of_class)
        axes.hist(own, edges, weights=weights, alpha=0.6, color=colour, label=f"{name} ({rows_of_class})")
    for row in rows:
        axes.axvline(row.threshold, color="0.4", linewidth=0.8, linestyle="--")
        axes.annotate(
            f" {row.name} %",
            (row.threshold, 1),
            xycoords=("data", "axes fraction"),
            rotation=90,
            va="top",
            ha="right",
            fontsize=7,
        )
    axes.set(xlabel="score", ylabel="share of the class in a bin", title=title)
    axes.legend()
    figure.savefig(path, dpi=150)


def _bin_edges(scores: np.ndarray, most: int = 60) -> list[float]:
    """Edges of equal bins from the least score to the greatest, all of them finite.

    Of scores so close that floats between them are fewer than that, there are fewer bins.
    """
    low, high = (float(scores.min()), float(scores.max())) if len(scores) else (0.0, 1.0)
    if low == high:
        half = max(0.5, float(np.spacing(abs(low))))
        low, high = low - half, high + half
    edges: list[float] = np.unique(np.linspace(low, high, most + 1)).tolist()
    return edges


def _plot_precision_recall(
    path: Path,
    scores: np.ndarray,
    y: np.ndarray,
    metrics: dict[str, float],
    rows: list[ThresholdRow],
    title: str,
) -> None:
    from matplotlib.figure import Figure
    from sklearn.metrics import precision_recall_curve

    figure = Figure(figsize=(5, 4.5), layout="constrained")
    axes = figure.subplots()
    if not math.isnan(metrics["auc_pr"]):
        precision, recall, _ = precision_recall_curve(y, scores)
        axes.step(recall, precision, where="post", color=_NORMAL, label=f"AUC-PR {metrics['auc_pr']:.3f}")
    chance = float((y == 1).mean())
    axes.axhline(chance, color="0.5", linewidth=0.8, linestyle=":", label=f"chance {chance:.3f}")
    for row, marker in zip(rows, "osD^", strict=True):
        axes.plot(
            row.recall, row.precision, marker, color=_ANOMALY, label=f"above {row.name} %", clip_on=False
        )
    axes.set(xlabel="recall", ylabel="precision", xlim=(0, 1), ylim=(0, 1.02), title=title)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=150)
