"""The hooks: the defaults of zoo.yml in every session and namespace."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kedro.framework", reason="pip install 'parallel-zoo[kedro]'")

from kedro.framework.session import KedroSession
from kedro.framework.startup import bootstrap_project
from kedro.pipeline import Pipeline

from zoo.integrations.kedro import hooks, nodes, pipelines
from zoo_datasets.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
KEDROS_WARNINGS = pytest.mark.filterwarnings("ignore")  # what Kedro warns itself of is not ours to mend


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    kept = shutil.ignore_patterns("runs", "__pycache__", "0[2-8]_*")
    folder = tmp_path_factory.mktemp("conf") / "project"
    return Path(shutil.copytree(ROOT / "examples" / "kedro-anomaly", folder, ignore=kept))


def defaults_in(project: Path, pipeline: Pipeline, **options: Any) -> dict[str, Any]:
    """What each ``params:...zoo`` of a pipeline is in a session of the project."""
    bootstrap_project(project)
    ours = hooks.ZooHooks()
    with KedroSession.create(project, save_on_close=False, **options) as session:
        context = session.load_context()
        ours.after_context_created(context)
        catalog = context.catalog
    for _ in range(2):  # it may be registered twice
        ours.before_pipeline_run(pipeline, catalog)
    return {name: catalog.load(name) for name in pipeline.inputs() if name.endswith("zoo")}


@KEDROS_WARNINGS
def test_the_environment_decides_the_defaults(project: Path) -> None:
    pipeline = Pipeline([nodes.train_node()])
    base = {"parallel": "ddp", "nproc": 2, "precision": "fp32"}
    assert defaults_in(project, pipeline) == {"params:zoo": base}
    alone = {"parallel": "single", "nproc": None, "precision": "fp32"}
    assert defaults_in(project, pipeline, env="single") == {"params:zoo": alone}


@KEDROS_WARNINGS
def test_parameters_overrule_the_defaults_and_namespaces_have_their_own(project: Path) -> None:
    pipeline = pipelines.anomaly_detection(namespace="east") + pipelines.anomaly_detection()
    given = {"zoo": {"nproc": 3}, "east": {"zoo": {"parallel": "fsdp"}}}
    found = defaults_in(project, pipeline, runtime_params=given)
    assert found == {
        "params:zoo": {"parallel": "ddp", "nproc": 3, "precision": "fp32"},
        "params:east.zoo": {"parallel": "fsdp", "nproc": 2, "precision": "fp32"},
    }


@KEDROS_WARNINGS
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"zoo": {"nproc": 0}}, "params:zoo, key nproc: must be at least 1, not 0"),
        ({"zoo": {"nprok": 2}}, "params:zoo: unknown key 'nprok'; did you mean nproc?"),
        ({"zoo": 3}, "params:zoo: must hold options by name, not '3'"),
        ({"zoo": {}, "east": {"zoo": {"nproc": 0}}}, "params:east.zoo, key nproc: must be at least 1, not 0"),
    ],
)
def test_defaults_that_are_no_files_are_not_called_so(given: Any, message: str, project: Path) -> None:
    pipeline = Pipeline([nodes.train_node()]) + pipelines.anomaly_detection(namespace="east")
    with pytest.raises(InputError) as caught:
        defaults_in(project, pipeline, runtime_params=given)
    assert str(caught.value) == message


@KEDROS_WARNINGS
def test_without_a_zoo_yml_there_are_no_defaults(project: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(project, tmp_path / "project"))
    for file in copy.glob("conf/*/zoo.yml"):
        file.unlink()
    assert defaults_in(copy, Pipeline([nodes.train_node()])) == {"params:zoo": {}}


@pytest.mark.parametrize("also_in_settings", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_entry_point_registers_the_hooks(also_in_settings: bool, project: Path, tmp_path: Path) -> None:
    info = tmp_path / "site/parallel_zoo_hooks-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: parallel-zoo-hooks\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[kedro.hooks]\nzoo = zoo.integrations.kedro.hooks:hooks\n")
    copy = Path(shutil.copytree(project, tmp_path / "project"))
    if not also_in_settings:
        (copy / "src/kedro_anomaly/settings.py").write_text("")
    (copy / "conf/base/zoo.yml").write_text("parallell: ddp\n")
    code = (
        "from pathlib import Path\n"
        "from kedro.framework.session import KedroSession\n"
        "from kedro.framework.startup import bootstrap_project\n"
        "bootstrap_project(Path.cwd())\n"
        "KedroSession.create().load_context()\n"
    )
    path = os.pathsep.join(map(str, [info.parent, ROOT, ROOT / "datasets"]))
    environment = os.environ | {"PYTHONPATH": path, "DO_NOT_TRACK": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=copy, env=environment, capture_output=True, text=True, check=False
    )
    last = done.stderr.strip().splitlines()[-1]
    assert last.endswith("InputError: zoo.yml: unknown key 'parallell'; did you mean parallel?")
