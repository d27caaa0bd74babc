"""How many steps each rank of a run has finished, for whoever has to say which of them is stuck. Needs no torch."""

from __future__ import annotations

import mmap
from pathlib import Path

_BYTES = 8


class Progress:
    """Eight bytes of a file that both a rank and its parent have in memory: counting a step is one write to them."""

    def __init__(self, folder: Path, rank: int) -> None:
        with _file(folder, rank).open("w+b") as file:
            file.write(bytes(_BYTES))
            file.flush()
            self._memory = mmap.mmap(file.fileno(), _BYTES)

    def note(self, steps: int) -> None:
        self._memory[:] = steps.to_bytes(_BYTES, "little")


def read_progress(folder: Path, size: int) -> list[int]:
    """Steps finished by each of ``size`` ranks; 0 for one that has not begun."""
    files = [_file(folder, rank) for rank in range(size)]
    return [int.from_bytes(file.read_bytes(), "little") if file.exists() else 0 for file in files]


def _file(folder: Path, rank: int) -> Path:
    return folder / f"progress-{rank}"
