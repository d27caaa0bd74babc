"""DevNet's options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from zoo.config import PretrainedConfig, require


@dataclass(frozen=True, kw_only=True)
class DevNetConfig(PretrainedConfig):
    """The official code's defaults, but that no label is taken away unless asked for."""

    default_epochs: ClassVar[int] = 50

    data: str | None = "breast-cancer"
    """name of a data set, or a file or folder with rows of numbers and a label column"""
    label: str | None = None
    """label column of --data; class, label, target or y unless given"""
    network_depth: Literal[1, 2, 4] = 2
    """1 is linear, 2 has a hidden layer of 20 units, 4 has three of 1000, 250 and 20"""
    known_outliers: int | None = None
    """labelled anomalies to train on at most, drawn at random; the others are left out; all unless given"""
    contamination: float = 0.0
    """share of made-up anomalies among the unlabelled training rows"""
    batch_size: int = 512
    """rows of a global batch, half of them anomalies, whatever the number of ranks"""
    batches_per_epoch: int = 20
    """global batches that count as an epoch, since rows are drawn with replacement"""
    confidence: float = 0.95
    """of the threshold above which `zoo predict` calls a row an anomaly"""

    def __post_init__(self) -> None:
        super().__post_init__()
        known = self.known_outliers
        require(known is None or known >= 1, "known_outliers", f"must be at least 1, not {known}")
        require(
            0 <= self.contamination < 1,
            "contamination",
            f"must be from 0 to below 1, not {self.contamination}",
        )
        require(
            self.batch_size >= 2,
            "batch_size",
            f"must be at least 2, half of it anomalies, not {self.batch_size}",
        )
        require(
            self.batches_per_epoch >= 1,
            "batches_per_epoch",
            f"must be at least 1, not {self.batches_per_epoch}",
        )
        require(0 < self.confidence < 1, "confidence", f"must be between 0 and 1, not {self.confidence}")
