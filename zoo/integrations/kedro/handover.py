"""Catalog values as the files that ranks read, in a folder that lives as long as the node's work.

Values are handed over as CSV with all their digits, whatever the catalog keeps them as: the zoo's readers check every
cell, and a message about row 3 of the file is one about row 3 of the value.
"""

from __future__ import annotations

import dataclasses
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from parallel.errors import ParallelError
from zoo.config import LaunchConfig
from zoo.flags import flag
from zoo_datasets.errors import InputError

_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
_LABEL = "label"  # the column that the y of a pair (X, y) becomes


class Handover:
    """Writes values into its folder and knows what messages should call them."""

    def __init__(self, folder: Path, names: Mapping[str, str], *configs: LaunchConfig) -> None:
        """``names``: what the catalog calls each argument of the node's function; ``configs``: its options, then those
        of the training that its model comes from.
        """
        self._folder = folder
        self._names = names
        fields = [field.name for config in configs for field in dataclasses.fields(config)]
        self._keys = {flag(name): f"key {name.rstrip('_')}" for name in fields}
        if not hasattr(configs[0], "data"):
            self._keys[flag("data")] = f"input {self._name('data')}"
        self._called: dict[str, str] = {}  # by path

    def one(self, argument: str, value: Any) -> Path:
        """A value as a file, or the path that it is."""
        if isinstance(value, str | os.PathLike):
            return Path(value)
        name = re.sub(r"[^\w.-]", "_", self._name(argument))
        return self._write(self._folder / f"{name}.csv", argument, value)

    def pair(self, train: Any, evaluation: Any) -> Path:
        """Rows to train on (argument "data") and to evaluate on ("evaluation"), as a folder that the zoo reads."""
        folder = self._folder / "rows"
        folder.mkdir()
        for stem, argument, value in (("train", "data", train), ("eval", "evaluation", evaluation)):
            if not isinstance(value, str | os.PathLike):
                self._write(folder / f"{stem}.csv", argument, value)
                continue
            source = Path(value).absolute()
            if not source.is_file():
                raise InputError(f"{self._name(argument)}: no such file: {source}")
            link = folder / f"{stem}{source.suffix}"
            link.symlink_to(source)
            self._called[str(link)] = str(source)
        return folder

    def reworded(self, text: str) -> str:
        """A message with the catalog's names in place of the files', and keys in place of the command's flags."""
        for path, name in self._called.items():
            text = text.replace(path, name)
        return _FLAG.sub(lambda found: self._keys.get(found[0], found[0]), text)

    def _name(self, argument: str) -> str:
        return self._names.get(argument, argument)

    def _write(self, path: Path, argument: str, value: Any) -> Path:
        frame = _frame(value, self._name(argument))
        frame.to_csv(path, index=False)
        self._called[str(path)] = self._name(argument)
        return path


@contextmanager
def handing_over(names: Mapping[str, str], *configs: LaunchConfig) -> Iterator[Handover]:
    """A folder for one node's values; errors that leave the block name values and keys, not files and flags.

    Args:
        names, configs: see :class:`Handover`.
    """
    with tempfile.TemporaryDirectory(prefix="zoo-kedro-") as folder:
        handover = Handover(Path(folder).resolve(), names, *configs)
        try:
            yield handover
        except (InputError, ParallelError) as error:
            error.args = (handover.reworded(str(error)),)
            raise


def _frame(value: Any, name: str) -> Any:
    """A DataFrame of a DataFrame, an array [rows, columns], or a pair (X, y) of either with labels [rows]."""
    import numpy as np
    import pandas as pd

    if isinstance(value, pd.DataFrame):
        return value
    if isinstance(value, np.ndarray) and value.ndim == 2:
        return pd.DataFrame(value, columns=[f"x{i + 1}" for i in range(value.shape[1])])
    if isinstance(value, tuple | list) and len(value) == 2:
        frame = _frame(value[0], name)
        labels = np.asarray(value[1])
        if labels.shape != (len(frame),):
            raise InputError(f"{name}: {len(frame)} rows need as many labels, not an array {labels.shape}")
        return frame.assign(**{_LABEL: labels})
    raise InputError(
        f"{name}: must be a DataFrame, an array [rows, columns], a pair (X, y) of them or a path, "
        f"not {type(value).__name__}"
    )
