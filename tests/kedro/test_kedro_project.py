"""A project made by `kedro new`: node functions of one's own, two trainings at once, ranks and parameters that fail."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kedro.framework", reason="pip install 'parallel-zoo[kedro]'")

import pandas as pd

ROOT = Path(__file__).resolve().parents[2]

REGISTRY = '''
"""Trainings of the toy model."""

import os
from dataclasses import replace

from kedro.pipeline import Pipeline, node, pipeline
from toy_config import MODEL

from zoo.integrations.kedro import functions, sample_node, train_node
from zoo.integrations.kedro.pipelines import anomaly_detection
from zoo.registry import register

register(replace(MODEL, name="broken", trainer="made_by_kedro.broken:BrokenTrainer"))


def train_and_note(parameters, zoo):
    with open("bodies.txt", "a") as file:
        file.write(f"{os.getpid()}\\n")
    model = functions.train(parameters=parameters, zoo=zoo, model="toy", label="noted")
    return {"step": model.checkpoint.step, "kind": model.config.kind}


def register_pipelines():
    noted = node(train_and_note, ["params:first", "params:zoo"], "noted", name="noted")
    second = pipeline(
        [
            train_node("toy", data=None, parameters="params:training", rows=9),
            sample_node(n=2, parallel="single", nproc=None),
        ],
        namespace="second",
    )
    broken = train_node("broken", data=None, parameters="params:first")
    endless = train_node("toy", data=None, name="endless", steps=10**9, out="endless")
    hospitals = anomaly_detection(namespace="east") + pipeline(
        anomaly_detection(),
        namespace="west",
        inputs={"table": "patients"},
        outputs={"predictions": "suspects"},
    )
    return {
        "hospitals": hospitals,
        "__default__": Pipeline([noted]) + second,
        "broken": Pipeline([broken]),
        "endless": Pipeline([endless]),
    }
'''

BROKEN = """
from toy_trainer import ToyTrainer


class BrokenTrainer(ToyTrainer):
    def step(self, batch):
        if self.p.rank == 1:
            raise ZeroDivisionError("nothing to divide by")
        return super().step(batch)
"""

CATALOG = """
noted:
  type: json.JSONDataset
  filepath: data/noted.json
second.trained_model:
  type: zoo.integrations.kedro.datasets.CheckpointDataset
  filepath: data/second
second.samples:
  type: pandas.CSVDataset
  filepath: data/samples.csv
"{hospital}.new_rows":
  type: pandas.CSVDataset
  filepath: NEW_BIOPSIES
east.table: &biopsies
  type: pandas.CSVDataset
  filepath: BIOPSIES
patients: *biopsies
east.predictions:
  type: pandas.CSVDataset
  filepath: data/predictions.csv
suspects:
  type: pandas.CSVDataset
  filepath: data/suspects.csv
"""

PARAMETERS = """
first:
  kind: flat
  steps: 4
second:
  training:
    steps: 6
    batch-size: 3
  zoo:
    precision: fp64
east:
  training: &training
    label: malignant
    epochs: 1
    seed: 7
    precision: fp64
  zoo:
    parallel: single
    nproc: null
west:
  training: *training
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, kedro: Any) -> Path:
    folder = tmp_path_factory.mktemp("new")
    kedro(folder, "new", "--name", "Made by Kedro", "--tools", "none", "--example", "n", "--telemetry", "no")
    project = folder / "made-by-kedro"
    package = project / "src" / "made_by_kedro"
    (package / "pipeline_registry.py").write_text(REGISTRY)
    (package / "broken.py").write_text(BROKEN)
    with (package / "settings.py").open("a") as file:
        file.write("\nfrom zoo.integrations.kedro import ZooHooks\n\nHOOKS = (ZooHooks(),)\n")
    raw = ROOT / "examples/kedro-anomaly/data/01_raw"
    catalog = CATALOG.replace("NEW_BIOPSIES", str(raw / "new_biopsies.csv"))
    (project / "conf/base/catalog.yml").write_text(catalog.replace("BIOPSIES", str(raw / "biopsies.csv")))
    (project / "conf/base/parameters.yml").write_text(PARAMETERS)
    (project / "conf/base/zoo.yml").write_text("parallel: ddp\nnproc: 2\n")
    (project / "conf/local/zoo.yml").write_text("parallel: fsdp\n")
    return project


@pytest.mark.parametrize(
    ("runner", "nodes", "context"),
    [
        ("ThreadRunner", "noted,second.train,second.sample", "fork"),
        pytest.param("ParallelRunner", "noted,second.train", "spawn", marks=pytest.mark.slow),
    ],
)
def test_two_trainings_at_once_both_finish_and_each_body_ran_once(
    runner: str, nodes: str, context: str, project: Path, kedro: Any
) -> None:
    pytest.importorskip("kedro_datasets", reason="pip install kedro-datasets")
    bodies, runs = project / "bodies.txt", project / "runs/toy"
    bodies.unlink(missing_ok=True)
    shutil.rmtree(runs, ignore_errors=True)
    kedro(project, "run", "--runner", runner, "--nodes", nodes, KEDRO_MP_CONTEXT=context)
    assert len(bodies.read_text().split()) == 1
    noted = json.loads((project / "data/noted.json").read_text())
    assert (noted["step"], noted["kind"]) == (4, "flat")
    checkpoint = json.loads((project / "data/second/manifest.json").read_text())["extra"]
    assert (checkpoint["step"], checkpoint["config"]["rows"]) == (6, 9)
    # conf/local/zoo.yml over conf/base, and the namespace's own `zoo` over both
    logs = "".join((run / "log.txt").read_text() for run in runs.iterdir())
    ways = sorted(re.findall("toy: .* ranks, fp..", logs))
    assert ways == ["toy: fsdp on 2 ranks, fp32", "toy: fsdp on 2 ranks, fp64"]
    if "second.sample" in nodes:
        assert len((project / "data/samples.csv").read_text().splitlines()) == 3


def test_a_failing_rank_fails_the_node_with_its_error(project: Path, kedro: Any) -> None:
    said = kedro(project, "run", "--pipelines", "broken", "--env", "base", code=1)
    assert "ZeroDivisionError: nothing to divide by" in said
    assert "Raised on rank 1 of 2" in said
    assert "broken.py" in said  # the rank's traceback


def test_a_wrong_parameter_is_named_by_its_key(project: Path, kedro: Any) -> None:
    said = kedro(project, "run", "--pipelines", "broken", "--params", "first.stepps=5", code=1)
    assert "params:first: unknown key 'stepps'; did you mean steps?" in said


@pytest.mark.slow
def test_a_wrong_default_stops_the_run_before_its_first_node(project: Path, kedro: Any) -> None:
    (project / "conf/wrong").mkdir()
    (project / "conf/wrong/zoo.yml").write_text("precison: fp64\n")
    said = kedro(project, "run", "--env", "wrong", code=1)
    assert "zoo.yml: unknown key 'precison'; did you mean precision?" in said
    assert "Running node" not in said


def processes_of(mark: str) -> list[int]:
    """Those that were started with the mark in their environment, or by such."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (folder / "environ").read_bytes() and folder.name != str(os.getpid()):
                found.append(int(folder.name))
    return found


@pytest.mark.parametrize(
    "runner",
    [
        pytest.param("SequentialRunner", marks=pytest.mark.slow),
        "ThreadRunner",
        pytest.param("ParallelRunner", marks=pytest.mark.slow),
    ],
)
def test_ctrl_c_saves_and_leaves_no_process(runner: str, project: Path, start_kedro: Any) -> None:
    run, mark = project / "endless", f"ZOO_TEST_MARK={runner}-{os.getpid()}"
    shutil.rmtree(run, ignore_errors=True)
    process = start_kedro(
        project, "run", "--runner", runner, "--pipelines", "endless", **dict([mark.split("=")])
    )
    while not ((run / "metrics.jsonl").exists() and (run / "metrics.jsonl").read_text()):
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.1)
    assert len(processes_of(mark)) >= 4  # Kedro, the node's process, two ranks
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    said, _ = process.communicate(timeout=240)
    assert process.returncode not in (0, None), said
    assert processes_of(mark) == []
    steps = len((run / "metrics.jsonl").read_text().splitlines())
    assert f"stopped by SIG{'TERM' if runner != 'ThreadRunner' else 'INT'} after step " in said
    (checkpoint,) = (run / "checkpoints").iterdir()
    assert (checkpoint / "manifest.json").exists()
    assert int(checkpoint.name.removeprefix("step-")) == steps > 0


@pytest.mark.slow
def test_a_pipeline_twice_in_namespaces_of_its_own(project: Path, kedro: Any) -> None:
    pytest.importorskip("kedro_datasets", reason="pip install kedro-datasets")
    shutil.rmtree(project / "runs", ignore_errors=True)
    nodes = "east.predict,west.predict"
    kedro(project, "run", "--pipelines", "hospitals", "--runner", "ThreadRunner", "--to-nodes", nodes)
    logs = [(run / "log.txt").read_text() for run in (project / "runs/devnet").iterdir()]
    ways = sorted(re.findall("devnet: .* ranks?, fp..", "".join(logs)))
    assert ways == ["devnet: fsdp on 2 ranks, fp64", "devnet: single on 1 rank, fp64"]
    ours, theirs = (pd.read_csv(project / f"data/{name}.csv") for name in ("predictions", "suspects"))
    assert len(ours) == 60
    pd.testing.assert_frame_equal(ours, theirs, rtol=1e-8)  # how the work is spread makes no difference
