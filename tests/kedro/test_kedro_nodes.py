"""Handed-over data, functions and factories: what a node makes of what the catalog gives it."""

from __future__ import annotations

import pickle
import re
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kedro.framework", reason="pip install 'parallel-zoo[kedro]'")

import numpy as np
import pandas as pd
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from matplotlib.figure import Figure
from matplotlib.image import imread

from zoo.config import LaunchConfig
from zoo.integrations.kedro import functions, hooks, nodes, options, pipelines
from zoo.integrations.kedro.handover import handing_over
from zoo_datasets import load_tabular, read_table
from zoo_datasets.errors import InputError

ROOT = Path(__file__).resolve().parents[2]


def frame(rows: int = 40) -> pd.DataFrame:
    generator = np.random.default_rng(0)
    y = (np.arange(rows) % 5 == 0).astype(int)
    return pd.DataFrame(generator.normal(size=(rows, 3)) + y[:, None], columns=["a", "b", "c"]).assign(y=y)


def handed_over(names: dict[str, str]) -> Any:
    return handing_over(names, LaunchConfig())


# What is handed to the ranks

numbers = st.floats(width=64, allow_nan=False, min_value=-1e30, max_value=1e30)


@given(arrays(np.float64, array_shapes(min_dims=2, max_dims=2, max_side=5), elements=numbers))
def test_an_array_reaches_the_ranks_with_all_its_digits(values: np.ndarray) -> None:
    with handed_over({"data": "mine"}) as handover:
        table = read_table(handover.one("data", values), need_label=False)
    # The reader parses to 64 bits, to within a unit in the last place, and rounds to 32.
    np.testing.assert_allclose(table.x, values.astype(np.float32), rtol=1.2e-7, atol=1e-45)
    assert table.columns == [f"x{i + 1}" for i in range(values.shape[1])]


@pytest.mark.parametrize(
    "labels", [[0, 1], [-1, 1], [False, True], [0.0, 1.0], ["normal", "anomaly"], ["0", "1"]], ids=str
)
def test_a_pair_is_a_table_with_labels_whatever_their_type(labels: list[Any]) -> None:
    x, y = np.arange(6.0).reshape(3, 2), np.array([labels[0], labels[1], labels[0]])
    for features in (x, pd.DataFrame(x, columns=["a", "b"])):
        with handed_over({}) as handover:
            table = read_table(handover.one("data", (features, y)))
        assert table.y is not None
        assert table.y.tolist() == [0, 1, 0]
        assert np.array_equal(table.x, x)


def test_rows_to_train_and_to_evaluate_on_are_a_folder(tmp_path: Path) -> None:
    frame().to_csv(tmp_path / "mine.csv", index=False)
    with handed_over({}) as handover:
        data = load_tabular(handover.pair(tmp_path / "mine.csv", frame(30)))
    assert (len(data.train), len(data.eval)) == (40, 30)
    assert np.array_equal(data.train.x, frame()[["a", "b", "c"]].to_numpy(np.float32))


def test_a_path_stays_where_it_is(tmp_path: Path) -> None:
    with handed_over({}) as handover:
        assert handover.one("data", tmp_path) == tmp_path
        assert handover.one("data", str(tmp_path)) == tmp_path


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (frame().assign(b=[1.0] * 7 + [np.nan] + [1.0] * 32), "hospital.rows, row 8 (line 9), column 'b'"),
        (frame()[["a", "y"]].iloc[:0], "hospital.rows: a header line, but no rows below it"),
        (
            [1, 2, 3],
            "hospital.rows: must be a DataFrame, an array [rows, columns], a pair (X, y) of them or a path",
        ),
        (np.ones(3), "hospital.rows: must be a DataFrame, an array [rows, columns]"),
        ((np.ones((3, 2)), [0, 1]), "hospital.rows: 3 rows need as many labels, not an array (2,)"),
    ],
    ids=["NaN", "empty", "list", "vector", "labels"],
)
def test_bad_data_is_called_what_the_catalog_calls_it(value: Any, message: str) -> None:
    with pytest.raises(InputError) as caught, handed_over({"data": "hospital.rows"}) as handover:
        read_table(handover.one("data", value))
    assert str(caught.value).startswith(message)


def test_bad_rows_of_a_pair_are_told_apart(tmp_path: Path) -> None:
    bad = frame().assign(a=np.inf)
    for rows, name in (((frame(), bad), "rows_e, row 1"), ((bad, frame()), "rows_t, row 1")):
        with (
            pytest.raises(InputError, match=name),
            handed_over({"data": "rows_t", "evaluation": "rows_e"}) as handover,
        ):
            load_tabular(handover.pair(*rows))
    with (
        pytest.raises(InputError, match="rows_t: no such file"),
        handed_over({"data": "rows_t"}) as handover,
    ):
        handover.pair(tmp_path / "gone.csv", frame())


# The functions


def test_a_table_is_split_as_zoo_train_splits_its_file(tmp_path: Path) -> None:
    table = frame(90).rename(columns={"y": "sick"})
    table.to_csv(tmp_path / "table.csv", index=False)
    expected = load_tabular(tmp_path / "table.csv", "sick", seed=5)
    train, evaluation = functions.split(table, {"label": "sick", "seed": 5})
    for ours, theirs in ((train, expected.train), (evaluation, expected.eval)):
        assert np.array_equal(ours[["a", "b", "c"]].to_numpy(np.float32), theirs.x)
        assert np.array_equal(ours["sick"], theirs.y)


def test_a_table_that_cannot_be_split_is_named() -> None:
    with pytest.raises(InputError, match="beds: no label column 'sick'"):
        functions.split(frame(), {"label": "sick"}, names={"table": "beds"})
    with pytest.raises(InputError, match="beds"):
        functions.split(frame().assign(y=0), names={"table": "beds"})
    with pytest.raises(InputError, match=r"; name the label with key label$"):
        functions.split(frame(), {"label": "sick"})
    with pytest.raises(
        InputError, match=r"^beds: must be a DataFrame, as a pandas\.CSVDataset loads, not str$"
    ):
        functions.split("a,b\n1,2\n", names={"table": "beds"})
    with pytest.raises(InputError, match="ddpm trains on no labelled table"):
        functions.split(frame(), model="ddpm")


def test_a_table_is_split_by_a_column_whose_name_is_no_text() -> None:
    table = frame(90).rename(columns={"y": 5})
    rows = functions.split(table, {"label": "5", "seed": 5})
    expected = functions.split(frame(90), {"seed": 5})
    assert [part.index.tolist() for part in rows] == [part.index.tolist() for part in expected]


def test_a_model_of_another_type_is_named_by_its_dataset() -> None:
    names = {"model": "mine", "rows": "scores"}
    said = "^mine: must be what a train node or a CheckpointDataset gives, not str$"
    calls = (
        lambda: functions.evaluate("text", frame(), names=names),
        lambda: functions.predict("text", frame(), names=names),
        lambda: functions.sample("text", names=names),
        lambda: functions.report("text", {}, frame(), files=(), names=names),
    )
    for call in calls:
        with pytest.raises(InputError, match=said):
            call()
    assert nodes.report_node(outputs={}, rows="scores").func.keywords["names"]["rows"] == "scores"


def test_rows_to_evaluate_on_need_rows_to_train_on() -> None:
    with pytest.raises(InputError, match="give the node both"):
        functions.train(None, frame())


def test_a_plot_saves_as_the_image_it_was(tmp_path: Path) -> None:
    drawn = Figure(figsize=(3.1, 2.3), dpi=150)
    drawn.subplots().plot([1, 3, 2])
    drawn.savefig(tmp_path / "drawn.png")
    functions._artifact(tmp_path / "drawn.png").savefig(tmp_path / "saved.png")
    assert np.array_equal(imread(tmp_path / "saved.png"), imread(tmp_path / "drawn.png"))


# The factories


def test_nodes_pickle_and_carry_the_names_of_their_functions() -> None:
    made = [
        nodes.train_node("devnet", parallel="ddp", parameters="params:mine"),
        nodes.evaluate_node(),
        nodes.predict_node(),
        nodes.sample_node(),
        nodes.report_node(outputs={"report.md": "text"}),
        nodes.split_node(),
    ]
    names = ["train", "evaluate", "predict", "sample", "report", "split"]
    assert [node.name for node in made] == names
    assert [node.func.__name__ for node in made] == names
    for node in made:
        again = pickle.loads(ForkingPickler.dumps(node))  # as ParallelRunner does
        assert (again.inputs, again.outputs, again.func.__name__) == (node.inputs, node.outputs, node.name)
    assert made[0].inputs == ["training_rows", "params:mine", "params:zoo"]
    assert made[0].func.keywords["options"] == {"parallel": "ddp"}


def test_the_pipeline_goes_from_a_table_to_predictions() -> None:
    pipeline = pipelines.anomaly_detection()
    assert pipeline.inputs() == {"table", "new_rows", "params:training", "params:zoo"}
    assert pipeline.outputs() == {
        "predictions",
        "report",
        "thresholds",
        "score_plot",
        "precision_recall_plot",
    }
    assert [node.name for node in pipeline.nodes] == ["split", "train", "evaluate", "predict", "report"]


def test_namespaces_keep_two_pipelines_apart() -> None:
    both = pipelines.anomaly_detection(namespace="east") + pipelines.anomaly_detection(namespace="west.north")
    assert len(both.nodes) == 10
    assert {"east.table", "params:west.north.training", "params:east.zoo"} <= both.inputs()


def test_the_pages_code_runs() -> None:
    page = (ROOT / "docs/kedro.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    held = re.search(r"It may hold (.*?)\.", page, re.DOTALL)
    assert held is not None
    assert tuple(re.findall(r"`(\w+)`", held[1])) == options.DEFAULTS
    names: dict[str, Any] = {"anomaly_detection": pipelines.anomaly_detection}
    for block in blocks[:2]:
        exec(block, names)
    default = names["register_pipelines"]()["__default__"]
    assert default.inputs() == {"training_rows", "evaluation_rows", "params:training", "params:zoo"}
    assert isinstance(names["HOOKS"][0], hooks.ZooHooks)
    imports, call = blocks[2].split("\n\n")
    exec(imports, names)
    hospital = eval(call, names)
    assert hospital.inputs() == {
        "patients",
        "thyroid.new_rows",
        "params:thyroid.training",
        "params:thyroid.zoo",
    }
    assert "suspects" in hospital.outputs()
