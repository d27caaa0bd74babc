"""``zoo train MODEL``: train a model and leave a run directory, or go on with a run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from parallel.errors import NonFiniteError, ParallelError
from zoo.checkpoint import checkpoints_of, is_complete
from zoo.commands.model import help_of, model_of
from zoo.commands.outcome import STOPPED, Outcome, on_ranks, shown_metrics, shown_trace
from zoo.config import TrainConfig
from zoo.fill import MODEL_KEY, read_yaml
from zoo.flags import from_flags
from zoo.keeper import SaveError
from zoo.registry import ModelEntry
from zoo.run import CONFIG, check_free, create_folder, train
from zoo_datasets.errors import InputError

SUMMARY = "train a model"


def run(argv: list[str]) -> Outcome | None:
    if (shown := help_of("train", argv)) is not None:
        return shown
    entry = model_of("train", argv)
    going_on = _going_on(argv[1:])
    config: TrainConfig = from_flags(
        entry.load("config"),
        argv[1:],
        prog=f"zoo train {entry.name}",
        description=entry.summary,
        config_file=True,
        model=entry.name,
        defaults=going_on.options(entry.name, argv) if going_on else None,
    )
    if going_on:
        config = replace(config, out=going_on.out)
    if not going_on or going_on.run != going_on.out:
        check_free(config.out)
    result = _with_restarts(entry, config)
    if result is None:
        return None
    lines = [f"run {result['run']}", shown_metrics(result["metrics"])]
    if result["stopped"]:
        lines = [f"stopped by {result['stopped']}; go on with --resume {result['run']}"]
    return Outcome(result, "\n".join(lines).rstrip(), STOPPED if result["stopped"] else 0)


@dataclass(frozen=True)
class _GoingOn:
    """A run to go on with.

    Attributes:
        run: its directory, whose options count where others are not given. out: the directory to write on in.
    """

    run: Path
    out: Path

    def options(self, model: str, argv: Sequence[str]) -> Mapping[str, Any]:
        """The run's options, but where it wrote, and on which ranks if others are asked for."""
        options = read_yaml(self.run / CONFIG)
        if options.pop(MODEL_KEY, model) != model:
            raise InputError(f"--resume {self.run}: is a run of another model than {model}")
        dropped = ["out", "resume"]
        if any(word.split("=")[0] == "--parallel" for word in argv):
            dropped += ["parallel", "nproc", "tp", "engine_config"]
        return {name: value for name, value in options.items() if name not in dropped}


def _going_on(argv: Sequence[str]) -> _GoingOn | None:
    """What ``--resume`` and ``--out`` ask for; None where a run begins."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--resume", nargs="?", const="")
    parser.add_argument("--out", nargs="?")
    found, _ = parser.parse_known_args(argv)
    out = Path(found.out) if found.out else None
    if found.resume is None:
        return None
    if not found.resume:
        if out is None:
            raise InputError("--resume goes on with the run in --out DIR; give that, or --resume RUN")
        return _GoingOn(out, out) if (out / CONFIG).is_file() else None
    source = Path(found.resume)
    run = source.parent.parent if is_complete(source) else source
    if not (run / CONFIG).is_file():
        raise InputError(f"--resume {source}: no run, nor a checkpoint of one")
    if is_complete(source) and out is None and checkpoints_of(run)[-1] != source:
        raise InputError(
            f"--resume {source}: {run} has later checkpoints; give --out DIR to go on in another directory"
        )
    return _GoingOn(run, out or run)


def _with_restarts(entry: ModelEntry, config: TrainConfig) -> dict[str, Any] | None:
    """Trains; after a crash again from the last checkpoint, as often as ``--max-restarts`` says."""
    left = config.max_restarts
    if not left:
        return on_ranks(train, config, entry, config)
    from parallel.launcher import find_launch

    if (place := find_launch()) is not None:
        raise InputError(f"--max-restarts under {place.found}: let it restart, with --out DIR --resume here")
    if config.out is None:
        config = replace(config, out=create_folder(None, entry.name))
    while True:
        try:
            return on_ranks(train, config, entry, config, in_place=False)
        except (InputError, ParallelError, NonFiniteError, SaveError):
            raise  # it would come to the same again
        except Exception as error:
            if not left:
                raise
            left -= 1
            print(shown_trace(error), file=sys.stderr)
            print(f"zoo: going on from the last checkpoint; {left} restarts are left", file=sys.stderr)
            config = replace(config, resume="")
