"""The models that the zoo knows: its own, those of installed packages, and those registered by hand.

A package adds models through the entry-point group "parallel_zoo.models": each entry point has the name of a
model and points at its :class:`ModelEntry`. What that names is imported when needed: listing needs no torch.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.config import TrainConfig
from zoo.fill import nearest
from zoo_datasets.errors import InputError, shown

if TYPE_CHECKING:
    from torch import nn

    from zoo.trainer import Trainer

GROUP = "parallel_zoo.models"

# The zoo's own models, each described by its package.
_OWN = {
    "ddpm": "zoo.models.ddpm:MODEL",
    "devnet": "zoo.models.devnet:MODEL",
    "sean": "zoo.models.sean:MODEL",
    "vit": "zoo.models.vit:MODEL",
}


@dataclass(frozen=True)
class ModelEntry:
    """All that the zoo knows about a model; classes and functions may be given as "module:name".

    Attributes:
        name: as in ``zoo train NAME``.
        summary: one line for ``zoo list``.
        model: makes the bare module, from arguments that a trainer gives as ``describe()["model"]``.
        config: the options of its training, a dataclass that inherits :class:`zoo.config.TrainConfig`.
        trainer: the :class:`zoo.trainer.Trainer`.
        sample: where the model draws samples, the options of ``zoo sample``: a dataclass that inherits
            :class:`zoo.config.SampleConfig`.
        export: writes what lies beside exported weights: (checkpoint, folder) -> the file it wrote.
        layouts: other forms of ``zoo export``, by name: (checkpoint, folder) -> the files it wrote.
        convert: reads a checkpoint that others published: path -> (config, description, modules by
            name, with their weights).
        parity_steps: how many steps ``zoo parity`` compares unless told otherwise.
    """

    name: str
    summary: str
    model: str | Callable[..., nn.Module]
    config: str | type[TrainConfig]
    trainer: str | type[Trainer]
    sample: str | type | None = None
    convert: str | Callable[..., Any] | None = None
    export: str | Callable[..., Path] | None = None
    layouts: Mapping[str, str | Callable[..., list[Path]]] = field(default_factory=dict)
    parity_steps: int = 20

    def load(self, what: str) -> Any:
        """The class or function that a field names, imported."""
        return resolve(getattr(self, what))


_registered: dict[str, ModelEntry] = {}


def register(entry: ModelEntry) -> ModelEntry:
    """Adds a model for this process and the ranks it starts.

    Raises:
        ValueError: another model has that name.
    """
    if entry.name in list_models():
        raise ValueError(f"there is a model {shown(entry.name)} already; choose another name")
    _registered[entry.name] = entry
    return entry


def list_models() -> list[str]:
    """The models' names, sorted."""
    return sorted({*_OWN, *_registered, *_entry_points()})


def get(name: str) -> ModelEntry:
    """A model's entry.

    Raises:
        InputError: no such model; names the nearest.
    """
    if name in _registered:
        return _registered[name]
    target = _OWN.get(name) or _entry_points().get(name)
    if target is None:
        raise InputError(f"unknown model {shown(name)}; {nearest(name, list_models())}")
    entry = resolve(target)
    if not isinstance(entry, ModelEntry) or entry.name != name:
        raise InputError(f"model {name}: {target} is not a zoo.registry.ModelEntry of that name")
    return entry


def create_model(name: str, **options: Any) -> nn.Module:
    """A bare module with fresh weights, such as ``create_model("devnet", in_features=21, depth=2)``.

    Raises:
        InputError: no such model, or an option it does not have or misses.
    """
    return create(get(name), options)


def create(entry: ModelEntry, options: Mapping[str, Any]) -> nn.Module:
    """A bare module with fresh weights; see :func:`create_model`."""
    make = entry.load("model")
    parameters = inspect.signature(make).parameters
    for option in options:
        if option not in parameters:
            raise InputError(
                f"model {entry.name}: unknown option {shown(option)}; {nearest(option, parameters)}"
            )
    for parameter in parameters.values():
        if parameter.default is parameter.empty and parameter.name not in options:
            raise InputError(f"model {entry.name}: option {parameter.name} is missing")
    return make(**options)


def resolve(target: Any) -> Any:
    """What "module:name" names, imported; anything else as it is."""
    if not isinstance(target, str):
        return target
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def _entry_points() -> dict[str, str]:
    return {point.name: point.value for point in entry_points(group=GROUP)}
