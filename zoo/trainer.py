"""A model's training, written once for every strategy, and the one loop that runs it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn

from parallel.interface import Parallel, StepInfo
from parallel.signals import StoppedError
from zoo.config import TrainConfig
from zoo.keeper import Keeper, Reached
from zoo.picture import Picture
from zoo.recorder import Record, Recorder
from zoo.table import Rows as Rows
from zoo_datasets.errors import InputError

if TYPE_CHECKING:
    import numpy as np

    from parallel.batch import Batch
    from parallel.ema import EMA
    from parallel.loader import Loader
    from parallel.optimizer import Optimizer
    from parallel.plan import Plan

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
    """How one model is trained, evaluated and used. Its methods are called on every rank, but for ``report``.

    Attributes:
        models: wrapped modules by name. ``models["net"]`` is the one that ``zoo.load`` gives back.
        optimizers: by name.
        emas: averages by the name of their model, saved beside its weights and loaded in place of them.
        train: the global batches of an epoch.
        description: of the loaded checkpoint, after :meth:`restore`.
    """

    best_metric: ClassVar[str | None] = None  # says which evaluation was the best: the highest,
    best_is_lowest: ClassVar[bool] = False  # or the lowest

    evaluates_start: ClassVar[bool] = False  # measures the untrained model too, to show what training brings

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
            by name, a detached 0-d tensor of this rank, whose *sum* over ranks is the number (divided by
            ``batch.size``, that is), or an optimizer's ``StepInfo``. No ``.item()``: it waits for the device.
        """

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """What a checkpoint needs beyond weights and config, JSON-able: column names, a threshold.

        Its "model" holds the arguments of the bare module: ``create_model(name, **describe()["model"])``.
        """

    def plan(self, net: nn.Module) -> Plan | None:
        """How ``models["net"]`` may be cut."""
        return None

    def restore(self, net: nn.Module, description: Mapping[str, Any]) -> None:
        """Stands in for :meth:`build` where nothing is trained: takes a checkpoint's module and description.

        ``evaluate``, ``predict`` and ``sample`` follow; ``config`` is the training's, ``data`` maybe another.
        """
        self.description = description
        self.models = {"net": self.p.wrap(net, self.plan(net))}

    def evaluate(self) -> Evaluation | None:
        """Measures the model on the evaluation data; None if there is nothing to measure."""
        return None

    def probe(self) -> Rows:
        """What the model answers, for ``zoo parity`` to compare: numbers by name, the same on every rank.

        The rows of :meth:`evaluate` unless overridden, as by a model whose answers are samples.
        """
        evaluation = self.evaluate()
        return evaluation.rows if evaluation is not None else {}

    def report(self, folder: Path, evaluation: Evaluation) -> None:
        """Draws plots and tables into an existing folder; on rank 0 only."""

    def predict(self, path: Path) -> Rows:
        """One row of answers a row of the file, in its order.

        Raises:
            InputError: the model does not predict, or the file does not fit it.
        """
        raise InputError("zoo predict: this model makes no predictions")

    def features(self, path: Path) -> np.ndarray:
        """One embedding a row of the file, in its order: float [rows, width].

        Raises:
            InputError: the model has none, or the file does not fit it.
        """
        raise InputError("--features: this model has no embeddings")

    def sample(self, options: Any) -> Rows | Picture:
        """New samples as a table, or as a picture; ``options`` is the entry's ``sample`` config.

        Raises:
            InputError: the model does not sample.
        """
        raise InputError("zoo sample: this model draws no samples")


@dataclass(frozen=True)
class Fitted:
    """What :func:`fit` did, the same on every rank.

    Attributes:
        steps: optimizer steps of the run.
        evaluation: the last one, of the final weights.
        best: the best evaluation, by the trainer's ``best_metric``, where it has one.
        stopped: the number of the signal that ended it before its last step or evaluation, or 0.
    """

    steps: int
    evaluation: Evaluation | None
    best: Record | None
    stopped: int = 0


def fit(trainer: Trainer[Any], recorder: Recorder | None = None, keeper: Keeper | None = None) -> Fitted:
    """Trains from the first step, or where a run stopped, to the last; called on every rank.

    Evaluates on the way and at the end.

    Args:
        trainer: not built yet.
        recorder: told of what happens, on the ranks that have one; writes the run directory, or nothing.
        keeper: saves and restores, or does nothing.
    """
    p, config, recorder, keeper = trainer.p, trainer.config, recorder or Recorder(), keeper or Keeper()
    trainer.build()
    start = keeper.restore(trainer)
    step, best = start.step, start.best
    per_epoch = len(trainer.train)
    total = config.total_steps(per_epoch)
    recorder.begin(total, per_epoch, step, start.evaluation_due)
    pending: list[tuple[int, int, Numbers]] = []  # step, epoch, numbers still on the device
    evaluation: Evaluation | None = None
    is_due = False  # an evaluation that a signal has interrupted

    def tell() -> None:
        if pending:
            recorder.steps(_summed(p, pending))
            pending.clear()

    def measure(step: int, epoch: int) -> Evaluation | None:
        """Evaluates, and says so."""
        nonlocal best
        found = evaluate(trainer)
        if found is not None:
            record = Record(step, epoch, found.metrics)
            recorder.evaluation(record)
            best = _better(trainer, best, record)
            if best is record:
                keeper.improved(step)
        return found

    if step == 0 and trainer.evaluates_start:
        untrained = evaluate(trainer)
        if untrained is not None:
            recorder.evaluation(Record(0, 0, untrained.metrics))
    if start.evaluation_due:
        evaluation = measure(step, trainer.train.epoch + 1)

    for batch in _batches(trainer.train, total - step):
        numbers = trainer.step(batch)
        step += 1
        epoch = batch.epoch + 1
        pending.append((step, epoch, numbers))
        recorder.tick(step)
        ends_epoch = trainer.train.batches_done == per_epoch
        evaluation = None
        if step == total or (ends_epoch and config.eval_every and epoch % config.eval_every == 0):
            tell()
            try:
                with p.interruptible():
                    evaluation = measure(step, epoch)
            except StoppedError:
                is_due = True
        elif len(pending) == config.log_every:
            tell()
        if keeper.due(step, epoch, ends_epoch) or step == total:
            tell()  # a run that goes on from here has the numbers up to here
            keeper.save(trainer, Reached(step, best, is_due), evaluation.metrics if evaluation else {})
        if keeper.stop:
            break
    if evaluation is None and step == total == start.step:  # the run was done already
        evaluation = evaluate(trainer)
    return Fitted(step, evaluation, best, keeper.stop if step < total or is_due else 0)


def _batches(loader: Loader, count: int) -> Iterator[Batch]:
    """The next ``count`` batches, over as many epochs as they take."""
    while count > 0:
        for batch in loader:
            yield batch
            count -= 1
            if count == 0:
                return


def evaluate(trainer: Trainer[Any]) -> Evaluation | None:
    """``trainer.evaluate()``, in evaluation mode and without gradients."""
    with evaluating(trainer):
        return trainer.evaluate()


@contextmanager
def evaluating(trainer: Trainer[Any]) -> Iterator[None]:
    """The models in evaluation mode, with their averages where they have one, no gradients; as before afterwards."""
    modes = [(module, module.training) for net in trainer.models.values() for module in net.modules()]
    for net in trainer.models.values():
        net.eval()
    try:
        with ExitStack() as stack:
            for average in trainer.emas.values():
                stack.enter_context(average.applied())
            stack.enter_context(torch.no_grad())
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def _summed(p: Parallel, pending: Sequence[tuple[int, int, Numbers]]) -> list[Record]:
    """The steps' numbers, summed over ranks in one go and brought to the host in two."""
    items = [value for _, _, numbers in pending for value in numbers.values()]
    tensors = [value for value in items if isinstance(value, Tensor)]
    sums = iter(p.sum(torch.stack(tensors).double()).tolist() if tensors else ())
    assert not any(tensor.requires_grad for tensor in tensors), (
        "step() must detach: these are kept for a while"
    )
    infos = [value for value in items if not isinstance(value, Tensor)]
    norms = iter(torch.stack([info.grad_norm for info in infos]).tolist() if infos else ())
    records = []
    for step, epoch, numbers in pending:
        values: dict[str, float] = {}
        alone = sum(not isinstance(value, Tensor) for value in numbers.values()) == 1
        for name, value in numbers.items():
            if isinstance(value, Tensor):
                values[name] = next(sums)
                continue
            prefix = "" if alone else f"{name}_"
            values |= {f"{prefix}grad_norm": next(norms), f"{prefix}lr": value.lr}
            if value.skipped:
                values[f"{prefix}skipped"] = True
        records.append(Record(step, epoch, values))
    return records


def _better(trainer: Trainer[Any], best: Record | None, record: Record) -> Record | None:
    """The better of two evaluations by the trainer's ``best_metric``; a NaN never is."""
    name = trainer.best_metric
    if name is None or math.isnan(record.values[name]):
        return best
    if best is None:
        return record
    is_lower = record.values[name] < best.values[name]
    is_higher = record.values[name] > best.values[name]
    return record if (is_lower if trainer.best_is_lowest else is_higher) else best
