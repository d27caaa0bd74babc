"""DevNet through the command line."""

from __future__ import annotations

import csv
import json
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score

import zoo
from zoo.commands import main
from zoo_datasets import load_tabular, read_table


def run(*argv: object) -> Any:
    """What a command prints on the last line under --json."""
    with redirect_stdout(out := StringIO()):
        assert main([*map(str, argv), "--json"]) == 0
    return json.loads(out.getvalue().splitlines()[-1])


def read(path: Path) -> dict[str, np.ndarray]:
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: np.array([float(row[name]) for row in rows]) for name in rows[0]}


def test_a_published_checkpoint_converts_evaluates_and_predicts(reference, tmp_path):
    port, split = reference / "devnet" / "published_port_example.pth", reference / "devnet" / "split"
    run("convert", port, "--model", "devnet", "--to", tmp_path / "port")
    table = load_tabular(split).eval
    state = torch.load(port, weights_only=True)["model"]
    hidden = (torch.from_numpy(table.x) @ state["fc.weight"].T + state["fc.bias"]).clamp_min(0)
    scores = (hidden @ state["output.weight"][0] + state["output.bias"]).numpy()

    metrics = run("evaluate", tmp_path / "port", "--data", split)["metrics"]
    assert metrics["rows"] == 1440
    assert metrics["auc_roc"] == pytest.approx(roc_auc_score(table.y, scores), abs=1e-6)
    assert metrics["auc_pr"] == pytest.approx(average_precision_score(table.y, scores), abs=1e-6)

    run("predict", tmp_path / "port", "--input", split / "eval.csv", "--output", tmp_path / "scores.csv")
    np.testing.assert_allclose(read(tmp_path / "scores.csv")["score"], scores, rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> dict[str, Any]:
    options = ("--steps", 40, "--batch-size", 32, "--network-depth", 1, "--contamination", 0.05)
    return run("train", "devnet", *options, "--out", tmp_path_factory.mktemp("devnet") / "run")


def test_training_leaves_a_run(trained):
    folder = Path(trained["run"])
    assert {"config.yaml", "metrics.jsonl", "log.txt", "report", "checkpoints"} == {
        f.name for f in folder.iterdir()
    }
    report = {"report.md", "thresholds.csv", "scores.png", "precision_recall.png"}
    assert report == {file.name for file in (folder / "report").iterdir()}
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 41))
    assert lines[-1]["eval_auc_roc"] == trained["metrics"]["auc_roc"]
    assert lines[39]["loss"] < lines[0]["loss"]


def test_a_run_loads_evaluates_and_predicts_alike(trained, tmp_path):
    table = load_tabular("breast-cancer").eval
    with torch.no_grad():
        scores = zoo.load(trained["run"])(torch.from_numpy(table.x)).numpy()
    assert roc_auc_score(table.y, scores) == pytest.approx(trained["metrics"]["auc_roc"])
    assert run("evaluate", trained["run"])["metrics"] == trained["metrics"]

    path, out = tmp_path / "rows.csv", tmp_path / "scores.csv"
    lines = [",".join(table.columns)] + [",".join(map(repr, row)) for row in table.x.tolist()]
    path.write_text("\n".join(lines) + "\n")
    assert read_table(path, need_label=False).x.shape == table.x.shape
    run("predict", trained["run"], "--input", path, "--output", out)
    np.testing.assert_allclose(read(out)["score"], scores, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--known-outliers", "0"], "--known-outliers must be at least 1, not 0"),
        (["--contamination", "1"], "--contamination must be from 0 to below 1, not 1.0"),
        (["--network-depth", "3"], "--network-depth must be one of 1, 2, 4"),
        (["--known-outlier", "3"], "unknown option --known-outlier; did you mean --known-outliers?"),
        (["--data", "none.csv"], "none.csv: no such file"),
    ],
)
def test_bad_options_are_one_line(options, message, tmp_path, capsys):
    assert main(["train", "devnet", *options, "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()
