"""``zoo train MODEL``: train a model and leave a run directory."""

from __future__ import annotations

from typing import Any

from zoo.commands.model import help_of, model_of
from zoo.commands.outcome import Outcome, on_ranks, shown_metrics
from zoo.config import TrainConfig
from zoo.flags import from_flags
from zoo.run import check_free, train

SUMMARY = "train a model"


def run(argv: list[str]) -> Outcome | None:
    if (shown := help_of("train", argv)) is not None:
        return shown
    entry = model_of("train", argv)
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
