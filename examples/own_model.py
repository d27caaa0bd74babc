"""A model of one's own in the zoo: the 13-64-3 network on scikit-learn's wines.

    python examples/own_model.py train wine --parallel fsdp
    python examples/own_model.py parity wine --parallel dp,ddp,fsdp,tp

An installed package brings it to the `zoo` command itself with two lines in its pyproject.toml:

    [project.entry-points."parallel_zoo.models"]
    wine = "own_model:WINE"
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import torch
from sklearn.datasets import load_wine
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn
from torch.nn import functional as F

from parallel import Batch, Plan
from zoo.commands import main
from zoo.config import TrainConfig, require
from zoo.registry import ModelEntry, register
from zoo.trainer import Evaluation, Numbers, Trainer


class WineNet(nn.Sequential):
    def __init__(self, hidden: int = 64) -> None:
        super().__init__(nn.Linear(13, hidden), nn.ReLU(), nn.Linear(hidden, 3))


@dataclass(frozen=True, kw_only=True)
class WineConfig(TrainConfig):
    """The options that every model has, and two more."""

    hidden: int = 64
    """units of the hidden layer"""
    lr: float = 1e-2
    """learning rate"""
    batch_size: int = 16
    """wines of a global batch, whatever the number of ranks"""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.data is None, "data", "is not for this model: its wines come with scikit-learn")


class WineTrainer(Trainer[WineConfig]):
    best_metric = "accuracy"

    def build(self) -> None:
        x, y = load_wine(return_X_y=True)
        x, test_x, y, test_y = train_test_split(x, y, test_size=0.3, random_state=self.config.seed)
        scaler = StandardScaler().fit(x)
        self.test = torch.tensor(scaler.transform(test_x)), torch.tensor(test_y)
        torch.manual_seed(self.config.seed)
        net = WineNet(self.config.hidden)
        self.models["net"] = self.p.wrap(net, self.plan(net))
        self.optimizers["net"] = self.p.optimizer(self.models["net"], torch.optim.Adam, lr=self.config.lr)
        data = torch.tensor(scaler.transform(x)), torch.tensor(y)
        self.train = self.p.loader(data, self.config.batch_size, shuffle=True, seed=self.config.seed)

    def plan(self, net: nn.Module) -> Plan:
        return Plan(units=("0",), tensor={"0": "column", "2": "row"})

    def step(self, batch: Batch) -> Numbers:
        total = torch.zeros((), device=self.p.device)
        for part in self.p.parts(batch):
            losses = F.cross_entropy(self.scores(part.x), part.y, reduction="none")
            loss = losses.sum() / batch.size
            self.p.backward(loss, self.optimizers["net"])
            total = total + loss.detach()
        return {"loss": total, "optimizer": self.p.step(self.optimizers["net"])}

    def scores(self, x: Tensor) -> Tensor:
        with self.p.autocast():
            return self.models["net"](x).to(x.dtype)

    def evaluate(self) -> Evaluation:
        scores, index = [], []
        for batch in self.p.loader(self.test, self.config.batch_size):
            scores.append(self.scores(batch.x))
            index.append(batch.index)
        score = self.p.gather(torch.cat(scores), torch.cat(index)).cpu()
        accuracy = (score.argmax(1) == self.test[1]).double().mean().item()
        return Evaluation({"accuracy": accuracy}, {"score": score.numpy()})

    def describe(self) -> dict[str, Any]:
        return {"model": {"hidden": self.config.hidden}}


WINE = ModelEntry("wine", "growers of wines told apart", WineNet, WineConfig, WineTrainer)

if __name__ == "__main__":
    register(WINE)
    sys.exit(main())
