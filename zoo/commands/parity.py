"""``zoo parity MODEL``: whether strategies give one process's numbers, on the user's own machine."""

from __future__ import annotations

import dataclasses
import io
import sys
import tempfile
from pathlib import Path

from zoo.commands.model import help_of, model_of
from zoo.commands.outcome import Outcome
from zoo.config import TrainConfig
from zoo.flags import from_flags
from zoo.parity import Row, compare
from zoo.registry import ModelEntry
from zoo_datasets.errors import InputError

SUMMARY = "check that strategies give one process's numbers"

FAILED, REFUSED = 1, 2

# It counts in steps and leaves no run.
_UNUSED = (
    "epochs",
    "eval_every",
    "log_every",
    "out",
    "resume",
    "save_every",
    "keep",
    "keep_best",
    "async_save",
    "max_restarts",
)


def run(argv: list[str]) -> Outcome | None:
    if (shown := help_of("parity", argv)) is not None:
        return shown
    entry = model_of("parity", argv)
    config = _config(entry, argv)
    specs = list(dict.fromkeys(spec.strip() for spec in config.parallel.split(",") if spec.strip()))
    if not specs:
        raise InputError(f"name strategies: zoo parity {entry.name} --parallel ddp,fsdp --nproc 2")
    with tempfile.TemporaryDirectory(prefix="zoo-parity-") as folder:
        rows = compare(entry, config, specs, Path(folder))
    if rows is None:
        return None
    for row in rows:
        if row.refused is not None:
            print(f"zoo: {row.strategy}: {' '.join(row.refused.split())}", file=sys.stderr)
    failed = any(row.beyond for row in rows)
    refused = any(row.refused is not None for row in rows)
    result = {
        "model": entry.name,
        "steps": config.steps,
        "precision": config.precision,
        "passed": not failed and not refused,
        "strategies": [dataclasses.asdict(row) | {"passed": row.passed} for row in rows],
    }
    return Outcome(result, _text(rows, config.precision), FAILED if failed else REFUSED if refused else 0)


def _config(entry: ModelEntry, argv: list[str]) -> TrainConfig:
    config: TrainConfig = from_flags(
        entry.load("config"),
        argv[1:],
        prog=f"zoo parity {entry.name}",
        description=f"{SUMMARY}; --parallel takes several, as ddp,fsdp,tp",
        model=entry.name,
        defaults={"parallel": "", "steps": entry.parity_steps, "precision": "fp64"},
        without=_UNUSED,
    )
    return config


def _text(rows: list[Row], precision: str) -> str:
    """The table, and below it what failed."""
    from rich.console import Console
    from rich.table import Table

    names = ("loss", "grad norm", "weights", "answers", "parameters", "gradients", "optimizer", "a step")
    table = Table(box=None, pad_edge=False)
    table.add_column("strategy", no_wrap=True)
    table.add_column("ranks", justify="right", no_wrap=True)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for row in rows:
        table.add_row(row.strategy, str(row.ranks), *_cells(row))
    lines = io.StringIO()
    Console(file=lines, width=200, no_color=True).print(table)
    head = f"largest relative difference from one process, in {precision}; bytes on each rank, and sent by a step"
    shown = [line.rstrip() for line in lines.getvalue().splitlines()]
    beyond = [f"{row.strategy}: {what}" for row in rows for what in row.beyond]
    return "\n".join([head, "", *shown, *beyond])


def _cells(row: Row) -> list[str]:
    if row.refused is not None:
        return [""] * 8 + ["refused"]
    kinds = ("loss", "grad_norm", "weights", "answers")
    distances = [f"{row.distances[kind]:.1e}" if kind in row.distances else "" for kind in kinds]
    held = [_range([rank[kind] for rank in row.memory]) for kind in ("parameters", "gradients", "optimizer")]
    return [*distances, *held, shown_bytes(row.bytes_a_step), "pass" if row.passed else "FAIL"]


def _range(sizes: list[int]) -> str:
    (least, unit), (most, larger) = (shown_bytes(size).split() for size in (min(sizes), max(sizes)))
    if (least, unit) == (most, larger):
        return f"{most} {larger}"
    return f"{least} to {most} {unit}" if unit == larger else f"{least} {unit} to {most} {larger}"


def shown_bytes(size: int) -> str:
    """``1.2 MB``, in powers of 1,000."""
    amount: float = size
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} B" if unit == "B" else f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:.3g} TB"
