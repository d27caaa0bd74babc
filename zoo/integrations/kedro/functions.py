"""What the zoo's nodes run. Each works in a process of its own, once, and gives back plain values.

They are ordinary functions: use them in a ``kedro.pipeline.node`` of your own, or in a node's function. ``names``
says what the catalog calls an argument, for messages; ``label`` begins the lines of the log.
"""

from __future__ import annotations

import dataclasses
import io
import logging
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from zoo import registry
from zoo.integrations.kedro import process, work
from zoo.integrations.kedro.handover import handing_over
from zoo.integrations.kedro.options import launch_config, sample_config, train_config
from zoo.integrations.kedro.trained import TrainedModel
from zoo.picture import Picture
from zoo.run import shown_numbers
from zoo_datasets.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from numpy import ndarray
    from pandas import DataFrame
else:  # Kedro resolves the type hints of the functions of nodes, which imports none of them
    DataFrame = Figure = ndarray = Any

log = logging.getLogger(__name__)

Names = Mapping[str, str]
Options = Mapping[str, Any]

_NONE: dict[str, Any] = {}

_EVAL_FRACTION = 0.2  # that of zoo_datasets.load_tabular


def train(
    data: Any = None,
    evaluation: Any = None,
    parameters: Options = _NONE,
    zoo: Options = _NONE,
    *,
    model: str = "devnet",
    options: Options = _NONE,
    names: Names = _NONE,
    label: str = "train",
) -> TrainedModel:
    """Trains a model as ``zoo train`` does, leaving a run directory (runs/MODEL/DATE-TIME unless ``out`` is given).

    Args:
        data: rows to train on: a DataFrame, an array [rows, columns], a pair (X, y), or a path or name as --data;
            None for the option ``data``. Without ``evaluation`` the zoo splits a table itself.
        evaluation: rows to evaluate on.
        parameters: the options of ``zoo train MODEL``, by key.
        zoo: defaults, of conf/zoo.yml.
        options: between the two.

    Raises:
        InputError: options or data that do not fit, named as the catalog names them.
        ParallelError: the strategy cannot do what is asked.
        Exception: what the first failing rank raised, with its traceback.
    """
    entry = registry.get(model)
    source = names.get("parameters", "parameters")
    config = train_config(entry, zoo, options, parameters, source, has_data=data is not None)
    if evaluation is not None and data is None:
        raise InputError("rows to evaluate on need rows to train on: give the node both")
    with handing_over(names, config) as handover:
        if evaluation is not None:
            config = dataclasses.replace(config, data=str(handover.pair(data, evaluation)))
        elif data is not None:
            path = data if isinstance(data, str) else handover.one("data", data)
            config = dataclasses.replace(config, data=str(path))
        result = process.call(label, work.train, entry, config, reworded=handover.reworded)
    if result["stopped"]:
        raise RuntimeError(
            f"{label}: stopped by {result['stopped']} after step {result['steps']} of {result['run']}"
        )
    return TrainedModel(Path(result["checkpoint"]).absolute())


def evaluate(
    model: TrainedModel,
    data: Any = None,
    parameters: Options = _NONE,
    zoo: Options = _NONE,
    *,
    options: Options = _NONE,
    names: Names = _NONE,
    label: str = "evaluate",
) -> tuple[dict[str, float], DataFrame]:
    """Measures a model as ``zoo evaluate`` does.

    Args:
        data: as in :func:`train`, or None for the evaluation rows of the training's own data.

    Returns:
        the metrics by name, and the rows they were computed from, such as score and label.
    """
    _check_model(model, names)
    config = launch_config(zoo, options, parameters, names.get("parameters", "parameters"))
    with handing_over(names, config, model.config) as handover:
        path = data if data is None or isinstance(data, str) else str(handover.one("data", data))
        metrics, rows = process.call(
            label, work.evaluate, model.checkpoint, config, path, reworded=handover.reworded
        )
    log.info("%s: %s", label, shown_numbers(metrics))
    return metrics, _table(rows)


def predict(
    model: TrainedModel,
    data: Any,
    parameters: Options = _NONE,
    zoo: Options = _NONE,
    *,
    options: Options = _NONE,
    names: Names = _NONE,
    label: str = "predict",
) -> DataFrame:
    """A model's answer to every row, as ``zoo predict`` gives it; with the index of ``data``, if that has one.

    Args:
        data: a DataFrame, an array [rows, columns] or a path.
    """
    _check_model(model, names)
    config = launch_config(zoo, options, parameters, names.get("parameters", "parameters"))
    with handing_over(names, config, model.config) as handover:
        path = handover.one("data", data)
        rows = process.call(label, work.predict, model.checkpoint, config, path, reworded=handover.reworded)
    return _table(rows, getattr(data, "index", None))


def sample(
    model: TrainedModel,
    parameters: Options = _NONE,
    zoo: Options = _NONE,
    *,
    options: Options = _NONE,
    names: Names = _NONE,
    label: str = "sample",
) -> DataFrame | Figure:
    """New samples as ``zoo sample`` draws them: a table, or a picture where the model draws pictures.

    Args:
        parameters: the options of ``zoo sample``, such as n and seed.
    """
    _check_model(model, names)
    entry, source = model.checkpoint.entry, names.get("parameters", "parameters")
    config = sample_config(entry, zoo, options, parameters, source, model.folder)
    with handing_over(names, config, model.config) as handover:
        samples = process.call(label, work.sample, model.checkpoint, config, reworded=handover.reworded)
    return _figure(samples.pixels) if isinstance(samples, Picture) else _table(samples)


def report(
    model: TrainedModel,
    metrics: Mapping[str, float],
    rows: DataFrame,
    *,
    files: Sequence[str],
    names: Names = _NONE,
    label: str = "report",
) -> dict[str, str | DataFrame | Figure]:
    """The plots and tables of an evaluation, as ordinary values for ordinary datasets.

    Args:
        metrics, rows: what :func:`evaluate` gave.
        files: those of the model's report that are wanted.

    Returns:
        by file: a DataFrame for .csv, a matplotlib Figure for .png, text for anything else.

    Raises:
        InputError: the model's report has no such file, or a value is of another type.
    """
    _check_model(model, names)
    if not isinstance(metrics, Mapping):
        _refuse("metrics", metrics, names, "numbers by name, as a json.JSONDataset loads")
    _check_frame("rows", rows, names)
    with tempfile.TemporaryDirectory(prefix="zoo-kedro-") as name:
        folder = Path(name)
        columns = {str(column): rows[column].tolist() for column in rows}
        process.call(label, work.report, model.checkpoint, dict(metrics), columns, folder)
        drawn = sorted(path.name for path in folder.iterdir())
        for file in files:
            if file not in drawn:
                raise InputError(
                    f"{label}: the report of {model.name} has no {file}; it has {', '.join(drawn) or 'no files'}"
                )
        return {file: _artifact(folder / file) for file in files}


def split(
    table: DataFrame,
    parameters: Options = _NONE,
    *,
    model: str = "devnet",
    options: Options = _NONE,
    names: Names = _NONE,
) -> tuple[DataFrame, DataFrame]:
    """A labelled table's rows for training and for evaluation: those that ``zoo train`` would take from its file.

    Args:
        parameters: the training's, of which ``label`` and ``seed`` are used.

    Raises:
        InputError: no DataFrame, no label column, or too few rows of a class.
    """
    import numpy as np

    from zoo_datasets import binary_labels, require_both_classes, stratified_split
    from zoo_datasets.labels import label_column

    source = names.get("table", "table")
    entry = registry.get(model)
    config = train_config(entry, {}, options, parameters, names.get("parameters", "parameters"), True)
    if not hasattr(config, "label"):
        raise InputError(f"{model} trains on no labelled table, so there is none to split")
    _check_frame("table", table, names)
    columns = [str(name) for name in table.columns]
    with handing_over(names, config):
        column = label_column(columns, config.label, source, required=True)
    assert column is not None
    y = binary_labels(np.asarray(table.iloc[:, columns.index(column)], dtype=object), source, column)
    require_both_classes(y, source)
    train_rows, evaluation_rows = stratified_split(y, _EVAL_FRACTION, config.seed, source)
    return table.iloc[train_rows], table.iloc[evaluation_rows]


def _check_model(value: object, names: Names) -> None:
    if not isinstance(value, TrainedModel):
        _refuse("model", value, names, "what a train node or a CheckpointDataset gives")


def _check_frame(argument: str, value: object, names: Names) -> None:
    import pandas as pd

    if not isinstance(value, pd.DataFrame):
        _refuse(argument, value, names, "a DataFrame, as a pandas.CSVDataset loads")


def _refuse(argument: str, value: object, names: Names, wanted: str) -> NoReturn:
    """Raises an error that names the argument by what the catalog calls it, if that is known."""
    raise InputError(f"{names.get(argument, argument)}: must be {wanted}, not {type(value).__name__}")


def _table(rows: Mapping[str, Any], index: Any = None) -> DataFrame:
    import pandas as pd

    return pd.DataFrame(dict(rows), index=index)


def _artifact(path: Path) -> str | DataFrame | Figure:
    if path.suffix == ".csv":
        import pandas as pd

        return pd.read_csv(path, float_precision="round_trip")
    if path.suffix != ".png":
        return path.read_text(encoding="utf-8")
    from matplotlib.image import imread

    return _figure(imread(io.BytesIO(path.read_bytes()), format="png"))


def _figure(pixels: ndarray) -> Figure:
    """A figure that saves as the picture that it is made from, pixel by pixel."""
    from matplotlib.figure import Figure

    height, width = pixels.shape[:2]
    figure = Figure(figsize=(width / 100, height / 100), dpi=100)
    figure.figimage(pixels)
    return figure
