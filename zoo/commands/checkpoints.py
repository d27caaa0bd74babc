"""``zoo checkpoints RUN``: what a run has saved."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parallel.checkpoint import CheckpointError, VersionError, is_complete, read_manifest
from parallel.checkpoint import verify as verify_checkpoint
from zoo.checkpoint import MANIFEST, checkpoints_of
from zoo.commands.outcome import Outcome
from zoo.flags import from_flags
from zoo.run import CONFIG
from zoo_datasets.errors import InputError

SUMMARY = "list a run's checkpoints, and check them"

BAD = 1  # exit code where a checkpoint is damaged, or of a later release


@dataclass(frozen=True, kw_only=True)
class CheckpointsConfig:
    """The options of ``zoo checkpoints``."""

    run: Path
    """a run directory, or a checkpoint in it"""
    verify: bool = False
    """read every byte and compare the checksums"""


def run(argv: list[str]) -> Outcome:
    config = from_flags(
        CheckpointsConfig, argv, prog="zoo checkpoints", description=SUMMARY, positionals={"run": "RUN"}
    )
    if not config.run.is_dir():
        raise InputError(f"{config.run}: no such run; give a run directory or a checkpoint in it")
    folders = [config.run] if is_complete(config.run) else checkpoints_of(config.run)
    if not folders and not (config.run / CONFIG).is_file():
        raise InputError(f"{config.run}: holds no run; give a run directory or a checkpoint in it")
    rows = [_row(folder, config.verify) for folder in folders]
    bad = any(row["problem"] for row in rows)
    text = "\n".join(map(_line, rows)) if rows else f"{config.run}: no checkpoints"
    return Outcome({"run": str(config.run), "checkpoints": rows}, text, BAD if bad else 0)


def _row(folder: Path, verify: bool) -> dict[str, Any]:
    """One checkpoint: "verified" is None where it was not asked, "problem" says what is wrong."""
    row: dict[str, Any] = {
        "checkpoint": str(folder),
        "step": None,
        "bytes": sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()),
        "age": time.time() - (folder / MANIFEST).stat().st_mtime,
        "metrics": {},
        "verified": None,
        "problem": None,
    }
    try:
        extra = (verify_checkpoint if verify else read_manifest)(folder).extra
    except VersionError as error:
        return row | {"problem": str(error)}
    except CheckpointError as error:
        return row | {"verified": False, "problem": str(error)}
    return row | {
        "step": extra.get("step"),
        "metrics": extra.get("metrics", {}),
        "verified": True if verify else None,
    }


def _line(row: dict[str, Any]) -> str:
    metrics = "  ".join(f"{name} {value:.4f}" for name, value in row["metrics"].items() if value is not None)
    state = {None: f"  {row['problem'] or ''}", True: "  verified", False: f"  DAMAGED: {row['problem']}"}
    name = Path(row["checkpoint"]).name
    about = f"{name}  {_size(row['bytes']):>9}  {_age(row['age']):>8} ago  {metrics}"
    return f"{about.rstrip()}{state[row['verified']]}".rstrip()


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def _age(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return f"{int(seconds)} s"
