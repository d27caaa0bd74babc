"""When a training saves, what it goes on from, and which checkpoints stay."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parallel.checkpoint import CheckpointError, DamagedError, VersionError, clear, is_complete
from zoo.checkpoint import CHECKPOINTS, checkpoints_of, extra_of, offer, step_folder
from zoo.config import TrainConfig
from zoo.recorder import Record

if TYPE_CHECKING:
    from parallel.interface import Parallel
    from parallel.signals import Notice
    from zoo.run import RunRecorder
    from zoo.trainer import Trainer

log = logging.getLogger("zoo")

_STEP = re.compile(r"step-(\d{8,})")


class SaveError(RuntimeError):
    """A checkpoint could not be written; says why, and which one there is."""


@dataclass(frozen=True)
class Reached:
    """How far a training is: steps done, the best evaluation, whether the one after these steps is still to come."""

    step: int = 0
    best: Record | None = None
    evaluation_due: bool = False


class Keeper:
    """Called by :func:`zoo.trainer.fit` on every rank. The base class saves nothing, as in training in memory."""

    def restore(self, trainer: Trainer[Any]) -> Reached:
        """Fills the built trainer's state, if there is something to go on from."""
        return Reached()

    def improved(self, step: int) -> None:
        """The evaluation after this step is the best so far."""

    def due(self, step: int, epoch: int, ends_epoch: bool) -> bool:
        """Called after each step (and its evaluation): whether to save now. The same on every rank."""
        return False

    def save(self, trainer: Trainer[Any], reached: Reached, metrics: Mapping[str, float]) -> None:
        """Saves, so that :meth:`restore` finds it; ``metrics`` are of the evaluation after the last step."""

    @property
    def stop(self) -> int:
        """The number of the signal by which the run was asked to stop, or 0."""
        return 0


class FolderKeeper(Keeper):
    """Saves into ``RUN/checkpoints/step-...``.

    Args:
        sources: checkpoints to go on from; the next is tried where one is damaged.
        recorder: on rank 0, whose folder is the run's once it has begun.
    """

    def __init__(
        self,
        p: Parallel,
        model: str,
        config: TrainConfig,
        sources: Sequence[Path],
        recorder: RunRecorder | None,
    ) -> None:
        self.p = p
        self.model = model
        self.config = config
        self.sources = sources
        self.recorder = recorder
        self.folder: Path | None = None
        self.last: Path | None = None  # the checkpoint saved last
        self._every, self._unit = config.save_interval()
        self._saved_at = 0.0  # in seconds of the run, for --save-every N minutes
        self._best: int | None = None
        self._notice: Notice | None = None
        self._pruned = True

    def restore(self, trainer: Trainer[Any]) -> Reached:
        problem: CheckpointError | None = None
        for source in self.sources:
            try:
                extra = self.p.load(source, **state_of(trainer))
            except DamagedError as error:
                problem = problem or error
                if self.p.is_main and source != self.sources[-1]:
                    log.warning("%s; going on from the checkpoint before it", error)
                continue
            except VersionError as error:  # good, so not to be written over
                problem = error
                break
            best = extra["best"]
            due = extra.get("evaluation_due", False)
            reached = Reached(extra["step"], Record(**best) if best else None, due)
            self._best = reached.best.step if reached.best else None
            self.last = source
            if self.p.is_main:
                log.info("going on from %s, after step %d", source, reached.step)
            return reached
        if problem is not None:
            found = self.p.broadcast(offer(self.sources[0]) if self.p.is_main else None)
            raise CheckpointError(f"{problem}{found}")
        return Reached()

    def improved(self, step: int) -> None:
        self._best = step

    def due(self, step: int, epoch: int, ends_epoch: bool) -> bool:
        notice = self._notice = self.p.notice()
        due = notice.save or bool(notice.stop) or (self.config.keep_best and self._best == step)
        if self._unit == "steps":
            due |= step % self._every == 0
        elif self._unit == "epochs":
            due |= ends_epoch and epoch % self._every == 0
        elif self._unit == "minutes" and notice.seconds - self._saved_at >= 60.0 * self._every:
            due = True
        if due:
            self._saved_at = notice.seconds
        return due

    @property
    def stop(self) -> int:
        return self._notice.stop if self._notice is not None else 0

    def save(self, trainer: Trainer[Any], reached: Reached, metrics: Mapping[str, float]) -> None:
        if self.folder is None:
            self.folder = self.p.broadcast(self.recorder.folder if self.recorder else None)
            assert self.folder is not None
        target = step_folder(self.folder, reached.step)
        if target == self.last:  # nothing has happened since
            return
        self._finish_last()
        if self.p.is_main and is_complete(target):  # left by a run that got further, and was found damaged
            clear(target)
        extra = extra_of(
            self.model,
            reached.step,
            self.config,
            trainer.describe(),
            metrics,
            reached.best.to_dict() if reached.best else None,
            reached.evaluation_due,
        )
        try:
            self.p.save(target, **state_of(trainer), extra=extra, background=self.config.async_save)
        except OSError as error:
            raise self._failed(error) from error
        self.last, self._pruned = target, False
        if not self.config.async_save:
            self._prune()

    def finish(self) -> None:
        """Returns once all is on the disk and what is not to stay is gone."""
        self._finish_last()

    def _finish_last(self) -> None:
        try:
            self.p.wait_for_saves()
        except OSError as error:
            raise self._failed(error) from error
        if not self._pruned:
            self._prune()

    def _failed(self, error: OSError) -> SaveError:
        assert self.folder is not None
        kept = checkpoints_of(self.folder)
        offer = f"the last checkpoint is {kept[-1]}" if kept else "there is no checkpoint yet"
        return SaveError(f"{error.strerror}; {offer}")

    def _prune(self) -> None:
        """Removes all but the latest and the best; only called when the latest is complete."""
        self._pruned = True
        if not self.p.is_main:
            return
        assert self.folder is not None and self.last is not None and is_complete(self.last)
        keep = set(checkpoints_of(self.folder)[-self.config.keep :]) | {self.last}
        if self.config.keep_best and self._best is not None:
            keep.add(step_folder(self.folder, self._best))
        for folder in (self.folder / CHECKPOINTS).iterdir():
            if _STEP.fullmatch(folder.name) and folder not in keep:
                clear(folder)


def state_of(trainer: Trainer[Any]) -> dict[str, Any]:
    """What ``p.save`` and ``p.load`` take of a built trainer."""
    return {
        "models": trainer.models,
        "emas": trainer.emas,
        "optimizers": trainer.optimizers,
        "loaders": {"train": trainer.train},
    }


def sources_of(config: TrainConfig) -> list[Path]:
    """The checkpoints that a run may go on from, the last first; none where it begins."""
    if config.resume is None:
        return []
    path = Path(config.resume) if config.resume else config.out
    assert path is not None
    return [path] if is_complete(path) else checkpoints_of(path)[::-1]
