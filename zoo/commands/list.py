"""``zoo list``: the models, and the ways to spread their training."""

from __future__ import annotations

from dataclasses import dataclass

from zoo import registry
from zoo.commands.outcome import Outcome
from zoo.flags import from_flags

SUMMARY = "show the models and the parallel strategies"


@dataclass(frozen=True)
class ListConfig:
    """``zoo list`` has no options."""


def run(argv: list[str]) -> Outcome:
    from parallel.registry import COMBINED, entries

    from_flags(ListConfig, argv, prog="zoo list", description=SUMMARY)
    models = {name: registry.get(name).summary for name in registry.list_models()}
    found = entries()
    strategies = {entry.name: entry.summary for entry in found}
    missing = {entry.name: entry.missing() for entry in found}
    usable = {name: summary for name, summary in strategies.items() if not missing[name]}
    lines = ["models:", *_table(models), "", "strategies (--parallel):", *_table(usable)]
    lines += [f"  and one that splits the batch with tp, on two axes of ranks: {', '.join(COMBINED)}"]
    if any(missing.values()):
        lines += ["", "strategies that cannot run here:"]
        lines += _table({name: why for name, why in missing.items() if why})
    named = [{**row, "missing": missing[row["name"]] or None} for row in _named(strategies)]
    return Outcome({"models": _named(models), "strategies": named}, "\n".join(lines))


def _table(summaries: dict[str, str]) -> list[str]:
    width = max(map(len, summaries), default=0)
    return [f"  {name:<{width}}  {summary}" for name, summary in summaries.items()]


def _named(summaries: dict[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "summary": summary} for name, summary in summaries.items()]
