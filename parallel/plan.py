"""What a model declares about itself, in strings, so that strategies need not know it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache

from torch import nn

from parallel.errors import ParallelError


@dataclass(frozen=True)
class Plan:
    """How a model may be cut. Keys are globs over module names: ``*`` is one name, ``**`` any number of them.

    Attributes:
        units: the blocks that are gathered and freed together (FSDP's wrap units).
        tensor: glob -> tensor-parallel style of a layer (see :mod:`parallel.tensor`).
        checkpoint: the blocks whose activations are recomputed in backward.
        compile: the blocks that ``torch.compile`` takes one by one.
        optional: the modules that some steps skip, on all ranks alike, so that they get no gradient there.
    """

    units: tuple[str, ...] = ()
    tensor: Mapping[str, str] = field(default_factory=dict)
    checkpoint: tuple[str, ...] = ()
    compile: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()

    def check(self, model: nn.Module) -> None:
        """Raises if a glob matches no module: a plan with a misspelt key would quietly do less than it says."""
        for what in ("units", "tensor", "checkpoint", "compile", "optional"):
            for glob in getattr(self, what):
                if next(match(model, glob), None) is None:
                    names = ", ".join(name for name, _ in model.named_children()) or "none"
                    raise ParallelError(
                        f"Plan.{what}: {glob!r} matches no module of {type(model).__name__}; its children are: {names}"
                    )


def match(model: nn.Module, *globs: str) -> Iterator[tuple[str, nn.Module]]:
    """The (name, module) pairs below ``model`` whose name fits one of the globs, in the model's order."""
    for name, module in model.named_modules():
        if name and any(_pattern(glob).fullmatch(name) for glob in globs):
            yield name, module


@cache
def _pattern(glob: str) -> re.Pattern[str]:
    pieces = (
        ".*" if piece == "**" else "[^.]*" if piece == "*" else re.escape(piece) for piece in _tokens(glob)
    )
    return re.compile("".join(pieces))


def _tokens(glob: str) -> list[str]:
    return [token for token in re.split(r"(\*\*|\*)", glob) if token]
