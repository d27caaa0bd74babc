"""A node's options, in the order that later ones win: conf/zoo.yml, the factory's keywords, the node's parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from parallel.errors import ParallelError
from parallel.registry import resolve
from zoo.config import LaunchConfig, OptionError, SampleConfig, TrainConfig
from zoo.fill import Layer, dict_layer, fields_of, fill, nearest
from zoo.registry import ModelEntry
from zoo.resume import going_on
from zoo_datasets.errors import InputError, shown

ZOO_YML = "zoo.yml"  # what messages call the defaults of the file
_MERGED = (
    "zoo.yml or params:zoo"  # and those of a node, which `zoo:` in parameters.yml and --params have changed
)

# How work is spread and computed, which a project decides for all its nodes; the rest belongs to a model.
DEFAULTS = (
    "parallel",
    "nproc",
    "tp",
    "engine_config",
    "precision",
    "accumulate",
    "compile",
    "local_batchnorm",
)

L = TypeVar("L", bound=LaunchConfig)
Values = Mapping[str, Any]


def check_defaults(values: Values, source: str = ZOO_YML) -> None:
    """Raises unless all are defaults that ``zoo.yml`` may hold.

    Args:
        source: what messages call them.

    Raises:
        InputError: names the source and the key.
    """
    _check_mapping(values, source)
    for key in values:
        if str(key).replace("-", "_") not in DEFAULTS:
            raise InputError(f"{source}: unknown key {shown(key)}; {nearest(str(key), DEFAULTS)}")
    fill(TrainConfig, [dict_layer(TrainConfig, values, source, "")])


def train_config(
    entry: ModelEntry, defaults: Values, keywords: Values, parameters: Values, source: str, has_data: bool
) -> TrainConfig:
    """The options of a training.

    Args:
        source: what messages call the parameters.
        has_data: whether the node has data of its own, so that no option may name some.

    Raises:
        InputError: an unknown key, a value of another type or out of range; names where it was given.
    """
    cls: type[TrainConfig] = entry.load("config")
    layers = _layers(cls, defaults, keywords, parameters, source, entry.name)
    _refuse(layers, ("data",) if has_data else (), "an input of the node gives it")
    _refuse(layers, ("max_restarts",), "only the command line starts again by itself")
    config = _filled(cls, layers)
    return config if config.resume is None else _resumed(entry, config, layers, has_data)


def _resumed(entry: ModelEntry, config: TrainConfig, layers: list[Layer], has_data: bool) -> TrainConfig:
    """The options of a training that goes on with a run: the run's own, and over them those given here."""
    given = {field for layer in layers for field in layer.values}
    place = next(layer.place for layer in reversed(layers) if "resume" in layer.values)
    try:
        going = going_on(config.resume, config.out)
        if going is None:
            return config
        kept = going.options(entry.name, given)
    except OptionError as error:
        raise InputError(f"{place(error.option)} {error.message}") from None
    dropped = {"max_restarts"} | ({"data"} if has_data else set())
    kept = {name: value for name, value in kept.items() if name not in dropped}
    first = dict_layer(type(config), kept, str(going.source), entry.name)
    return dataclasses.replace(_filled(type(config), [first, *layers]), out=going.out)


def launch_config(defaults: Values, keywords: Values, parameters: Values, source: str) -> LaunchConfig:
    """Where an evaluation or a prediction runs; see :func:`train_config`."""
    return _filled(LaunchConfig, _layers(LaunchConfig, defaults, keywords, parameters, source))


def sample_config(
    entry: ModelEntry, defaults: Values, keywords: Values, parameters: Values, source: str, run: Any
) -> SampleConfig:
    """The options of drawing samples; see :func:`train_config`. ``run`` is the checkpoint."""
    if entry.sample is None:
        raise InputError(f"{entry.name} draws no samples")
    cls: type[SampleConfig] = entry.load("sample")
    layers = _layers(cls, defaults, keywords, parameters, source)
    _refuse(layers, ("run", "output"), "the node's input and output stand for it")
    return _filled(cls, [Layer({"run": run}, str), *layers])


def _layers(
    cls: type, defaults: Values, keywords: Values, parameters: Values, source: str, model: str = ""
) -> list[Layer]:
    check_defaults(defaults, _MERGED)
    _check_mapping(parameters, source)
    known = {field.name for field in fields_of(cls)}
    own = {key: value for key, value in defaults.items() if key.replace("-", "_") in known}
    return [
        dict_layer(cls, own, _MERGED, model),
        dict_layer(cls, keywords, "the node's keywords", model),
        dict_layer(cls, parameters, source, model),
    ]


def _filled(cls: type[L], layers: list[Layer]) -> L:
    """The options, of which the strategy is known, before a process is started for it."""
    config = fill(cls, layers)
    place = next((layer.place for layer in reversed(layers) if "parallel" in layer.values), None)
    if place is not None:
        try:
            resolve(config.parallel)
        except ParallelError as error:
            raise InputError(f"{place('parallel')} {error}") from None
    return config


def _check_mapping(values: object, source: str) -> None:
    if not isinstance(values, Mapping):
        raise InputError(f"{source}: must hold options by name, not {shown(values)}")


def _refuse(layers: list[Layer], fields: tuple[str, ...], why: str) -> None:
    for layer in layers:
        for field in fields:
            if field in layer.values:
                raise InputError(f"{layer.place(field)} leave it out: {why}")
