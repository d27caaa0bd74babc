"""The network of the toy DDPM: a small MLP that sees a noisy vector and the time."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from zoo_datasets.errors import InputError


class DenoisingMLP(nn.Module):
    """Four linear layers, ReLU between them, for vectors of `features` numbers and steps 0 .. `steps` - 1.

    The time enters as one more input, t / T. With `time_embedding` = E > 0 (even), E sines and cosines of t
    take its place (Ho, Jain, Abbeel 2020, arXiv:2006.11239, appendix B).
    Raises InputError for sizes that make no network, and in `forward` for vectors of another width.
    """

    def __init__(
        self, features: int = 4, steps: int = 1000, width: int = 400, time_embedding: int = 0
    ) -> None:
        super().__init__()
        for name, value in {"features": features, "steps": steps, "width": width}.items():
            if value < 1:
                raise InputError(f"ddpm: {name} must be at least 1, got {value}")
        if time_embedding < 0 or time_embedding % 2:
            raise InputError(f"ddpm: time_embedding must be even, or 0 for t / T, got {time_embedding}")
        self.features = features
        self.steps = steps
        self.time_embedding = time_embedding
        self.fc1 = nn.Linear(features + (time_embedding or 1), width)
        self.fc2 = nn.Linear(width, width)
        self.fc3 = nn.Linear(width, width)
        self.fc4 = nn.Linear(width, features)

    def forward(self, x_t: Tensor, t: Tensor) -> Tensor:
        """x_t [batch, features] at steps t int64 [batch] -> prediction [batch, features]."""
        if x_t.ndim != 2 or x_t.shape[1] != self.features:
            raise InputError(
                f"ddpm: this model takes vectors of {self.features} numbers, got shape {list(x_t.shape)}"
            )
        t = t.to(torch.promote_types(x_t.dtype, torch.float32))  # half precision cannot hold t = 999
        time = (
            sinusoidal_embedding(t, self.time_embedding) if self.time_embedding else t[:, None] / self.steps
        )
        hidden = torch.cat([x_t, time.to(x_t.dtype)], dim=1)
        for layer in (self.fc1, self.fc2, self.fc3):
            hidden = torch.relu(layer(hidden))
        return self.fc4(hidden)


def sinusoidal_embedding(t: Tensor, size: int) -> Tensor:
    """Sines, then cosines, of t times size / 2 frequencies 10000^(-2i / size): [batch] -> [batch, size].

    Vaswani et al. 2017 (arXiv:1706.03762), section 3.5.
    """
    half = size // 2
    frequency = torch.exp(torch.arange(half, dtype=t.dtype, device=t.device) * (-math.log(10_000) / half))
    angle = t[:, None] * frequency
    return torch.cat([angle.sin(), angle.cos()], dim=1)


def he_initialise(net: DenoisingMLP) -> None:
    """Draws the weights of the layers before a ReLU from U(-b, b), b = sqrt(6 / inputs), by torch's generator.

    He et al. 2015 (arXiv:1502.01852), equation 10. torch's own bound for nn.Linear is sqrt(6) times smaller, which
    leaves the time hardly heard at first.
    """
    for layer in (net.fc1, net.fc2, net.fc3):
        nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
