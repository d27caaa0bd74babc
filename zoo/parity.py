"""Does a strategy give one process's numbers? A model's own training under each, and how far apart they are.

Also what each rank holds and what a step sends, so that one sees what a strategy is for.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from parallel import ParallelError, launch_each
from zoo.config import TrainConfig
from zoo.registry import ModelEntry

if TYPE_CHECKING:
    from torch import Tensor

    from parallel.accounting import Traffic
    from parallel.interface import Parallel
    from parallel.testing import Trace
    from zoo.table import Rows
    from zoo.trainer import Numbers, Trainer

log = logging.getLogger("zoo")

T = TypeVar("T")

REFERENCE = "single"


@dataclass(frozen=True)
class Row:
    """What one strategy came to.

    Attributes:
        ranks: processes.
        refused: why the strategy cannot run this model, if it cannot; the rest is empty then.
        distances: largest relative difference from one process by kind: loss, grad_norm, lr, weights, answers.
        beyond: those that are larger than allowed, in words.
        memory: bytes on each rank by kind: parameters, gradients, optimizer.
        traffic: collectives of one step by kind, each {"calls": ..., "bytes": ...}.
    """

    strategy: str
    ranks: int
    refused: str | None = None
    distances: Mapping[str, float] = field(default_factory=dict)
    beyond: list[str] = field(default_factory=list)
    memory: list[dict[str, int]] = field(default_factory=list)
    traffic: Mapping[str, dict[str, int]] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return self.refused is None and not self.beyond

    @property
    def bytes_a_step(self) -> int:
        return sum(kind["bytes"] for kind in self.traffic.values())


def compare(entry: ModelEntry, config: TrainConfig, specs: list[str], folder: Path) -> list[Row] | None:
    """Trains in one process and under each spec; a row for each, or None on a launcher's ranks but the first.

    Args:
        config: ``nproc`` and the rest hold for all; ``parallel`` is not looked at.
        folder: an existing folder on the first rank's machine, for one process's weights.
    """
    rows = launch_each(measure, [REFERENCE, *specs], entry, config, folder, **config.launch_options())
    return None if rows[0] is None else rows[1:]


def measure(p: Parallel, entry: ModelEntry, config: TrainConfig, folder: Path) -> Row | None:
    """Trains under ``p``, which is one process first and leaves its trace in the folder; rank 0's row."""
    import torch

    from parallel.testing import Trace, differences, distances

    kept = folder / "reference"
    is_reference = p.is_main and not kept.exists()
    try:
        trace, traffic = train(entry.load("trainer")(p, config), entry.name)
    except ParallelError as error:
        if is_reference:
            raise
        return Row(p.spec, p.world_size, refused=str(error)) if p.is_main else None
    memory = p.memory_per_rank()
    if not p.is_main:
        return None
    if is_reference:
        torch.save(vars(trace), kept)
    want = Trace(**torch.load(kept, weights_only=True))
    found = distances(want, trace)
    if not want.answers:
        del found["answers"]
    return Row(
        p.spec,
        p.world_size,
        distances=found,
        beyond=differences(want, trace, config.precision),
        memory=[
            {"parameters": own.parameters, "gradients": own.gradients, "optimizer": own.optimizer}
            for own in memory
        ],
        traffic={
            kind: {"calls": calls, "bytes": traffic.bytes[kind]} for kind, calls in traffic.calls.items()
        },
    )


def train(trainer: Trainer[Any], name: str) -> tuple[Trace, Traffic]:
    """Every step's numbers and the final state, on rank 0 those of all ranks; and what the last step sent."""
    from parallel.testing import Trace, note_gradients
    from zoo.progress import shown_on
    from zoo.trainer import evaluating

    p, trace = trainer.p, Trace()
    trainer.build()
    total = trainer.config.steps
    whole = p.spec == REFERENCE
    gradients = {key: note_gradients(net) if whole else {} for key, net in trainer.models.items()}
    with shown_on(p):
        ranks = f"{p.world_size} rank{'s' if p.world_size > 1 else ''}"
        log.info("%s: %d steps under %s on %s", name, total, p.spec, ranks)
    done = 0
    while done < total:
        for batch in trainer.train:
            with p.traffic() as traffic:
                numbers = trainer.step(batch)
            _note(p, trace, numbers)
            done += 1
            if done == total:
                break
    for key, net in trainer.models.items():
        trace.weights |= _named(key, p.state_dict(net))
        trace.gradients |= _named(key, gradients[key])
    for key, average in trainer.emas.items():
        with average.applied():
            trace.weights |= _named(f"{key}.ema", p.state_dict(trainer.models[key]))
            trace.gradients |= _named(f"{key}.ema", gradients[key])
    with evaluating(trainer):
        trace.answers = _numeric(trainer.probe())
    return trace, traffic


def _note(p: Parallel, trace: Trace, numbers: Numbers) -> None:
    from parallel import StepInfo

    for value in numbers.values():
        if isinstance(value, StepInfo):
            trace.norms.append(float(value.grad_norm))
            trace.lrs.append(value.lr)
        else:
            trace.losses.append(float(p.sum(value)))


def _named(prefix: str, values: Mapping[str, T]) -> dict[str, T]:
    return {f"{prefix}.{name}": value for name, value in values.items()}


def _numeric(rows: Rows) -> dict[str, Tensor]:
    """The columns that hold numbers."""
    import numpy as np
    import torch

    columns = {name: np.asarray(column) for name, column in rows.items()}
    return {name: torch.from_numpy(column) for name, column in columns.items() if column.dtype.kind in "fiub"}
