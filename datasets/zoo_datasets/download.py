"""Files fetched once, checked by their SHA-256, and kept."""

from __future__ import annotations

import hashlib
import os
import urllib.request
import uuid
from pathlib import Path

from zoo_datasets.errors import InputError

__all__ = ["cache_folder", "fetch"]

_TIMEOUT_SECONDS = 30


def cache_folder() -> Path:
    """``$ZOO_CACHE``, or ``~/.cache/parallel-zoo``."""
    chosen = os.environ.get("ZOO_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "parallel-zoo"


def fetch(url: str, sha256: str, path: Path) -> Path:
    """Return ``path``, downloading it first where it is absent.

    It appears at once and complete: several processes may fetch it at the same time.

    Raises:
        InputError: it cannot be downloaded (the message says where to put it by hand) or written, or its
            checksum is another.
    """
    if path.exists():
        _check(_digest(path), sha256, f"{path} is not the published file; remove it to download it again")
        return path
    part = path.with_name(f"{path.name}.{uuid.uuid4().hex}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.touch()
    except OSError as error:
        raise InputError(
            f"{path.parent}: cannot keep the download there ({error.strerror}); choose a folder by ZOO_CACHE"
        ) from None
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as response, open(part, "wb") as file:
            while block := response.read(1 << 20):
                file.write(block)
        _check(_digest(part), sha256, f"{url} is no longer the published file")
        part.replace(path)
    except OSError as error:  # urllib's errors are subclasses
        reason = " ".join(str(getattr(error, "reason", error)).split())
        raise InputError(
            f"cannot download {url} ({reason}); fetch it elsewhere and put it at {path}"
        ) from None
    finally:
        part.unlink(missing_ok=True)
    return path


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check(found: str, wanted: str, problem: str) -> None:
    if found != wanted:
        raise InputError(f"{problem} (SHA-256 {found}, wanted {wanted})")
