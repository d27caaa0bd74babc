"""The classic tutorial, a 13-64-3 network on scikit-learn's wines: as a plain loop, and over any ranks.

Both print the same numbers, on one rank or on three: ``python examples/own_loop.py fsdp 3``
"""

from __future__ import annotations

import sys

import torch
from sklearn.datasets import load_wine
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from parallel import Parallel, launch


def wines() -> tuple[TensorDataset, TensorDataset]:
    """124 wines to train on and 54 to test with, a random split: 13 measurements, and which of 3 growers."""
    x, y = load_wine(return_X_y=True)
    x, test_x, y, test_y = train_test_split(x, y, test_size=0.3, random_state=0)
    scale = StandardScaler().fit(x).transform
    train = TensorDataset(torch.tensor(scale(x), dtype=torch.float32), torch.tensor(y))
    return train, TensorDataset(torch.tensor(scale(test_x), dtype=torch.float32), torch.tensor(test_y))


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, 3))


@torch.no_grad()
def measure(net: nn.Module, x: Tensor, y: Tensor) -> tuple[float, float]:
    """Loss and accuracy."""
    scores = net(x)
    return F.cross_entropy(scores, y).item(), (scores.argmax(1) == y).float().mean().item()


def plain() -> tuple[float, float]:
    train, test = wines()
    net = network()
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    loader = DataLoader(train, batch_size=16)
    for _ in range(10):
        for x, y in loader:
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            opt.step()
            opt.zero_grad()
    return measure(net, *test.tensors)


def spread(p: Parallel) -> tuple[float, float]:
    train, test = wines()
    net = p.wrap(network())
    opt = p.optimizer(net, torch.optim.Adam, lr=1e-2)
    loader = p.loader(train, batch_size=16)
    for _ in range(10):
        for batch in loader:
            for part in p.parts(batch):
                losses = F.cross_entropy(net(part.x), part.y, reduction="none")
                p.backward(losses.sum() / batch.size, opt)
            p.step(opt)
    return measure(net, *(tensor.to(p.device) for tensor in test.tensors))


if __name__ == "__main__":
    spec, nproc = (sys.argv[1], int(sys.argv[2])) if sys.argv[1:] else ("single", 1)
    for name, (loss, accuracy) in {"plain": plain(), spec: launch(spread, spec, nproc=nproc)}.items():
        print(f"{name:<8} test loss {loss:.6f}, accuracy {accuracy:.3f}")
