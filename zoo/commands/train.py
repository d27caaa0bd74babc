"""``zoo train MODEL``: train a model and leave a run directory."""

from __future__ import annotations

from typing import Any

from zoo import registry
from zoo.commands.outcome import Outcome, on_ranks, shown_metrics
from zoo.config import TrainConfig
from zoo.flags import from_flags
from zoo.run import check_free, train
from zoo_datasets.errors import InputError

SUMMARY = "train a model"


def run(argv: list[str]) -> Outcome | None:
    if not argv or argv[0] in ("-h", "--help"):
        return _help(asked=bool(argv))
    if argv[0].startswith("-"):
        raise InputError(
            f"the model comes first, as in `zoo train {registry.list_models()[0]} {argv[0]} ...`"
        )
    entry = registry.get(argv[0])
    config: TrainConfig = from_flags(
        entry.load("config"),
        argv[1:],
        prog=f"zoo train {entry.name}",
        description=entry.summary,
        config_file=True,
        model=entry.name,
    )
    check_free(config.out)
    result: dict[str, Any] | None = on_ranks(train, config, entry, config)
    if result is None:
        return None
    return Outcome(result, "\n".join([f"run {result['run']}", shown_metrics(result["metrics"])]).rstrip())


def _help(asked: bool) -> Outcome:
    names = ", ".join(registry.list_models())
    if not asked:
        raise InputError(f"name a model: {names}")
    usage = f"usage: zoo train MODEL [--config FILE] [options]\n\nModels: {names}\n\n"
    return Outcome({}, f"{usage}`zoo train MODEL --help` shows a model's options.")
