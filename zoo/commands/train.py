"""``zoo train MODEL``: train a model and leave a run directory, or go on with a run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from parallel.errors import NonFiniteError, ParallelError
from zoo.commands.model import help_of, model_of
from zoo.commands.outcome import STOPPED, Outcome, on_ranks, shown_metrics, shown_trace
from zoo.config import OptionError, TrainConfig
from zoo.flags import flag, from_flags
from zoo.keeper import SaveError
from zoo.registry import ModelEntry
from zoo.resume import GoingOn, going_on
from zoo.run import check_free, create_folder, train
from zoo_datasets.errors import InputError

SUMMARY = "train a model"


def run(argv: list[str]) -> Outcome | None:
    if (shown := help_of("train", argv)) is not None:
        return shown
    entry = model_of("train", argv)
    given = {"parallel"} if any(word.split("=")[0] == "--parallel" for word in argv) else set()
    try:
        going = _going_on(argv[1:])
        kept = going.options(entry.name, given) if going else None
    except OptionError as error:
        raise InputError(f"{flag(error.option)} {error.message}") from None
    config: TrainConfig = from_flags(
        entry.load("config"),
        argv[1:],
        prog=f"zoo train {entry.name}",
        description=entry.summary,
        config_file=True,
        model=entry.name,
        defaults=kept,
        defaults_file=going.file if going else None,
    )
    if going:
        config = replace(config, out=going.out)
    if not going or not going.in_place:
        check_free(config.out)
    result = _with_restarts(entry, config)
    if result is None:
        return None
    lines = [f"run {result['run']}", shown_metrics(result["metrics"])]
    if result["stopped"]:
        lines = [f"stopped by {result['stopped']}; go on with --resume {result['run']}"]
    return Outcome(result, "\n".join(lines).rstrip(), STOPPED if result["stopped"] else 0)


def _going_on(argv: Sequence[str]) -> GoingOn | None:
    """What ``--resume`` and ``--out`` ask for."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--resume", nargs="?", const="")
    parser.add_argument("--out", nargs="?")
    found, _ = parser.parse_known_args(argv)
    return going_on(found.resume, Path(found.out) if found.out else None)


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
