"""``zoo COMMAND MODEL ...``: what the commands share that train a model."""

from __future__ import annotations

from zoo import registry
from zoo.commands.outcome import Outcome
from zoo_datasets.errors import InputError


def help_of(command: str, argv: list[str]) -> Outcome | None:
    """The help on ``zoo COMMAND --help``; None where a model is named.

    Raises:
        InputError: nothing is named.
    """
    names = ", ".join(registry.list_models())
    if not argv:
        raise InputError(f"name a model: {names}")
    if argv[0] not in ("-h", "--help"):
        return None
    usage = f"usage: zoo {command} MODEL [options]\n\nModels: {names}\n\n"
    return Outcome({}, f"{usage}`zoo {command} MODEL --help` shows a model's options.")


def model_of(command: str, argv: list[str]) -> registry.ModelEntry:
    """The model that comes first on the command line."""
    if argv[0].startswith("-"):
        raise InputError(
            f"the model comes first, as in `zoo {command} {registry.list_models()[0]} {argv[0]} ...`"
        )
    return registry.get(argv[0])
