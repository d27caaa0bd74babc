"""One process: the reference that every other strategy equals."""

from __future__ import annotations

from typing import ClassVar

from parallel.engine import Engine


class Single(Engine):
    """The base engine as it is."""

    adds: ClassVar[bool] = True
