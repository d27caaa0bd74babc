"""A model zoo with pluggable parallelism for PyTorch. Importing it imports no torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zoo.checkpoint import load
    from zoo.models.devnet.detector import DevNetDetector
    from zoo.models.devnet.model import DevNet
    from zoo.registry import create_model, list_models

__version__ = "0.1.0"

_WHERE = {
    "DevNet": "zoo.models.devnet.model",
    "DevNetDetector": "zoo.models.devnet.detector",
    "create_model": "zoo.registry",
    "list_models": "zoo.registry",
    "load": "zoo.checkpoint",
}

__all__ = ["DevNet", "DevNetDetector", "__version__", "create_model", "list_models", "load"]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'zoo' has no attribute {name!r}")
    value = getattr(import_module(_WHERE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_WHERE])
