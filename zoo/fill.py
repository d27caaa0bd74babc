"""The one path that fills a config: flags, a YAML file and a dict become layers of values; later ones win."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import functools
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from zoo.config import OptionError
from zoo_datasets.errors import InputError, shown

C = TypeVar("C")

MODEL_KEY = "model"  # beside the options in a YAML file or dict: whose options they are


@dataclass(frozen=True)
class Layer:
    """Values from one place."""

    values: dict[str, Any]  # by field
    place: Callable[[str], str]  # a field, as whoever gave the value would call it


def from_dict(
    cls: type[C], values: Mapping[str, Any], *, source: str = "configuration", model: str = ""
) -> C:
    """A config from a plain dict, such as a Kedro pipeline's parameters.

    Args:
        cls: the dataclass to fill.
        values: by field name, dashes or underscores. Text is read as the field's type ("3" is 3).
        source: what messages call the dict.
        model: the model whose options they are; a key "model" must then say the same.

    Raises:
        InputError: an unknown key, a value of another type or out of range; names source and key.
    """
    return fill(cls, [dict_layer(cls, values, source, model)])


def from_yaml(cls: type[C], path: Path, *, model: str = "") -> C:
    """A config from a YAML file, such as a run's config.yaml; see :func:`from_dict`."""
    return fill(cls, [dict_layer(cls, read_yaml(path), str(path), model)])


def to_yaml(config: Any, model: str = "") -> str:
    """YAML text that :func:`from_yaml` reads back into an equal config."""
    import yaml

    head = {MODEL_KEY: model} if model else {}
    return yaml.safe_dump(head | to_dict(config), sort_keys=False)


def to_dict(config: Any) -> dict[str, Any]:
    """The fields as JSON-able values, which :func:`from_dict` reads back into an equal config."""

    def plain(value: Any) -> Any:
        if isinstance(value, Path):
            return str(value)
        return [plain(item) for item in value] if isinstance(value, tuple | list) else value

    return {field.name: plain(getattr(config, field.name)) for field in dataclasses.fields(config)}


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping that a YAML file holds.

    Raises:
        InputError: no such file, not YAML, or not a mapping.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        """YAML forbids a key twice, and SafeLoader takes the last one."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            seen = set()
            for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"{key.value!r} is there twice", key.start_mark
                    )
                seen.add(key.value)
            return super().construct_mapping(node, deep)

    try:
        loaded = yaml.load(path.read_text(encoding="utf-8"), Loader)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {_reason(error)}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        raise InputError(
            f"{path}{line}: not YAML: {getattr(error, 'problem', None) or 'unreadable'}"
        ) from None
    if loaded is None:
        return {}
    if not isinstance(loaded, dict) or not all(isinstance(key, str) for key in loaded):
        raise InputError(f"{path}: must hold options by name, such as 'batch_size: 64'")
    return loaded


def nearest(name: str, names: Iterable[str]) -> str:
    """The end of a message about an unknown name: the nearest one, or all of them."""
    names = list(names)
    close = closest(name, names)
    return f"did you mean {close}?" if close else f"there are: {', '.join(names) or 'none'}"


def closest(name: str, names: Iterable[str]) -> str | None:
    """What a mistyped name was probably meant to be."""
    return next(iter(difflib.get_close_matches(name, list(names), n=1, cutoff=0.5)), None)


def fill(cls: type[C], layers: Sequence[Layer]) -> C:
    """A config from layers of values, later ones winning; errors name the place that the value came from."""
    values: dict[str, Any] = {}
    place: dict[str, Callable[[str], str]] = {}
    for layer in layers:
        typed = {
            field: _typed(cls, field, value, layer.place(field)) for field, value in layer.values.items()
        }
        # Given later, one of the two takes the place of the other, so that --steps overrules a file's epochs.
        for one, other in (("epochs", "steps"), ("steps", "epochs")):
            if typed.get(one) is not None and typed.get(other) is None:
                values.pop(other, None)
        values |= typed
        place |= dict.fromkeys(typed, layer.place)
    for field in fields_of(cls):
        has_default = not (field.default is field.default_factory is dataclasses.MISSING)
        if not has_default and field.name not in values:
            raise InputError(f"{layers[-1].place(field.name)} is missing")
    try:
        return cls(**values)
    except OptionError as error:
        say = place.get(error.option, layers[-1].place)
        raise InputError(f"{say(error.option)} {error.message}") from None


def dict_layer(cls: type, values: Mapping[str, Any], source: str, model: str) -> Layer:
    """A dict's values by field; see :func:`from_dict`."""
    known = {field.name.rstrip("_"): field.name for field in fields_of(cls)}
    fields: dict[str, Any] = {}
    for key, value in values.items():
        name = key.replace("-", "_")
        if name == MODEL_KEY and model and name not in known:
            if value != model:
                raise InputError(f"{source}, key {MODEL_KEY}: these are options of {value}, not of {model}")
        elif name not in known:
            raise InputError(f"{source}: unknown key {shown(key)}; {nearest(name, known)}")
        elif known[name] in fields:
            raise InputError(f"{source}: key {shown(key)} is there twice, with a dash and with an underscore")
        else:
            fields[known[name]] = value
    return Layer(fields, lambda field: f"{source}, key {field.rstrip('_')}:")


def _typed(cls: type, field: str, value: Any, place: str) -> Any:
    """The value as the field's type; text is read as that type."""
    hint = hints_of(cls)[field]
    inner = without_none(hint)
    if isinstance(value, str) and inner is str:
        return value  # whatever it looks like
    if value is None and hint is inner:
        raise InputError(f"{place} must be {_wording(inner)}, not null")
    try:
        typed = _type_parser(cls).parse_object({field: value}, defaults=False)[field]
        if not isinstance(typed, float) or math.isfinite(typed):
            return typed
    except argparse.ArgumentError:
        pass
    choices = map(str, typing.get_args(inner)) if typing.get_origin(inner) is Literal else ()
    close = closest(str(value), choices)
    suggestion = f"; did you mean {close}?" if close else ""
    raise InputError(f"{place} must be {_wording(inner)}, not {shown(value)}{suggestion}")


@functools.cache
def _type_parser(cls: type) -> Any:
    """jsonargparse knows how to read a value as a type hint."""
    import jsonargparse

    parser = jsonargparse.ArgumentParser(exit_on_error=False, add_help=False)
    for field in fields_of(cls):
        parser.add_argument(f"--{field.name}", type=hints_of(cls)[field.name])
    return parser


def fields_of(cls: type) -> tuple[dataclasses.Field[Any], ...]:
    """The fields of a config class."""
    return dataclasses.fields(cast(Any, cls))


@functools.cache
def hints_of(cls: type) -> dict[str, Any]:
    """The types of a config class's fields."""
    return typing.get_type_hints(cls)


def without_none(hint: Any) -> Any:
    """``int`` for ``int | None``; other hints as they are."""
    args = typing.get_args(hint)
    if typing.get_origin(hint) not in (typing.Union, types.UnionType) or type(None) not in args:
        return hint
    return functools.reduce(lambda a, b: a | b, [arg for arg in args if arg is not type(None)])


def _wording(hint: Any) -> str:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return f"one of {', '.join(map(str, args))}"
    if origin in (tuple, list):
        return f"several values, each {_wording(args[0])}"
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text", Path: "a path"}
    return words.get(hint, str(hint))


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
