"""The vectors that a run trains on, and the order in which they come."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from parallel.rng import shared_generator
from zoo.models.ddpm.config import DDPMConfig
from zoo_datasets import InputError, Normaliser, ascending_descending, read_vectors


@dataclass(frozen=True)
class Vectors:
    """Training vectors in data units.

    Attributes:
        x: float32 [rows, features].
        columns: a name for each number of a vector.
        normaliser: from data units to [-1, 1] and back.
        patterns: the only vectors there are, [patterns, features], where the data is generated.
    """

    x: np.ndarray
    columns: list[str]
    normaliser: Normaliser
    patterns: np.ndarray | None


def load_vectors(config: DDPMConfig) -> Vectors:
    """The user's file, or the patterns of the published toy.

    Raises:
        InputError: the file is not a table of numbers, or no pattern fits the range.
    """
    if config.data is None:
        patterns = ascending_descending(config.length, config.low, config.high)
        columns = [f"x{number}" for number in range(1, config.length + 1)]
        normaliser = Normaliser.of_range(config.length, config.low, config.high)
        return Vectors(patterns, columns, normaliser, patterns)
    table = read_vectors(config.data)
    if len(table) < 2:
        raise InputError(f"{config.data}: holds {len(table)} vector; a model learns from at least 2")
    assert isinstance(table.x, np.ndarray)
    return Vectors(table.x, table.columns, Normaliser.fit(table.x), None)


class Rounds:
    """The order of an epoch: all rows in random order, again and again, until it is long enough.

    A pure function of (seed, epoch). Whole rounds balance each batch better than draws with replacement.
    """

    def __init__(self, rows: int, draws: int, seed: int) -> None:
        self.rows, self.draws, self.seed = rows, draws, seed

    def __call__(self, epoch: int) -> Tensor:
        generator = shared_generator(self.seed, "rounds", epoch)
        rounds = -(-self.draws // self.rows)
        return torch.rand(rounds, self.rows, generator=generator).argsort(dim=1).flatten()[: self.draws]
