"""What the options ``resume`` and ``out`` ask for: the run to go on with, and where it is written on."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parallel.checkpoint import is_complete
from zoo.checkpoint import MANIFEST, checkpoints_of, read_checkpoint
from zoo.config import OptionError, require
from zoo.fill import MODEL_KEY, read_yaml, to_dict
from zoo.run import CONFIG

_PLACE = ("parallel", "nproc", "tp", "engine_config")


@dataclass(frozen=True)
class GoingOn:
    """A run to go on with.

    Attributes:
        source: what was asked for. model: whose run it is, None where that is not written down.
        kept: its options, which count where others are not given. file: where they were read.
        out: the run directory to write, None for a new one. in_place: it is the run's own.
    """

    source: Path
    model: str | None
    kept: Mapping[str, Any]
    file: Path
    out: Path | None
    in_place: bool

    def options(self, model: str, given: Collection[str]) -> dict[str, Any]:
        """The run's options, but where it wrote, and on which ranks if ``given``, the fields given anew, say that.

        Raises:
            OptionError: it is a run of another model.
        """
        same = self.model in (None, model)
        require(same, "resume", f"{self.source}: is a run of another model than {model}")
        dropped = {"out", "resume", *(_PLACE if "parallel" in given else ())}
        return {name: value for name, value in self.kept.items() if name not in dropped}


def going_on(resume: str | None, out: Path | None) -> GoingOn | None:
    """What the two options ask for; None where a run begins.

    Raises:
        OptionError: there is nothing to go on with, or going on would write over later checkpoints.
    """
    if resume is None:
        return None
    if not resume:
        if out is None:
            raise OptionError("resume", "goes on with the run in --out DIR; give that, or --resume RUN")
        return _of_run(out, out, out) if (out / CONFIG).is_file() else None
    source = Path(resume)
    is_checkpoint = is_complete(source)
    run = source.parent.parent if is_checkpoint else source
    if (run / CONFIG).is_file():
        if is_checkpoint and out is None and checkpoints_of(run)[-1] != source:
            message = f"{source}: {run} has later checkpoints; give --out DIR to go on in another directory"
            raise OptionError("resume", message)
        return _of_run(source, run, out or run)
    require(is_checkpoint, "resume", f"{source}: no run, nor a checkpoint of one")
    checkpoint = read_checkpoint(source)  # kept apart from its run
    kept = to_dict(checkpoint.config)
    return GoingOn(source, checkpoint.entry.name, kept, source / MANIFEST, out, in_place=False)


def _of_run(source: Path, run: Path, out: Path) -> GoingOn:
    kept = read_yaml(run / CONFIG)
    return GoingOn(source, kept.pop(MODEL_KEY, None), kept, run / CONFIG, out, in_place=out == run)
