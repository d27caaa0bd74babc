"""Files that survive a crash, and checksums that tell whether they did. Needs no torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import xxhash

BLOCK = 2**18  # bytes hashed and written at a time: they stay in the processor's cache in between


@dataclass(frozen=True)
class FileSum:
    """What the manifest says of a file: its size, and its XXH3 hash of 128 bits (what ``xxh128sum`` prints)."""

    bytes: int
    xxh128: str


def checksum(path: Path) -> FileSum:
    """Reads a file once."""
    digest, size = xxhash.xxh3_128(), 0
    buffer = memoryview(bytearray(BLOCK))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
            size += count
    return FileSum(size, digest.hexdigest())


def write_text(path: Path, text: str) -> None:
    """Puts a file in place whole, or not at all: written beside, flushed to the disk, renamed."""
    draft = path.with_name(f".{path.name}.draft")
    with named(path), draft.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Flushes a folder's list of names to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Names the file in errors of the system that know of none, as those of a write."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
