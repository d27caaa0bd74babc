"""DevNet's training (Pang et al. 2019, Algorithm 1), over any strategy."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from parallel.batch import Batch
from parallel.interface import Parallel
from parallel.plan import Plan
from parallel.rng import shared_generator
from zoo.config import resolved
from zoo.models.devnet.config import DevNetConfig
from zoo.models.devnet.contamination import weak_labels
from zoo.models.devnet.features import densify
from zoo.models.devnet.loss import deviation_loss
from zoo.models.devnet.model import DevNet
from zoo.models.devnet.plan import plan_of
from zoo.models.devnet.reference import ReferenceScores
from zoo.models.devnet.report import score_metrics, write_report
from zoo.models.devnet.sampler import BalancedSampler
from zoo.models.devnet.threshold import score_threshold
from zoo.pretrained import begin_from
from zoo.trainer import Evaluation, Numbers, Rows, Trainer
from zoo_datasets import (
    NAMED,
    InputError,
    Table,
    align_columns,
    load_tabular,
    read_table,
    require_both_classes,
)
from zoo_datasets.errors import shown
from zoo_datasets.labels import LABEL_NAMES, LabelError

log = logging.getLogger("zoo")

L2 = 0.01  # of hidden kernels, neither of biases nor of the head


class DevNetTrainer(Trainer[DevNetConfig]):
    """Trains :class:`DevNet` with the official code's optimizer: RMSprop, the gradient clipped to norm 1.

    Args:
        table: rows to train on, in place of ``config.data``; there is nothing to evaluate on then.
    """

    best_metric = "auc_pr"

    def __init__(self, p: Parallel, config: DevNetConfig, table: Table | None = None) -> None:
        super().__init__(p, config)
        self.table = table
        self.eval_table: Table | None = None
        self.dtype = torch.float64 if p.precision == "fp64" else torch.float32

    def build(self) -> None:
        config = self.config
        self.data_source = resolved(config.data)
        if self.table is None:
            data = load_tabular(config.data, config.label, config.seed)
            self.table, self.eval_table = data.train, data.eval
        table = weak_labels(self.table, config.known_outliers, config.contamination, config.seed)
        assert table.y is not None
        anomaly = torch.from_numpy(table.y == 1)
        log.info("%s: %d rows, %d labelled anomalies", table.source, len(table), int(anomaly.sum()))
        self.train_table = table
        in_features = len(table.columns)
        with torch.random.fork_rng(devices=[]):  # making a Linear draws weights that are not used
            net = DevNet(in_features, config.network_depth, shared_generator(config.seed, "weights"))
        self.models["net"] = self.p.wrap(net, self.plan(net))
        begin_from(self.p, config.pretrained, "devnet", self.models)
        self.optimizers["net"] = self.p.optimizer(
            self.models["net"],
            torch.optim.RMSprop,
            lr=1e-3,
            alpha=0.9,
            eps=1e-7,
            clip_norm=1.0,
            groups=lambda name, _: (
                {"l2": L2} if name.startswith("hidden.") and name.endswith(".weight") else None
            ),
        )
        self.reference = ReferenceScores(config.seed)
        self.train = self.p.loader(
            _samples(table) | {"anomaly": anomaly},
            config.batch_size,
            seed=config.seed,
            sampler=BalancedSampler(anomaly, config.batch_size, config.batches_per_epoch, config.seed),
        )

    def step(self, batch: Batch) -> Numbers:
        opt = self.optimizers["net"]
        reference = self.reference(batch.step)
        losses = []
        for part in self.p.parts(batch):
            with self.p.autocast():
                scores = self._scores(self.train_table, part)
            loss = deviation_loss(scores, part["anomaly"], reference).sum() / batch.size
            self.p.backward(loss, opt)
            losses.append(loss.detach())
        return {"loss": reduce(torch.add, losses), "optimizer": self.p.step(opt)}

    def describe(self) -> dict[str, Any]:
        config, table = self.config, self.train_table
        return {
            "model": {"in_features": len(table.columns), "depth": config.network_depth},
            "columns": table.columns,
            "label": table.label,
            "data": self.data_source,
        }

    def plan(self, net: nn.Module) -> Plan:
        assert isinstance(net, DevNet)
        return plan_of(net.depth)

    def evaluate(self) -> Evaluation | None:
        table = self.eval_table if self.table is not None else self._evaluation_rows()
        if table is None:
            return None
        assert table.y is not None
        scores = self.scores(table)
        if self.p.is_main and not (finite := np.isfinite(scores)).all():
            log.warning(
                "%s, row %d: its score is not finite; there is no AUC then; bring the columns to one scale, [0, 1] say",
                table.source,
                int(finite.argmin()) + 1,
            )
        return Evaluation(
            score_metrics(scores, table.y), {"score": scores.tolist(), "anomaly": table.y.tolist()}
        )

    def report(self, folder: Path, evaluation: Evaluation) -> None:
        scores, y = (np.asarray(evaluation.rows[name]) for name in ("score", "anomaly"))
        write_report(folder, scores, y, f"DevNet, network depth {self.config.network_depth}")

    def predict(self, path: Path) -> Rows:
        label = self.description["label"]
        with _labelled_as(label):
            table = self._fitting(read_table(path, label, need_label=False))
        scores = self.scores(table)
        anomaly = scores > score_threshold(self.config.confidence)
        return {"score": scores.tolist(), "anomaly": anomaly.astype(int).tolist()}

    def scores(self, table: Table) -> np.ndarray:
        """The score of every row, in order: float [rows], the same on every rank."""
        found, index = [], []
        for batch in self.p.loader(_samples(table), self.config.batch_size):
            with self.p.autocast():
                found.append(self._scores(table, batch))
            index.append(batch.index)
        return self.p.gather(torch.cat(found), torch.cat(index)).cpu().numpy()

    def _scores(self, table: Table, batch: Batch) -> Tensor:
        return self.models["net"](self._rows(table, batch)).to(self.dtype)

    def _rows(self, table: Table, batch: Batch) -> Tensor:
        if not table.is_sparse:
            return batch["x"]
        return densify(table.x, batch["row"].cpu()).to(self.p.device, self.dtype)

    def _evaluation_rows(self) -> Table | None:
        """The evaluation rows of ``config.data``, or of what was trained on if that is None.

        A file that was not trained on is for evaluation as a whole.
        """
        trained: str | None = self.description["data"]
        data = trained if self.config.data is None else self.config.data
        if data is None:
            return None
        label = None if data in NAMED else self.description["label"]
        with _labelled_as(label):
            if not Path(data).is_file() or resolved(data) == trained:
                return self._fitting(load_tabular(data, label, self.config.seed).eval)
            table = read_table(data, label)
        assert table.y is not None
        require_both_classes(table.y, table.source)
        log.info("%s was not trained on: evaluating all its rows", data)
        return self._fitting(table)

    def _fitting(self, table: Table) -> Table:
        columns, wanted = self.description["columns"], self.description["model"]["in_features"]
        if columns is not None:
            return align_columns(table, columns)
        if len(table.columns) != wanted:
            raise InputError(f"{table.source}: the model takes {wanted} columns, it has {len(table.columns)}")
        return table


@contextmanager
def _labelled_as(label: str | None) -> Iterator[None]:
    """Messages about the label's column for a trained model, which takes no ``--label``."""
    try:
        yield
    except LabelError as error:
        if label is not None:
            raise error.otherwise(
                f"the label's column must be called {shown(label)}, as in training"
            ) from None
        names = f"{', '.join(LABEL_NAMES[:-1])} or {LABEL_NAMES[-1]}"
        raise error.otherwise(f"just one column may be the label: call it {names}") from None


def _samples(table: Table) -> dict[str, Tensor]:
    """What a loader moves to the device: the rows, or only their numbers where they are sparse."""
    return {"row": torch.arange(len(table))} if table.is_sparse else {"x": torch.tensor(table.x)}
