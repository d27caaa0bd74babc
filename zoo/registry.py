"""The models that the zoo knows: its own, those of installed packages, and those registered by hand.

A package adds its models through the entry-point group "parallel_zoo.models"; each entry point names a
:class:`ModelEntry`. Strings are imported when they are needed, so that listing the models imports no torch.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from zoo.config import TrainConfig, nearest
from zoo_datasets.errors import InputError, shown

if TYPE_CHECKING:
    from torch import nn

    from zoo.trainer import Trainer

GROUP = "parallel_zoo.models"


@dataclass(frozen=True)
class ModelEntry:
    """All that the zoo knows about a model; classes and functions may be given as "module:name".

    Attributes:
        name: as in ``zoo train NAME``.
        summary: one line for ``zoo list``.
        model: makes the bare module from the model's own arguments, which a trainer hands back as ``describe()["model"]``.
        config: the options of its training, a dataclass that inherits :class:`zoo.config.TrainConfig`.
        trainer: the :class:`zoo.trainer.Trainer`.
        sample: the options of ``zoo sample``, a dataclass that inherits :class:`zoo.config.LaunchConfig`, where the model
            can draw samples.
        convert: ``path -> zoo.run.Checkpoint``: reads a checkpoint that others published.
    """

    name: str
    summary: str
    model: str | Callable[..., nn.Module]
    config: str | type[TrainConfig]
    trainer: str | type[Trainer]
    sample: str | type | None = None
    convert: str | Callable[..., Any] | None = None

    def load(self, what: str) -> Any:
        """The class or function that a field names, imported."""
        return resolve(getattr(self, what))


# The zoo's own. Alphabetical; each package holds MODEL, its entry.
_OWN = ("zoo.models.devnet:MODEL",)
_registered: dict[str, ModelEntry] = {}


def register(entry: ModelEntry) -> ModelEntry:
    """Adds a model to this process's registry; ranks that are started from here do not see it, entry points they do.

    Raises:
        ValueError: another model has that name.
    """
    if entry.name in _entries():
        raise ValueError(f"there is a model {shown(entry.name)} already; choose another name")
    _registered[entry.name] = entry
    return entry


def list_models() -> list[str]:
    """The models' names, sorted."""
    return sorted(_entries())


def get(name: str) -> ModelEntry:
    """A model's entry.

    Raises:
        InputError: no such model; names the nearest.
    """
    entries = _entries()
    if name not in entries:
        raise InputError(f"unknown model {shown(name)}; {nearest(name, sorted(entries))}")
    return entries[name]


def create_model(name: str, **options: Any) -> nn.Module:
    """A bare module with fresh weights, such as ``create_model("devnet", in_features=21, depth=2)``.

    Raises:
        InputError: no such model, or an option it does not have or misses.
    """
    make = get(name).load("model")
    parameters = inspect.signature(make).parameters
    for option in options:
        if option not in parameters:
            raise InputError(f"model {name}: unknown option {shown(option)}; {nearest(option, parameters)}")
    for parameter in parameters.values():
        if parameter.default is parameter.empty and parameter.name not in options:
            raise InputError(f"model {name}: option {parameter.name} is missing")
    return make(**options)


def resolve(target: Any) -> Any:
    """What "module:name" names, imported; anything else as it is."""
    if not isinstance(target, str):
        return target
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def _entries() -> dict[str, ModelEntry]:
    found: dict[str, ModelEntry] = {}
    for entry in map(resolve, _OWN):
        found[entry.name] = entry
    for point in entry_points(group=GROUP):
        entry = point.load()
        if not isinstance(entry, ModelEntry):
            raise InputError(
                f"entry point {point.name!r} of {GROUP} is not a zoo.registry.ModelEntry: {point.value}"
            )
        if entry.name in found:
            raise InputError(
                f"entry point {point.name!r} of {GROUP}: there is a model {entry.name!r} already"
            )
        found[entry.name] = entry
    return found | _registered
