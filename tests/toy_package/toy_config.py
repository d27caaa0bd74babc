"""A model small enough to check by hand, as somebody else's package would bring it: options and entry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from zoo.config import SampleConfig, TrainConfig, require
from zoo.registry import ModelEntry


@dataclass(frozen=True, kw_only=True)
class ToyConfig(TrainConfig):
    """The options of a straight line fitted to made-up points."""

    default_epochs: ClassVar[int] = 3

    rows: int = 13
    """points to make up"""
    lr: float = 0.1
    """learning rate"""
    momentum: float = 0.0
    """of SGD"""
    kind: Literal["line", "flat"] = "line"
    """what the points lie on"""
    batch_size: int = 4
    """points of a global batch"""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.rows >= 2, "rows", f"must be at least 2, not {self.rows}")


@dataclass(frozen=True, kw_only=True)
class ToySampleConfig(SampleConfig):
    """The options of its samples."""

    from_: tuple[float, ...] = ()
    """numbers to begin with"""


MODEL = ModelEntry(
    name="toy",
    summary="a straight line",
    model="toy_trainer:ToyLine",
    config=ToyConfig,
    trainer="toy_trainer:ToyTrainer",
    sample=ToySampleConfig,
    convert="toy_trainer:convert",
)
