"""Datasets for catalog.yml, by their full names: ``type: zoo.integrations.kedro.datasets.CheckpointDataset``."""

from __future__ import annotations

from zoo.integrations.kedro.datasets.checkpoint import CheckpointDataset
from zoo.integrations.kedro.datasets.tensors import SafetensorsDataset

__all__ = ["CheckpointDataset", "SafetensorsDataset"]
