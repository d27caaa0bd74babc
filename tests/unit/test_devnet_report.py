"""Metrics, tables and plots against scikit-learn and SciPy."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm
from sklearn.metrics import average_precision_score, precision_recall_fscore_support, roc_auc_score

from zoo.models.devnet.report import _bin_edges, score_metrics, threshold_rows, write_report
from zoo.models.devnet.threshold import CONFIDENCES, score_threshold


def scored(seed: int, rows: int = 200) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = (np.arange(rows) % 9 == 0).astype(np.int64)
    return rng.normal(scale=1.5, size=rows) + 2 * y, y


@given(confidence=st.floats(0.001, 0.999999))
def test_threshold_leaves_the_confidence_within_it(confidence):
    assert norm.cdf(score_threshold(confidence)) - norm.cdf(-score_threshold(confidence)) == pytest.approx(
        confidence
    )


def test_threshold_of_95_percent_is_the_papers():
    assert score_threshold(0.95) == pytest.approx(1.96, abs=5e-5)


@given(seed=st.integers(0, 2**32))
def test_metrics_equal_scikit_learns(seed):
    scores, y = scored(seed)
    metrics = score_metrics(scores, y)
    assert metrics["rows"] == len(y)
    assert metrics["auc_roc"] == pytest.approx(roc_auc_score(y, scores))
    assert metrics["auc_pr"] == pytest.approx(average_precision_score(y, scores))
    for name, confidence in zip(("80", "95", "99", "99.999"), CONFIDENCES, strict=True):
        flagged = scores > norm.ppf((1 + confidence) / 2)
        want = precision_recall_fscore_support(y, flagged, average="binary", zero_division=0)[:3]
        got = [metrics[f"{metric}_at_{name}"] for metric in ("precision", "recall", "f1")]
        assert got == pytest.approx(want)


def test_nothing_flagged_is_zero():
    row = threshold_rows(np.zeros(4), np.array([0, 0, 1, 1]))[0]
    assert (row.flagged, row.precision, row.recall, row.f1) == (0, 0, 0, 0)


def test_report_files(tmp_path):
    scores, y = scored(0)
    files = write_report(tmp_path, scores, y, "a title")
    assert sorted(tmp_path.iterdir()) == sorted(files)
    for name in ("scores.png", "precision_recall.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    text = (tmp_path / "report.md").read_text()
    assert text.startswith("# a title\n")
    assert f"| AUC-ROC | {roc_auc_score(y, scores):.4f} |" in text
    with open(tmp_path / "thresholds.csv", newline="") as file:
        table = list(csv.DictReader(file))
    assert [float(row["threshold"]) for row in table] == [row.threshold for row in threshold_rows(scores, y)]
    assert [float(row["recall"]) for row in table] == [row.recall for row in threshold_rows(scores, y)]


EXTREME = {
    "all equal": np.full(40, 1e16),
    "next to each other": 1e16 + 2.0 * (np.arange(40) % 3),
    "two neighbours": np.where(np.arange(40) % 4 == 0, np.nextafter(1.0, 2), 1.0),
    "huge": np.linspace(-3e38, 3e38, 40),
    "beyond all": np.where(np.arange(40) % 4 == 0, 4e306, -4e306),
    "infinite": np.where(np.arange(40) % 5 == 0, np.inf, np.arange(40.0)),
    "no number": np.full(40, np.nan),
}


@pytest.mark.parametrize("name", EXTREME)
def test_a_report_can_be_made_of_any_scores(name, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "matplotlib.figure.Figure.savefig", lambda figure, path, dpi: figure.draw_without_rendering()
    )
    scores, y = EXTREME[name], (np.arange(40) % 4 == 0).astype(np.int64)
    write_report(tmp_path, scores, y, name)
    assert np.isnan(score_metrics(scores, y)["auc_roc"]) != np.isfinite(scores).all()


@pytest.mark.parametrize(
    ("scores", "bins"), [([0, 6], 60), ([1e16, 1e16 + 4], 2), ([1e16, 1e16], 2), ([3, 3], 60), ([], 60)]
)
def test_bins_are_at_most_as_many_as_floats_tell_apart(scores, bins):
    edges = _bin_edges(np.array(scores, dtype=float))
    assert len(edges) == bins + 1
    assert (np.diff(edges) > 0).all()
    assert all(edges[0] <= score <= edges[-1] for score in scores)
