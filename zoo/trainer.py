"""A model's training, written once for every strategy, and the one loop that runs it."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn

from parallel.interface import Parallel, StepInfo
from zoo.config import TrainConfig
from zoo_datasets.errors import InputError

if TYPE_CHECKING:
    from parallel.batch import Batch
    from parallel.ema import EMA
    from parallel.loader import Loader
    from parallel.optimizer import Optimizer
    from parallel.plan import Plan

log = logging.getLogger("zoo")

Rows = Mapping[str, Sequence[Any]]  # a table: column name -> a list or 1-d array, all of one length
Numbers = Mapping[str, "Tensor | StepInfo"]
Config = TypeVar("Config", bound=TrainConfig)


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found, the same on every rank.

    Attributes:
        metrics: by name, such as {"auc_roc": 0.76}.
        rows: what the report draws from, such as score and label of every row, in data-set order.
    """

    metrics: dict[str, float]
    rows: Rows = field(default_factory=dict)


class Trainer(ABC, Generic[Config]):
    """How one model is trained, evaluated and used. Every method is called on every rank, unless it says otherwise.

    Attributes:
        models: wrapped modules by name. ``models["net"]`` is the one that ``zoo.load`` gives back.
        optimizers: by name. emas: averages by the name of their model; loaded in place of the model's weights.
        train: the global batches of an epoch.
        description: of the loaded checkpoint, after :meth:`restore`.
    """

    best_metric: ClassVar[str | None] = (
        None  # which evaluation was the best; the highest unless best_is_lowest
    )
    best_is_lowest: ClassVar[bool] = False
    plan: ClassVar[Plan | None] = None  # of models["net"]

    models: dict[str, nn.Module]
    optimizers: dict[str, Optimizer]
    emas: dict[str, EMA]
    train: Loader
    description: Mapping[str, Any]

    def __init__(self, p: Parallel, config: Config) -> None:
        self.p = p
        self.config = config
        self.models, self.optimizers, self.emas = {}, {}, {}

    @abstractmethod
    def build(self) -> None:
        """Reads the data, and fills ``models``, ``optimizers``, ``emas`` and ``train``."""

    @abstractmethod
    def step(self, batch: Batch) -> Numbers:
        """Trains on one global batch.

        Returns:
            by name, a 0-d tensor of this rank, whose *sum* over ranks is the number (so already divided by
            ``batch.size``), or the ``StepInfo`` of an optimizer. Keep them as tensors: ``.item()`` waits for the device.
        """

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """What a checkpoint needs beyond weights and config, JSON-able: column names, a threshold.

        Its key "model" holds the arguments that make the bare module: ``create_model(name, **describe()["model"])``.
        """

    def restore(self, net: nn.Module, description: Mapping[str, Any]) -> None:
        """Stands in for :meth:`build` where nothing is trained: takes a checkpoint's module and description.

        After it ``evaluate``, ``predict`` and ``sample`` work; ``config`` is the checkpoint's, with ``data`` as asked for.
        """
        self.description = description
        self.models = {"net": self.p.wrap(net, self.plan)}

    def evaluate(self) -> Evaluation | None:
        """Measures the model on the evaluation data; None if there is nothing to measure."""
        return None

    def report(self, folder: Path, evaluation: Evaluation) -> None:  # noqa: B027 (most models have one, none must)
        """Draws plots and tables into an existing folder; on rank 0 only."""

    def predict(self, path: Path) -> Rows:
        """One row of answers a row of the file, in its order.

        Raises:
            InputError: the model does not predict, or the file does not fit it.
        """
        raise InputError("zoo predict: this model makes no predictions")

    def sample(self, options: Any) -> Rows:
        """New samples as a table; ``options`` is the entry's ``sample`` config.

        Raises:
            InputError: the model does not sample.
        """
        raise InputError("zoo sample: this model draws no samples")
