"""Factories of nodes. Names are those of the catalog; ``kedro.pipeline`` puts them into a namespace as any others.

Nodes that work on ranks have the input ``params:zoo``, the defaults of conf/zoo.yml, which the zoo's hooks put into
the catalog.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kedro.pipeline import node
from kedro.pipeline.node import Node

from zoo.integrations.kedro import functions

DEFAULTS_INPUT = "params:zoo"


def train_node(
    model: str = "devnet",
    *,
    data: str | None = "training_rows",
    evaluation: str | None = None,
    output: str = "trained_model",
    parameters: str | None = None,
    name: str = "train",
    tags: str | Sequence[str] | None = None,
    **options: Any,
) -> Node:
    """A node that trains a model and gives a :class:`~zoo.integrations.kedro.TrainedModel`.

    ``train_node("devnet", parallel="ddp", nproc=2, parameters="params:training")``

    Args:
        model: as in ``zoo train MODEL``.
        data: dataset of rows to train on; None where the option ``data`` names them.
        evaluation: dataset of rows to evaluate on.
        output: dataset for the model, such as a ``CheckpointDataset``.
        parameters: dataset of options, such as "params:training"; they overrule ``options``.
        options: of ``zoo train MODEL``; they overrule conf/zoo.yml.
    """
    inputs = {"data": data, "evaluation": evaluation, "parameters": parameters}
    return _node(functions.train, inputs, output, name, tags, model=model, options=options)


def evaluate_node(
    model: str = "trained_model",
    *,
    data: str | None = "evaluation_rows",
    metrics: str = "metrics",
    rows: str = "scores",
    parameters: str | None = None,
    name: str = "evaluate",
    tags: str | Sequence[str] | None = None,
    **options: Any,
) -> Node:
    """A node that measures a model: its metrics by name, and the table of rows they were computed from.

    Args:
        model: dataset of the model. data: dataset of rows; None for those of the training's own data.
        metrics, rows: datasets for the two.
        parameters, options: ``parallel``, ``nproc`` and ``tp``, as in :func:`train_node`.
    """
    inputs = {"model": model, "data": data, "parameters": parameters}
    return _node(functions.evaluate, inputs, [metrics, rows], name, tags, options=options)


def predict_node(
    model: str = "trained_model",
    *,
    data: str = "new_rows",
    output: str = "predictions",
    parameters: str | None = None,
    name: str = "predict",
    tags: str | Sequence[str] | None = None,
    **options: Any,
) -> Node:
    """A node that answers every row with a model: a DataFrame.

    Args:
        model: dataset of the model. data: dataset of rows. output: dataset for the answers.
        parameters, options: ``parallel``, ``nproc`` and ``tp``, as in :func:`train_node`.
    """
    inputs = {"model": model, "data": data, "parameters": parameters}
    return _node(functions.predict, inputs, output, name, tags, options=options)


def sample_node(
    model: str = "trained_model",
    *,
    output: str = "samples",
    parameters: str | None = None,
    name: str = "sample",
    tags: str | Sequence[str] | None = None,
    **options: Any,
) -> Node:
    """A node that draws new samples from a generative model: a DataFrame, or a matplotlib Figure.

    Args:
        model: dataset of the model. output: dataset for the samples.
        parameters, options: of ``zoo sample``, as in :func:`train_node`.
    """
    inputs = {"model": model, "parameters": parameters}
    return _node(functions.sample, inputs, output, name, tags, options=options)


def report_node(
    model: str = "trained_model",
    *,
    metrics: str = "metrics",
    rows: str = "scores",
    outputs: Mapping[str, str],
    name: str = "report",
    tags: str | Sequence[str] | None = None,
) -> Node:
    """A node that draws a model's plots and tables of an evaluation.

    Args:
        model, metrics, rows: datasets of the model and of what :func:`evaluate_node` gave.
        outputs: by file of the report, the dataset for it: a DataFrame for .csv, a matplotlib Figure for .png,
            text for anything else.
    """
    inputs = {"model": model, "metrics": metrics, "rows": rows}
    body = _Bound(functions.report, files=tuple(outputs), names=inputs, label=name)
    return node(body, inputs, dict(outputs), name=name, tags=tags)


def split_node(
    table: str = "table",
    *,
    outputs: tuple[str, str] = ("training_rows", "evaluation_rows"),
    model: str = "devnet",
    parameters: str | None = None,
    name: str = "split",
    tags: str | Sequence[str] | None = None,
    **options: Any,
) -> Node:
    """A node that splits a labelled table in two, as ``zoo train`` splits its file.

    Args:
        table: dataset of the table. outputs: datasets for the rows to train on and those to evaluate on.
        parameters, options: the training's; the label column and the seed are taken from them.
    """
    inputs = {"table": table} | ({"parameters": parameters} if parameters is not None else {})
    body = _Bound(functions.split, names=inputs, model=model, options=options)
    return node(body, inputs, list(outputs), name=name, tags=tags)


def _node(
    function: Callable[..., Any],
    inputs: Mapping[str, str | None],
    outputs: Any,
    name: str,
    tags: str | Sequence[str] | None,
    **keywords: Any,
) -> Node:
    given = {argument: dataset for argument, dataset in inputs.items() if dataset is not None}
    body = _Bound(function, names=given, label=name, **keywords)
    return node(body, given | {"zoo": DEFAULTS_INPUT}, outputs, name=name, tags=tags)


class _Bound:
    """A function with keywords given, by its own name. ParallelRunner's pickles take the name from a partial."""

    def __init__(self, function: Callable[..., Any], **keywords: Any) -> None:
        self.function = function
        self.keywords = keywords
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **inputs: Any) -> Any:
        return self.function(*args, **inputs, **self.keywords)
