"""A run on disk: ``runs/MODEL/NAME`` with its options, numbers, log, report and checkpoints.

config.yaml     the options, which ``--config`` reads back
metrics.jsonl   one JSON object a step, and one an evaluation, whose names begin with eval_
log.txt         what the run said
report/         plots and tables of the last evaluation
checkpoints/    step-00000400/ and so on
"""

from __future__ import annotations

import fcntl
import json
import logging
import math
import os
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TextIO

from parallel.launcher import describe_launch
from zoo.checkpoint import finite
from zoo.config import TrainConfig
from zoo.fill import to_yaml
from zoo.keeper import FolderKeeper, sources_of
from zoo.progress import Progress, listening
from zoo.recorder import Record, Recorder
from zoo_datasets.errors import InputError

if TYPE_CHECKING:
    from parallel.interface import Parallel
    from zoo.registry import ModelEntry
    from zoo.trainer import Trainer

log = logging.getLogger("zoo")

_ENCODER = json.JSONEncoder(allow_nan=False)

_EVAL = "eval_"  # before the names of an evaluation's metrics, among a step's
CONFIG, METRICS, LOG, REPORT = "config.yaml", "metrics.jsonl", "log.txt", "report"


def train(p: Parallel, entry: ModelEntry, config: TrainConfig) -> dict[str, Any] | None:
    """Trains a model and leaves a run directory; called on every rank.

    Returns:
        on rank 0 what ``zoo train --json`` prints: model, run, checkpoint, steps, metrics, best, stopped.

    Raises:
        InputError: the data does not fit the model, or ``config.out`` holds something already.
        CheckpointError: there is no good checkpoint to go on from.
        SaveError: a checkpoint cannot be written.
    """
    from zoo.trainer import fit

    sources: list[Path] = p.broadcast(sources_of(config) if p.is_main else None)
    trainer: Trainer[Any] = entry.load("trainer")(p, config.going_on() if sources else config)
    run = RunRecorder(entry.name, config, p) if p.is_main else None
    keeper = FolderKeeper(p, entry.name, config, sources, run)
    with run or nullcontext():
        result = fit(trainer, run, keeper)
        keeper.finish()
        if run is None:
            return None
        assert run.folder is not None
        if result.evaluation is not None:
            (run.folder / REPORT).mkdir(exist_ok=True)
            trainer.report(run.folder / REPORT, result.evaluation)
        log.info("run written to %s", run.folder)
        stopped = signal.Signals(result.stopped).name if result.stopped else None
        if stopped:
            log.info("stopped by %s after step %d; --resume %s goes on", stopped, result.steps, run.folder)
    name, best = trainer.best_metric, result.best
    return {
        "model": entry.name,
        "run": str(run.folder),
        "checkpoint": str(keeper.last),
        "steps": result.steps,
        "metrics": dict(result.evaluation.metrics) if result.evaluation is not None else {},
        "best": {"step": best.step, name: best.values[name]} if name and best else None,
        "stopped": stopped,
    }


def check_free(folder: Path | None) -> None:
    """Raises unless a new run may be written into the folder: it is not there, or empty.

    Raises:
        InputError: it holds another run, or anything.
    """
    if folder is None:
        return
    if above := next((parent for parent in folder.parents if os.path.isfile(parent)), None):
        raise InputError(f"--out {folder}: {above} is a file; give a folder that is new or empty")
    if not os.path.exists(folder):  # which is silent about names that cannot be, unlike Path.exists
        return
    if not folder.is_dir():
        raise InputError(f"--out {folder}: is a file; give a folder that is new or empty")
    if (folder / CONFIG).exists():
        raise InputError(
            f"--out {folder}: holds another run; --resume goes on with it, or give a folder that is new or empty"
        )
    if any(folder.iterdir()):
        raise InputError(f"--out {folder}: is not empty; give a folder that is new or empty")


def create_folder(out: Path | None, model: str) -> Path:
    """Makes a run's folder: ``out``, or runs/MODEL/DATE-TIME, which is another one for every run of a second.

    Raises:
        InputError: ``out`` holds something already.
    """
    if out is not None:
        check_free(out)
        _make(out, exist_ok=True)
        return out
    name = time.strftime("%Y%m%d-%H%M%S")
    number = 1
    while True:
        folder = Path("runs") / model / (name if number == 1 else f"{name}-{number}")
        try:
            _make(folder)
            return folder
        except FileExistsError:  # mkdir is atomic: of two runs one gets here
            number += 1


def _make(folder: Path, exist_ok: bool = False) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=exist_ok)
    except FileExistsError:
        raise
    except OSError as error:
        raise InputError(f"--out {folder}: cannot be made: {error.strerror}") from None


def keep_metrics(file: Path, steps: int, evaluation_due: bool = False) -> None:
    """Drops the lines of later steps, which will be done again, and one that was being written.

    ``evaluation_due``: the evaluation after ``steps`` will be done again too.

    Raises:
        InputError: a line is not what a run writes.
    """
    if not file.exists():
        return
    evaluates_again = evaluation_due or steps == 0  # before its first step, where a run begins again
    kept = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(keepends=True), start=1):
        if not line.endswith("\n"):
            continue
        try:
            values = json.loads(line)
            again = values["step"] > steps or (
                values["step"] == steps and evaluates_again and any(name.startswith(_EVAL) for name in values)
            )
        except (ValueError, TypeError, KeyError):
            raise InputError(f"{file}, line {number}: is no record of a step; remove the line") from None
        if not again:
            kept.append(line)
    draft = file.with_suffix(".draft")
    draft.write_text("".join(kept), encoding="utf-8")
    draft.replace(file)


def _locked(file: Path, mode: Literal["a", "x"]) -> TextIO:
    """Opens a run's file that one process at a time may have open; the lock goes with the process, however it ends.

    Raises:
        InputError: another process has it.
    """
    folder = file.parent
    try:
        opened = file.open(mode, encoding="utf-8")
    except FileExistsError:  # since the folder was found empty
        raise InputError(f"--out {folder}: holds another run; give a folder that is new or empty") from None
    try:
        # Of the process, not of the file that is open, as flock's is: data loading's forked workers do not share it.
        fcntl.lockf(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        opened.close()
        raise InputError(
            f"--out {folder}: another process is training there; stop that first, or give another folder"
        ) from None
    except OSError as error:  # cluster file systems may have none
        log.warning(
            "%s cannot be locked (%s): see to it that one job at a time trains there", file, error.strerror
        )
    return opened


class RunRecorder(Recorder):
    """Writes a run down and shows its progress while it is entered; for the one rank that writes."""

    def __init__(self, model: str, config: TrainConfig, p: Parallel) -> None:
        self.model = model
        self.config = config
        self.folder: Path | None = None
        self._ranks = f"{p.spec} on {p.world_size} rank{'s' if p.world_size > 1 else ''}, {p.precision}"
        self._total = 0
        self._begun = 0.0
        self._metrics: TextIO
        self._strange: set[str] = set()  # numbers that were not finite
        self._stack = ExitStack()
        self._progress = Progress()
        self._log = _LogFile()

    def __enter__(self) -> RunRecorder:
        self._stack.enter_context(self._progress)
        self._stack.enter_context(listening(self._log))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._log.line(f"stopped by {type(error).__name__} {error}".rstrip())
        self._stack.close()

    def begin(self, steps: int, steps_per_epoch: int, done: int = 0, evaluation_due: bool = False) -> None:
        out = self.config.out
        goes_on = self.config.resume is not None and out is not None and (out / CONFIG).exists()
        if goes_on:
            assert out is not None
            folder = out
        else:
            # Only now, with the data read and the model built: bad input leaves no folder behind.
            folder = create_folder(out, self.model)
        mode: Literal["a", "x"] = "a" if goes_on else "x"
        options = self._stack.enter_context(_locked(folder / CONFIG, mode))
        self.folder = folder
        options.truncate(0)
        options.write(to_yaml(replace(self.config, resume=None), self.model))
        options.flush()
        keep_metrics(folder / METRICS, done, evaluation_due)
        self._metrics = self._stack.enter_context((self.folder / METRICS).open(mode, encoding="utf-8"))
        self._log.open(self._stack.enter_context((self.folder / LOG).open(mode, encoding="utf-8")))
        log.info("%s: %s; %d steps, %d an epoch", self.model, self._ranks, steps, steps_per_epoch)
        if said := describe_launch():
            log.info("%s", said)
        self._progress.begin(self.model, steps)
        self._total, self._begun = steps, time.monotonic()

    def tick(self, step: int) -> None:
        self._progress.tick(step)

    def steps(self, records: Sequence[Record]) -> None:
        self._write({"step": record.step, "epoch": record.epoch, **record.values} for record in records)
        for record in records:
            for name, value in record.values.items():
                if not math.isfinite(value) and name not in self._strange:
                    self._strange.add(name)
                    log.warning("step %d: %s is %s (said once)", record.step, name, value)
        last = records[-1]
        self._progress.numbers(last.step, f"epoch {last.epoch}  {shown_numbers(last.values)}")
        if last.step == self._total:
            log.info("trained %d steps in %.1f s", self._total, time.monotonic() - self._begun)

    def evaluation(self, record: Record) -> None:
        values = {f"{_EVAL}{name}": value for name, value in record.values.items()}
        self._write([{"step": record.step, "epoch": record.epoch, **values}])
        log.info("evaluation after step %d: %s", record.step, shown_numbers(record.values))

    def _write(self, lines: Iterable[Mapping[str, float]]) -> None:
        self._metrics.writelines(to_json(line) + "\n" for line in lines)
        self._metrics.flush()


class _LogFile(logging.Handler):
    """Writes messages to a file; those that come before it is opened are kept until then."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._file: TextIO = StringIO()

    def open(self, file: TextIO) -> None:
        file.write(self._file.getvalue() if isinstance(self._file, StringIO) else "")
        self._file = file

    def emit(self, record: logging.LogRecord) -> None:
        self.line(self.format(record))

    def line(self, text: str) -> None:
        self._file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {text}\n")
        self._file.flush()


def shown_numbers(values: Mapping[str, float]) -> str:
    """``loss 0.1234  lr 0.001``, for people."""
    return "  ".join(f"{name} {value:.6g}" for name, value in values.items())


def to_json(value: Any) -> str:
    """One line of JSON. Not-a-number and infinity, which JSON lacks, become null."""
    try:
        return _ENCODER.encode(value)
    except ValueError:
        return _ENCODER.encode(finite(value))
