"""Configs from the command line, and the help that ``--help`` prints."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn

from zoo.fill import C, Layer, closest, dict_layer, fields_of, fill, hints_of, read_yaml, without_none
from zoo_datasets.errors import InputError, shown


def from_flags(
    cls: type[C],
    argv: Sequence[str],
    *,
    prog: str,
    description: str = "",
    positionals: Mapping[str, str] | None = None,
    config_file: bool = False,
    model: str = "",
    defaults: Mapping[str, Any] | None = None,
    defaults_file: Path | None = None,
    without: Sequence[str] = (),
) -> C:
    """A config from command-line arguments; ``--help`` prints and exits.

    Args:
        cls: the dataclass to fill.
        argv: the arguments after the command.
        prog: the command as the user types it, for help and messages.
        positionals: fields that are given without a flag, in order, and what help calls them.
        config_file: adds ``--config FILE``, a YAML file of options; flags overrule it.
        model: see :func:`from_dict`.
        defaults: values of fields that are not given, in place of the dataclass's own.
        defaults_file: where they were read, for messages about them.
        without: fields that the command has no use for, so that they are no flags.

    Raises:
        InputError: an unknown flag (names the nearest), a value of another type or out of range.
    """
    defaults = defaults or {}
    parser = _flag_parser(cls, prog, description, positionals or {}, config_file, defaults, without)
    given = vars(parser.parse_args(list(argv)))
    given.pop("json", None)  # for the caller, who looks for it in argv
    file = given.pop("config", None)
    layers = [Layer(dict(defaults), flag)]
    if defaults_file is not None:
        layers = [dict_layer(cls, defaults, str(defaults_file), model)]
    if file is not None:
        layers.append(dict_layer(cls, read_yaml(Path(file)), file, model))
    layers.append(Layer(given, lambda field: (positionals or {}).get(field, flag(field))))
    return fill(cls, layers)


def flag(field: str) -> str:
    """A field as a flag: ``batch_size`` is ``--batch-size``."""
    name = field.rstrip("_").replace("_", "-")
    return f"-{name}" if len(name) == 1 else f"--{name}"


class _FlagParser(argparse.ArgumentParser):
    """Raises in place of exiting, and names the nearest flag."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message.removeprefix('argument ')}; see {self.prog} --help")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            given = unknown[0].split("=")[0]
            if given.startswith("-"):
                flags = [
                    name for name in self._option_string_actions if name.startswith("--") and name != "--help"
                ]
                close = closest(given.replace("_", "-"), flags)
                hint = f"did you mean {close}?" if close else f"see {self.prog} --help"
                raise InputError(f"unknown option {given}; {hint}")
            self.error(f"unexpected argument {shown(given)}")
        return found


def _flag_parser(
    cls: type,
    prog: str,
    description: str,
    positionals: Mapping[str, str],
    config_file: bool,
    defaults: Mapping[str, Any],
    without: Sequence[str],
) -> argparse.ArgumentParser:
    parser = _FlagParser(
        prog=prog, description=description, allow_abbrev=False, argument_default=argparse.SUPPRESS
    )
    if config_file:
        parser.add_argument("--config", metavar="FILE", help="YAML file of options; flags overrule it")
    parser.add_argument("--json", action="store_true", help="end stdout with the result as one line of JSON")
    hints, texts = hints_of(cls), _texts(cls)
    for field in fields_of(cls):
        if field.name in without:
            continue
        hint = without_none(hints[field.name])
        default = defaults.get(field.name, getattr(cls, f"default_{field.name}", field.default))
        options: dict[str, Any] = {"help": texts.get(field.name, "") + _shown(default)}
        if typing.get_origin(hint) in (tuple, list):
            # A flag that is given again adds to those before it, where others take their place.
            options |= {"nargs": "+", "action": "extend"}
        if "alone" in field.metadata:  # the value of a flag that is given without one
            options |= {"nargs": "?", "const": field.metadata["alone"]}
        if field.name in positionals:
            parser.add_argument(field.name, metavar=positionals[field.name], **options)
        elif hint is bool:
            parser.add_argument(
                flag(field.name), dest=field.name, action=argparse.BooleanOptionalAction, **options
            )
        else:
            parser.add_argument(flag(field.name), dest=field.name, metavar=_metavar(field, hint), **options)
    return parser


@functools.cache
def _texts(cls: type) -> dict[str, str]:
    """Help texts of a config's fields: the strings below them, in its class or one it inherits from."""
    import docstring_parser

    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if dataclasses.is_dataclass(base):
            for param in docstring_parser.parse_from_object(base).params:
                texts[param.arg_name] = " ".join((param.description or "").split()).replace("%", "%%")
    return texts


def _shown(default: Any) -> str:
    if default is None or default is dataclasses.MISSING or default is False or default in ((), ""):
        return ""
    return f" (default: {str(default).replace('%', '%%')})"


def _metavar(field: dataclasses.Field[Any], hint: Any) -> str:
    if typing.get_origin(hint) is Literal:
        return "|".join(map(str, typing.get_args(hint)))
    kind = typing.get_args(hint)[0] if typing.get_origin(hint) in (tuple, list) else hint
    return {int: "N", float: "X", Path: "PATH"}.get(kind, field.name.upper().rstrip("_"))
