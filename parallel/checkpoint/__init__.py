"""Checkpoints that have no layout: whole tensors under plain names, written and read piece by piece.

A folder holds ``weights/NAME.safetensors`` (``NAME.ema.safetensors``: averages), ``state/`` (optimizers) and, written
last, ``manifest.json``: everything else, and the checksum of each file. Importing this imports no torch.
"""

from __future__ import annotations

from parallel.checkpoint.manifest import (
    CheckpointError,
    DamagedError,
    Manifest,
    VersionError,
    check_sizes,
    check_sums,
    clear,
    is_complete,
    read_manifest,
    verify,
)

__all__ = [
    "CheckpointError",
    "DamagedError",
    "Manifest",
    "VersionError",
    "check_sizes",
    "check_sums",
    "clear",
    "is_complete",
    "read_manifest",
    "verify",
]
