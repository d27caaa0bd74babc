"""``manifest.json``: all of a checkpoint that is no tensor, and its files' checksums. Needs no torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from parallel.checkpoint.disk import FileSum, checksum, write_text
from parallel.errors import ParallelError

NAME = "manifest.json"
VERSION = 1


class CheckpointError(ParallelError):
    """A checkpoint that is damaged, of another version, or of other models; names the file and what is wrong."""


class DamagedError(CheckpointError):
    """A file is missing, or its bytes are not those that were written: an earlier checkpoint is the better one."""


class VersionError(CheckpointError):
    """Whole, but written by a later release than this."""


@dataclass(frozen=True)
class Manifest:
    """What ``manifest.json`` holds.

    Attributes:
        models: by name, the tied names of their state dict and whose tensor each is.
        emas: by model, {"decay": 0.999}.
        optimizers: by name, {"class": "Adam", "steps": 400, "scaler": null or {...}, "parameters": [names]}.
        loaders: by name, their position in global samples.
        extra: what the caller gave.
        written: by what: strategy, ranks, versions; nothing reads it back.
        files: by path below the folder.
    """

    models: dict[str, dict[str, str]] = field(default_factory=dict)
    emas: dict[str, dict[str, float]] = field(default_factory=dict)
    optimizers: dict[str, dict[str, Any]] = field(default_factory=dict)
    loaders: dict[str, dict[str, int]] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    written: dict[str, Any] = field(default_factory=dict)
    files: dict[str, FileSum] = field(default_factory=dict)


def is_complete(folder: Path) -> bool:
    """Whether a folder is a checkpoint; one that was interrupted has no manifest."""
    return (folder / NAME).is_file()


def write_manifest(folder: Path, manifest: Manifest) -> None:
    # As it will be read: tuples are lists there, and keys are text.
    body = json.loads(json.dumps({"version": VERSION, **asdict(manifest)}, allow_nan=False))
    write_text(folder / NAME, json.dumps({"checksum": _digest(body), **body}, indent=1) + "\n")


def read_manifest(folder: Path) -> Manifest:
    """Reads and checks ``folder/manifest.json``.

    Raises:
        DamagedError: there is none, or it is damaged.
        VersionError: it is of a version that is not known here.
    """
    path = folder / NAME
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DamagedError(f"{folder}: no checkpoint, since it holds no {NAME}") from None
    except (OSError, ValueError) as error:
        raise DamagedError(f"{path}: cannot be read: {error}") from None
    if not isinstance(body, dict) or "version" not in body or "checksum" not in body:
        raise DamagedError(f"{path}: not the manifest of a checkpoint")
    stated = body.pop("checksum")
    if isinstance(body["version"], int) and body["version"] > VERSION:
        raise VersionError(
            f"{path}: of version {body['version']}, and this release reads up to {VERSION}: upgrade to load it"
        )
    if stated != _digest(body):
        raise DamagedError(f"{path}: damaged, its checksum differs")
    del body["version"]
    files = {name: FileSum(**value) for name, value in body.pop("files").items()}
    return Manifest(files=files, **body)


def check_sizes(folder: Path, manifest: Manifest) -> None:
    """Raises a :class:`DamagedError` where a file is missing, or shorter or longer than it was."""
    for name, stated in manifest.files.items():
        try:
            size = (folder / name).stat().st_size
        except FileNotFoundError:
            raise DamagedError(f"{folder / name}: missing") from None
        if size != stated.bytes:
            raise DamagedError(f"{folder / name}: {size} bytes, and {stated.bytes} were written")


def check_sums(folder: Path, manifest: Manifest, names: Iterable[str]) -> None:
    """Raises a :class:`DamagedError` where a file's bytes are not those that were written."""
    for name in names:
        try:
            found = checksum(folder / name)
        except OSError as error:
            raise DamagedError(f"{folder / name}: cannot be read: {error.strerror}") from None
        if found != manifest.files[name]:
            raise DamagedError(f"{folder / name}: damaged, its checksum differs")


def verify(folder: Path) -> Manifest:
    """Reads every byte of a checkpoint.

    Raises:
        DamagedError: something is missing or damaged.
        VersionError: it is of a version that is not known here.
    """
    manifest = read_manifest(folder)
    check_sizes(folder, manifest)
    check_sums(folder, manifest, manifest.files)
    return manifest


def clear(folder: Path) -> None:
    """Removes a checkpoint, whole or not: the manifest first, so that at no moment it is a damaged one."""
    (folder / NAME).unlink(missing_ok=True)
    for inner in ("weights", "state"):
        if (folder / inner).is_dir():
            for file in (folder / inner).iterdir():
                file.unlink()
            (folder / inner).rmdir()
    (folder / f".{NAME}.draft").unlink(missing_ok=True)
    if folder.is_dir():
        folder.rmdir()


def _digest(body: Mapping[str, Any]) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
