"""The network and the training of the toy model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from toy_config import ToyConfig, ToySampleConfig

from parallel.batch import Batch
from zoo.trainer import Evaluation, Numbers, Rows, Trainer
from zoo_datasets.errors import InputError


class ToyLine(nn.Module):
    def __init__(self, slopes: int, bias: bool = True) -> None:
        super().__init__()
        self.line = nn.Linear(slopes, 1, bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.line(x).squeeze(-1)


class ToyTrainer(Trainer[ToyConfig]):
    best_metric = "mse"
    best_is_lowest = True

    def build(self) -> None:
        if self.config.data == "bad":
            raise InputError("bad: row 3 is not a point")
        torch.manual_seed(self.config.seed)
        self.models["net"] = self.p.wrap(ToyLine(1))
        how = {"lr": self.config.lr, "momentum": self.config.momentum}
        self.optimizers["net"] = self.p.optimizer(self.models["net"], torch.optim.SGD, **how)
        self.train = self.p.loader(self.points(), self.config.batch_size, shuffle=True, seed=self.config.seed)

    def points(self) -> tuple[Tensor, Tensor]:
        x = torch.linspace(-1, 1, self.config.rows, dtype=torch.float64).unsqueeze(-1)
        return x, (
            2 * x.squeeze(-1) if self.config.kind == "line" else torch.zeros(self.config.rows).double()
        ) + 1

    def step(self, batch: Batch) -> Numbers:
        total = torch.zeros((), dtype=torch.float64)
        for part in self.p.parts(batch):
            loss = (self.models["net"](part.x) - part.y).square().sum() / batch.size
            self.p.backward(loss, self.optimizers["net"])
            total += loss.detach()
        return {"loss": total, "optimizer": self.p.step(self.optimizers["net"])}

    def evaluate(self) -> Evaluation:
        x, y = self.points()
        answers = self.answers(x)
        mse = float(np.mean((answers - y.numpy()) ** 2))
        return Evaluation({"mse": mse}, {"answer": answers, "y": y.numpy()})

    def answers(self, x: Tensor) -> np.ndarray:
        found, index = [], []
        for batch in self.p.loader(x, 5):
            found.append(self.models["net"](batch.x))
            index.append(batch.index)
        return self.p.gather(torch.cat(found), torch.cat(index)).double().numpy()

    def report(self, folder: Path, evaluation: Evaluation) -> None:
        (folder / "answers.txt").write_text("\n".join(map(str, evaluation.rows["answer"])))

    def predict(self, path: Path) -> Rows:
        try:
            x = np.loadtxt(path, ndmin=2)
        except OSError:
            raise InputError(f"{path}: no such file") from None
        return {"x": x[:, 0], "answer": self.answers(torch.from_numpy(x))}

    def sample(self, options: ToySampleConfig) -> Rows:
        begin = list(options.from_)[: options.n]
        drawn = np.random.default_rng(options.seed).normal(size=options.n - len(begin))
        return {"number": np.concatenate([begin, drawn])}

    def describe(self) -> dict[str, Any]:
        return {"model": {"slopes": 1}, "kind": self.config.kind}


def convert(path: Path) -> tuple[ToyConfig, Mapping[str, Any], dict[str, nn.Module]]:
    theirs = load_file(path)
    arguments = {"slopes": theirs["w"].shape[1], "bias": False}
    net = ToyLine(**arguments)
    net.load_state_dict({"line.weight": theirs["w"]})
    return ToyConfig(), {"model": arguments}, {"net": net}
