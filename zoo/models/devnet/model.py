"""The networks that score a row: the higher, the more anomalous."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

from zoo_datasets.errors import InputError

HIDDEN_UNITS: dict[int, tuple[int, ...]] = {1: (), 2: (20,), 4: (1000, 250, 20)}


class DevNet(nn.Module):
    """A stack of ReLU layers and one linear unit that gives the anomaly score phi(x).

    The three networks of the paper and its official code, by their depth: 1 is linear, 2 has one hidden layer of
    20 units, 4 has three of 1000, 250 and 20. Weights start as in the official code, which leaves them to Keras:
    uniform after Glorot and Bengio (2010), equation 16; biases are zero.

    Args:
        in_features: columns of the data.
        depth: 1, 2 or 4.
        generator: of the initial weights; torch's global one if not given.

    Raises:
        InputError: no such depth, or no columns.
    """

    def __init__(self, in_features: int, depth: int = 2, generator: torch.Generator | None = None) -> None:
        super().__init__()
        if depth not in HIDDEN_UNITS:
            raise InputError(f"devnet: network depth must be one of 1, 2 and 4, not {depth}")
        if in_features < 1:
            raise InputError(f"devnet: the data must have at least one column, not {in_features}")
        self.in_features = in_features
        self.depth = depth
        widths = (in_features, *HIDDEN_UNITS[depth])
        self.hidden = nn.ModuleList(nn.Linear(width, units) for width, units in itertools.pairwise(widths))
        self.score = nn.Linear(widths[-1], 1)
        self.reset_parameters(generator)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draws the weights anew."""
        for layer in (*self.hidden, self.score):
            assert isinstance(layer, nn.Linear)
            nn.init.xavier_uniform_(layer.weight, generator=generator)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Rows [rows, in_features] -> scores [rows]."""
        if x.ndim != 2 or x.shape[1] != self.in_features:
            raise InputError(
                f"devnet: the network takes rows of {self.in_features} columns, got shape {tuple(x.shape)}"
            )
        for layer in self.hidden:
            x = torch.relu(layer(x))
        return self.score(x).squeeze(-1)
