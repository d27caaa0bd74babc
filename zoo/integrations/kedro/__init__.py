"""The zoo in Kedro pipelines: nodes, datasets, hooks and a modular pipeline. Needs the extra ``kedro``.

nodes.py        factories of nodes: train, evaluate, report, predict, sample, split
functions.py    what those nodes run
options.py      a node's options: conf/zoo.yml, the factory's keywords, the node's parameters
handover.py     catalog values as the files that ranks read
process.py      a process of its own for each node's work, away from catalog and context
work.py         what that process does
trained.py      a trained model as nodes hand it on
datasets/       a checkpoint, and tensors, as datasets of catalog.yml
hooks.py        conf/zoo.yml for all nodes; the zoo's messages in Kedro's logging
pipelines.py    anomaly_detection()
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if find_spec("kedro") is None:
    raise ImportError("zoo.integrations.kedro needs Kedro: pip install 'parallel-zoo[kedro]'")

if TYPE_CHECKING:
    from zoo.integrations.kedro.hooks import ZooHooks
    from zoo.integrations.kedro.nodes import (
        evaluate_node,
        predict_node,
        report_node,
        sample_node,
        split_node,
        train_node,
    )
    from zoo.integrations.kedro.trained import TrainedModel

_WHERE = {
    "TrainedModel": "trained",
    "ZooHooks": "hooks",
    "evaluate_node": "nodes",
    "predict_node": "nodes",
    "report_node": "nodes",
    "sample_node": "nodes",
    "split_node": "nodes",
    "train_node": "nodes",
}

__all__ = [
    "TrainedModel",
    "ZooHooks",
    "evaluate_node",
    "predict_node",
    "report_node",
    "sample_node",
    "split_node",
    "train_node",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
