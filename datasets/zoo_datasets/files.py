"""Checks on a user's file before any reader sees it, so that all readers fail alike."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

from zoo_datasets.errors import InputError

__all__ = ["optional_import", "readable_file"]


def readable_file(path: str | Path) -> Path:
    """Return ``path`` as a Path that names a readable file of at least one byte.

    Raises:
        InputError: no such file, a directory, no permission, or an empty file.
    """
    path = Path(path)
    try:
        with open(path, "rb") as file:
            empty = not file.read(1)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path}: is a directory, a file is needed") from None
    except PermissionError:
        raise InputError(f"{path}: no permission to read it") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    if empty:
        raise InputError(f"{path}: the file is empty")
    return path


def optional_import(module: str, purpose: str, extra: str) -> ModuleType:
    """Import a module that only an extra installs.

    Raises:
        InputError: it is not installed; the message holds the pip line.
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        raise InputError(
            f"{purpose} needs {module.split('.')[0]}: pip install 'parallel-zoo[{extra}]'"
        ) from None
