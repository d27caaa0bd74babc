"""The example project under Kedro's three runners: the same numbers as `zoo train`, each node's work done once."""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kedro.framework", reason="pip install 'parallel-zoo[kedro]'")
pytest.importorskip("kedro_datasets", reason="pip install kedro-datasets")

import numpy as np
import pandas as pd

import zoo
from zoo.commands import main

ROOT = Path(__file__).resolve().parents[2]
EPOCHS = 3
RUNNERS = ["SequentialRunner", pytest.param("ThreadRunner", marks=pytest.mark.slow), "ParallelRunner"]

COUNTING = """

class _Counting:
    @hook_impl
    def before_node_run(self, node):
        with open(Path(__file__).parents[2] / "nodes.txt", "a") as file:
            file.write(f"{node.name}\\n")


HOOKS = (*HOOKS, _Counting())
"""


def zoo_json(*argv: object) -> Any:
    with redirect_stdout(out := StringIO()):
        assert main([*map(str, argv), "--json"]) == 0
    return json.loads(out.getvalue().splitlines()[-1])


def make_project(folder: Path) -> Path:
    """A copy of the example that notes each node it runs."""
    kept = shutil.ignore_patterns("runs", "__pycache__", "0[2-8]_*")
    project = Path(shutil.copytree(ROOT / "examples" / "kedro-anomaly", folder, ignore=kept))
    settings = project / "src" / "kedro_anomaly" / "settings.py"
    head = "from pathlib import Path\n\nfrom kedro.framework.hooks import hook_impl\n"
    text = settings.read_text().replace("from zoo.", f"{head}from zoo.", 1)
    settings.write_text(text + COUNTING)
    return project


@pytest.fixture(scope="module")
def project_of(tmp_path_factory: pytest.TempPathFactory, kedro: Any) -> Callable[[str], Path]:
    """A project that a runner has run: SequentialRunner all of it, the others up to the metrics."""
    folder = tmp_path_factory.mktemp("example")

    @functools.cache
    def project_of(runner: str) -> Path:
        project = make_project(folder / runner)
        some = () if runner == "SequentialRunner" else ("--to-nodes", "evaluate")
        said = kedro(project, "run", "--runner", runner, "--params", f"training.epochs={EPOCHS}", *some)
        (project / "output.txt").write_text(said)
        return project

    return project_of


@pytest.fixture(scope="module")
def whole(project_of: Callable[[str], Path]) -> Path:
    return project_of("SequentialRunner")


@pytest.fixture(scope="module")
def trained_by_zoo(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """`zoo train` on the table that the project prepared, with the project's options."""
    options = f"--label malignant --seed 7 --epochs {EPOCHS} --parallel ddp --nproc 2"
    table = whole / "data/03_primary/table.csv"
    out = tmp_path_factory.mktemp("zoo") / "run"
    return zoo_json("train", "devnet", "--data", table, *options.split(), "--out", out)


def version(project: Path, dataset: str) -> Path:
    """The one version of a dataset that is there."""
    (found,) = (project / "data" / dataset).glob("*/*")
    return found


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_runner_gives_the_metrics_of_zoo_train_and_trains_once(
    runner: str, project_of: Callable[[str], Path], trained_by_zoo: dict[str, Any]
) -> None:
    project = project_of(runner)
    metrics = json.loads(version(project, "08_reporting/metrics.json").read_text())
    assert metrics == pytest.approx(trained_by_zoo["metrics"], rel=1e-6)
    assert (project / "nodes.txt").read_text().split().count("train") == 1
    (run,) = (project / "runs/devnet").iterdir()
    assert "devnet: ddp on 2 ranks" in (run / "log.txt").read_text()
    ours, theirs = (
        [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for folder in (run, Path(trained_by_zoo["run"]))
    )
    assert len(ours) == len(theirs) == 20 * EPOCHS + 1
    for one, other in zip(ours, theirs, strict=True):
        assert one == pytest.approx(other, rel=1e-5)


@pytest.mark.parametrize("runner", RUNNERS)
def test_progress_and_metrics_are_in_kedros_log_under_the_datasets_names(
    runner: str, project_of: Callable[[str], Path]
) -> None:
    text = (project_of(runner) / "output.txt").read_text()
    (count,) = (line for line in text.splitlines() if "labelled anomalies" in line)
    assert "INFO" in count
    assert "train: training_rows: 253 rows, 13 labelled anomalies" in count
    assert f"train: step {20 * EPOCHS}/{20 * EPOCHS}" in text
    assert re.search(r"evaluate: .*\bauc_roc 0\.\d+", text)
    for ours in ("type hints", "'partial'", "Replacing dataset"):  # what Kedro would warn of
        assert ours not in text
    assert "zoo-kedro-" not in text.replace("zoo-kedro-anomaly", "")  # no temporary file's name


def test_the_versioned_checkpoint_is_one_for_zoo_predict(whole: Path, tmp_path: Path) -> None:
    checkpoint = version(whole, "06_models/trained_model")
    zoo_json(
        "predict",
        checkpoint,
        "--input",
        whole / "data/03_primary/new_rows.csv",
        "--output",
        tmp_path / "p.csv",
    )
    ours, theirs = (
        pd.read_csv(whole / "data/07_model_output/predictions.csv"),
        pd.read_csv(tmp_path / "p.csv"),
    )
    assert len(ours) == 60
    pd.testing.assert_frame_equal(ours, theirs, rtol=1e-6)
    assert type(zoo.load(checkpoint)).__name__ == "DevNet"


def test_another_run_loads_the_version_it_names(whole: Path, tmp_path: Path, kedro: Any) -> None:
    project = Path(shutil.copytree(whole, tmp_path / "project"))
    predictions = project / "data/07_model_output/predictions.csv"
    before = predictions.read_bytes()
    predictions.unlink()
    name = version(project, "06_models/trained_model").parent.name
    kedro(project, "run", "--pipelines", "scoring", "--load-versions", f"trained_model:{name}")
    assert predictions.read_bytes() == before


def test_the_report_is_made_of_ordinary_artifacts(whole: Path) -> None:
    from matplotlib.image import imread

    folder = whole / "data/08_reporting"
    (run,) = (whole / "runs/devnet").iterdir()
    metrics = json.loads(version(whole, "08_reporting/metrics.json").read_text())
    assert f"| AUC-ROC | {metrics['auc_roc']:.4f} |" in (folder / "report.md").read_text()
    thresholds = pd.read_csv(folder / "thresholds.csv")
    assert thresholds.confidence.tolist() == [0.8, 0.95, 0.99, 0.99999]
    assert thresholds.recall[1] == pytest.approx(metrics["recall_at_95"])
    for name in ("scores.png", "precision_recall.png"):
        drawn, by_training = imread(folder / name), imread(run / "report" / name)
        assert drawn.shape == by_training.shape
        assert np.mean(drawn != by_training) < 0.01


def test_kedro_viz_shows_metrics_and_plots(whole: Path) -> None:
    pytest.importorskip("kedro_viz", reason="pip install kedro-viz")
    code = """
import json
from pathlib import Path
from kedro_viz.data_access import data_access_manager
from kedro_viz.models.flowchart.node_metadata import DataNodeMetadata
from kedro_viz.models.flowchart.nodes import DataNode
from kedro_viz.server import load_and_populate_data

load_and_populate_data(Path.cwd())
nodes = [node for node in data_access_manager.nodes.as_list() if isinstance(node, DataNode)]
shown = {node.name: DataNodeMetadata(data_node=node) for node in nodes}
print()
print(json.dumps({name: [data.preview_type, data.preview] for name, data in shown.items()}))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=whole, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout.splitlines()[-1])
    kind, metrics = shown["metrics"]
    assert kind == "JSONPreview"
    assert json.loads(metrics) == json.loads(version(whole, "08_reporting/metrics.json").read_text())
    assert shown["thresholds"][0] == shown["scores"][0] == "TablePreview"
    for plot in ("score_plot", "precision_recall_plot"):
        kind, image = shown[plot]
        assert kind == "ImagePreview"
        assert image.startswith("iVBORw0KGgo")  # base64 of a PNG's signature
