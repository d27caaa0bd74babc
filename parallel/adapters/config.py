"""An engine's own configuration file, handed through, but for what the contract settles. Imports no engine."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parallel.errors import ParallelError

FLAG = "--engine-config"


@dataclass(frozen=True)
class EngineConfig:
    """What a file says.

    Attributes:
        path: as it was given, for messages.
        settings: the file's mapping, which may be nested.
    """

    path: str
    settings: Mapping[str, Any]

    def error(self, key: str, message: str) -> ParallelError:
        """The error to raise about one key (dotted where it is nested)."""
        return ParallelError(f"{FLAG} {self.path}: {key} {message}")


@dataclass(frozen=True)
class Settled:
    """A setting that is not the engine's to make.

    Attributes:
        key: dotted where it is nested, such as "fp16.enabled"; a mapping's key stands for all below it.
        instead: who settles it, such as "--precision".
        allowed: values that say the same as the contract. "auto" always does.
    """

    key: str
    instead: str
    allowed: tuple[Any, ...] = ()


def read(path: str | Path, form: str) -> EngineConfig:
    """Reads an engine's configuration.

    Args:
        form: "json" or "yaml".

    Raises:
        ParallelError: the file cannot be read, or does not hold a mapping; says where.
    """
    where = f"{FLAG} {path}"
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ParallelError(f"{where}: cannot be read: {reason}") from None
    settings = _json(text, where) if form == "json" else _yaml(text, where)
    if not isinstance(settings, dict) or not all(isinstance(key, str) for key in settings):
        raise ParallelError(f"{where}: must hold settings by name, as the engine's documentation shows")
    return EngineConfig(str(path), settings)


def engines_own(config: EngineConfig | None, settled: Sequence[Settled]) -> dict[str, Any]:
    """A copy of the settings without those that the contract settles; empty where there is no file.

    Raises:
        ParallelError: a setting contradicts the contract; names the key.
    """
    if config is None:
        return {}
    own = copy.deepcopy(dict(config.settings))
    for setting in settled:
        *path, last = setting.key.split(".")
        holder: Any = own
        for name in path:
            holder = holder.get(name) if isinstance(holder, dict) else None
        if not isinstance(holder, dict) or last not in holder:
            continue
        value = holder.pop(last)
        if value != "auto" and not any(_same(value, allowed) for allowed in setting.allowed):
            raise config.error(
                setting.key, f"is {_shown(value)}, which {setting.instead} settles: leave it out"
            )
    return own


def _same(value: Any, allowed: Any) -> bool:
    """Equal, where true is not 1."""
    return value == allowed and isinstance(value, bool) == isinstance(allowed, bool)


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        raise ParallelError(f"{where}, line {error.lineno}: not JSON: {error.msg}") from None
    except KeyError as error:
        raise ParallelError(f"{where}: {error.args[0]} is given twice: keep one") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise KeyError(key)
        found[key] = value
    return found


def _yaml(text: str, where: str) -> Any:
    import yaml

    try:
        loaded = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or "unreadable"
        raise ParallelError(f"{where}{line}: not YAML: {problem}") from None
    return {} if loaded is None else loaded
