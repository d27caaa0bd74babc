"""Checkpoints that have no layout: whole tensors under plain names, written and read piece by piece.

A folder holds ``weights/NAME.safetensors`` (``NAME.ema.safetensors``: averages), ``state/`` (optimizers) and, written
last, ``manifest.json``: everything else, and the checksum of each file.
"""

from __future__ import annotations

from parallel.checkpoint.contents import Contents
from parallel.checkpoint.load import load
from parallel.checkpoint.manifest import CheckpointError, is_complete, read_manifest, verify
from parallel.checkpoint.save import Saver, clear
from parallel.checkpoint.whole import full_state, load_full_state

__all__ = [
    "CheckpointError",
    "Contents",
    "Saver",
    "clear",
    "full_state",
    "is_complete",
    "load",
    "load_full_state",
    "read_manifest",
    "verify",
]
