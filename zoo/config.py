"""Options: one dataclass a model, filled by one path from flags, a YAML file or a plain dict.

A model's options are a frozen dataclass that inherits :class:`TrainConfig`; strings below fields are help texts::

    @dataclass(frozen=True, kw_only=True)
    class MyConfig(TrainConfig):
        width: int = 64
        \"\"\"units of the hidden layer\"\"\"

        def __post_init__(self) -> None:
            super().__post_init__()
            require(self.width >= 1, "width", f"must be at least 1, not {self.width}")

A field ``known_outliers`` is ``--known-outliers`` as a flag, ``known_outliers`` or ``known-outliers`` as a key.
A tuple takes several values (``--from 1 2 3``), a field ``n`` is ``-n``, and ``from_`` is ``--from``.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import functools
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NoReturn, TypeVar, cast

from zoo_datasets.errors import InputError, shown

C = TypeVar("C")

MODEL_KEY = "model"  # beside the options in a YAML file or dict: whose options they are


class OptionError(InputError):
    """A value that an option cannot have; whoever knows where the value came from says so in its place.

    Args:
        option: the field's name.
        message: what is wrong and what would be right, such as "must be at least 1, not 0".
    """

    def __init__(self, option: str, message: str) -> None:
        super().__init__(f"{option} {message}")
        self.option = option
        self.message = message

    def __reduce__(self) -> tuple[type[OptionError], tuple[str, str]]:
        return type(self), (self.option, self.message)  # it crosses from a rank to its parent


def require(condition: bool, option: str, message: str) -> None:
    """Raises an :class:`OptionError` unless the condition holds; for ``__post_init__``."""
    if not condition:
        raise OptionError(option, message)


@dataclass(frozen=True, kw_only=True)
class LaunchConfig:
    """Where a command runs; the results do not depend on it."""

    parallel: str = "single"
    """how the work is spread over ranks; `zoo list` shows the ways"""
    nproc: int | None = None
    """ranks; every GPU unless given, and 2 on a machine without"""
    tp: int | None = None
    """ranks that share one model, where the strategy splits layers"""

    def __post_init__(self) -> None:
        for name in ("nproc", "tp"):
            value = getattr(self, name)
            require(value is None or value >= 1, name, f"must be at least 1, not {value}")

    def launch_options(self) -> dict[str, Any]:
        """Keyword arguments of ``parallel.launch``."""
        return {"nproc": self.nproc, "tp": self.tp}


@dataclass(frozen=True, kw_only=True)
class RunConfig(LaunchConfig):
    """The options of a command that uses a trained model."""

    run: Path
    """a run directory, or a checkpoint in it"""


@dataclass(frozen=True, kw_only=True)
class SampleConfig(RunConfig):
    """The options of ``zoo sample``; a model's own dataclass inherits them and adds its own."""

    n: int = 10
    """samples to draw"""
    seed: int = 0
    """of the samples' noise"""
    output: Path | None = None
    """CSV file to write; the samples are printed unless given"""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.n >= 1, "n", f"must be at least 1, not {self.n}")
        require(0 <= self.seed < 2**63, "seed", f"must be from 0 to 2**63 - 1, not {self.seed}")


@dataclass(frozen=True, kw_only=True)
class TrainConfig(LaunchConfig):
    """The options that every model has; a model's own dataclass inherits them and may change defaults."""

    default_epochs: ClassVar[int] = 10  # where neither epochs nor steps are given

    data: str | None = None
    """name of a data set, or a file or folder; the model's default data unless given"""
    epochs: int | None = None
    """passes over the training data"""
    steps: int | None = None
    """global batches to train on, in place of --epochs"""
    batch_size: int = 64
    """rows of a global batch, whatever the number of ranks"""
    precision: Literal["fp64", "fp32", "bf16-mixed", "fp16-mixed"] = "fp32"
    """precision of the computation"""
    accumulate: int = 1
    """parts that a global batch is cut into, to save memory; the numbers stay"""
    compile: bool = False
    """compile the model with torch.compile"""
    local_batchnorm: bool = False
    """let each rank normalise by its own rows; faster, but not what one process computes"""
    seed: int = 0
    """of initial weights, order of the data and all noise"""
    eval_every: int | None = None
    """epochs between evaluations; only at the end unless given"""
    log_every: int = 50
    """steps between two writes to the log"""
    out: Path | None = None
    """run directory to create; runs/MODEL/DATE-TIME unless given"""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("epochs", "steps", "batch_size", "accumulate", "eval_every", "log_every"):
            value = getattr(self, name)
            require(value is None or value >= 1, name, f"must be at least 1, not {value}")
        require(0 <= self.seed < 2**63, "seed", f"must be from 0 to 2**63 - 1, not {self.seed}")
        require(self.epochs is None or self.steps is None, "steps", "and epochs exclude each other: give one")
        if self.epochs is None and self.steps is None:
            object.__setattr__(self, "epochs", self.default_epochs)

    def launch_options(self) -> dict[str, Any]:
        names = ("precision", "accumulate", "compile", "local_batchnorm")
        return super().launch_options() | {name: getattr(self, name) for name in names}

    def total_steps(self, steps_per_epoch: int) -> int:
        """Global batches of the whole run; ``steps_per_epoch`` is ``len(loader)``."""
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        return self.epochs * steps_per_epoch


# The path that fills a config: flags, YAML and dicts become layers of values; later ones win.


@dataclass(frozen=True)
class _Layer:
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
    return _fill(cls, [_dict_layer(cls, values, source, model)])


def from_yaml(cls: type[C], path: Path, *, model: str = "") -> C:
    """A config from a YAML file, such as a run's config.yaml; see :func:`from_dict`."""
    return _fill(cls, [_dict_layer(cls, read_yaml(path), str(path), model)])


def from_flags(
    cls: type[C],
    argv: Sequence[str],
    *,
    prog: str,
    description: str = "",
    positionals: Mapping[str, str] | None = None,
    config_file: bool = False,
    model: str = "",
) -> C:
    """A config from command-line arguments; ``--help`` prints and exits.

    Args:
        cls: the dataclass to fill.
        argv: the arguments after the command.
        prog: the command as the user types it, for help and messages.
        positionals: fields that are given without a flag, in order, and what help calls them.
        config_file: adds ``--config FILE``, a YAML file of options; flags go before it.
        model: see :func:`from_dict`.

    Raises:
        InputError: an unknown flag (names the nearest), a value of another type or out of range.
    """
    parser = _flag_parser(cls, prog, description, positionals or {}, config_file)
    given = vars(parser.parse_args(list(argv)))
    file = given.pop("config", None)
    layers = [_dict_layer(cls, read_yaml(Path(file)), file, model)] if file is not None else []
    layers.append(_Layer(given, lambda field: (positionals or {}).get(field, flag(field))))
    return _fill(cls, layers)


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

    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
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
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else f"there are: {', '.join(names) or 'none'}"


def flag(field: str) -> str:
    """A field as a flag: ``batch_size`` is ``--batch-size``."""
    name = field.rstrip("_").replace("_", "-")
    return f"-{name}" if len(name) == 1 else f"--{name}"


def _fill(cls: type[C], layers: Sequence[_Layer]) -> C:
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
    try:
        return cls(**values)
    except OptionError as error:
        say = place.get(error.option, layers[-1].place)
        raise InputError(f"{say(error.option)} {error.message}") from None


def _dict_layer(cls: type, values: Mapping[str, Any], source: str, model: str) -> _Layer:
    known = {field.name.rstrip("_"): field.name for field in _fields(cls)}
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
    return _Layer(fields, lambda field: f"{source}, key {field.rstrip('_')}:")


class _FlagParser(argparse.ArgumentParser):
    """Raises in place of exiting, and names the nearest flag."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{self.prog}: {message}")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            given = unknown[0].split("=")[0]
            if given.startswith("-"):
                flags = [option for option in self._option_string_actions if option.startswith("--")]
                raise InputError(f"{self.prog}: unknown option {given}; {_nearest_flag(given, flags)}")
            raise InputError(f"{self.prog}: unexpected argument {shown(given)}; see {self.prog} --help")
        return found


def _nearest_flag(given: str, flags: list[str]) -> str:
    close = difflib.get_close_matches(given.replace("_", "-"), flags, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else "--help lists the options"


def _flag_parser(
    cls: type, prog: str, description: str, positionals: Mapping[str, str], config_file: bool
) -> argparse.ArgumentParser:
    parser = _FlagParser(
        prog=prog, description=description, allow_abbrev=False, argument_default=argparse.SUPPRESS
    )
    if config_file:
        parser.add_argument("--config", metavar="FILE", help="YAML file of options; flags go before it")
    hints, texts = _hints(cls), _Texts(cls)
    for field in _fields(cls):
        hint = hints[field.name]
        options: dict[str, Any] = {"help": texts.help(field, hint)}
        if typing.get_origin(hint) in (tuple, list):
            options["nargs"] = "+"
        if field.name in positionals:
            parser.add_argument(field.name, metavar=positionals[field.name], **options)
        elif hint is bool:
            parser.add_argument(
                flag(field.name), dest=field.name, action=argparse.BooleanOptionalAction, **options
            )
        else:
            parser.add_argument(flag(field.name), dest=field.name, metavar=texts.metavar(hint), **options)
    return parser


class _Texts:
    """Help texts of a config's fields: the strings below them, in the class or in one it inherits from."""

    def __init__(self, cls: type) -> None:
        import docstring_parser

        self.texts: dict[str, str] = {}
        for base in reversed(cls.__mro__):
            if dataclasses.is_dataclass(base):
                parsed = docstring_parser.parse_from_object(base)
                self.texts |= {param.arg_name: param.description or "" for param in parsed.params}

    def help(self, field: dataclasses.Field[Any], hint: Any) -> str:
        text = " ".join(self.texts.get(field.name, "").split()).replace("%", "%%")
        default = field.default
        if default is None or default is dataclasses.MISSING or isinstance(default, bool) or default == ():
            return text
        return f"{text} (default: {str(default).replace('%', '%%')})"

    @staticmethod
    def metavar(hint: Any) -> str:
        if typing.get_origin(hint) is Literal:
            return "|".join(map(str, typing.get_args(hint)))
        inner = typing.get_args(hint)[0] if typing.get_origin(hint) in (tuple, list) else hint
        return {int: "N", float: "X", Path: "PATH"}.get(inner, "TEXT")


def _typed(cls: type, field: str, value: Any, place: str) -> Any:
    """The value as the field's type; text is read as that type."""
    hint = typing.get_type_hints(cls)[field]
    if value is None and not _is_optional(hint):
        raise InputError(f"{place} must be {_wording(hint)}, not null")
    try:
        parsed = _type_parser(cls).parse_object({field: value}, defaults=False)
    except argparse.ArgumentError:
        inner = _without_none(hint)
        choices = (
            [str(choice) for choice in typing.get_args(inner)] if typing.get_origin(inner) is Literal else []
        )
        close = difflib.get_close_matches(str(value), choices, n=1)
        suggestion = f"; did you mean {close[0]}?" if close else ""
        raise InputError(f"{place} must be {_wording(inner)}, not {shown(value)}{suggestion}") from None
    return parsed[field]


@functools.cache
def _type_parser(cls: type) -> Any:
    """jsonargparse knows how to read a value as a type hint."""
    import jsonargparse

    parser = jsonargparse.ArgumentParser(exit_on_error=False, add_help=False)
    hints = typing.get_type_hints(cls)
    for field in _fields(cls):
        parser.add_argument(f"--{field.name}", type=hints[field.name])
    return parser


def _fields(cls: type) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(cast(Any, cls))


def _hints(cls: type) -> dict[str, Any]:
    return {name: _without_none(hint) for name, hint in typing.get_type_hints(cls).items()}


def _is_optional(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType) and type(None) in typing.get_args(hint)


def _without_none(hint: Any) -> Any:
    if not _is_optional(hint):
        return hint
    return functools.reduce(
        lambda a, b: a | b, [arg for arg in typing.get_args(hint) if arg is not type(None)]
    )


def _wording(hint: Any) -> str:
    hint = _without_none(hint)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return f"one of {', '.join(map(str, args))}"
    if origin in (tuple, list):
        return f"several values, each {_wording(args[0])}"
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text", Path: "a path"}
    return words.get(hint, str(hint))


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
