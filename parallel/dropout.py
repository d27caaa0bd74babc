"""Dropout whose masks belong to the sample: the modules that ``wrap`` puts in place of a model's own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from parallel import rng
from parallel.batch import Batch
from parallel.errors import ParallelError
from parallel.refusals import DRAWS_INSIDE_TORCH, DROPS_BY_BATCH


class CurrentPart(threading.local):
    """The part being computed by this thread, for modules that draw; a second call in one part draws anew."""

    def __init__(self) -> None:
        self.part: Batch | None = None
        self._calls: dict[str, int] = {}

    def set(self, part: Batch | None) -> None:
        self.part = part
        self._calls.clear()

    def calls(self, name: str) -> int:
        """How often the layer of that name has drawn for this part."""
        return self._calls.get(name, 0)

    def drawn(self, name: str, times: int = 1) -> None:
        """The layer has drawn so many times more."""
        self._calls[name] = self.calls(name) + times

    def snapshot(self) -> tuple[Batch | None, dict[str, int]]:
        """What is needed to draw the same numbers again, when activations are recomputed."""
        return self.part, dict(self._calls)

    def restore(self, snapshot: tuple[Batch | None, dict[str, int]]) -> None:
        self.part, calls = snapshot
        self._calls = dict(calls)

    @contextmanager
    def in_thread(self, part: Batch | None, calls: dict[str, int]) -> Iterator[dict[str, int]]:
        """Sets the part of a thread that computes some of its rows; gives the calls counted there."""
        self.part, self._calls = part, dict(calls)
        try:
            yield self._calls
        finally:
            self.part, self._calls = None, {}


class Draw(NamedTuple):
    """What a mask is made from. 0-d tensors where compiled code reads them, since it is compiled once for all values."""

    key: int | Tensor
    position: Tensor
    dropped: int | Tensor
    scale: float | Tensor


class KeyedDropout(nn.Module):
    """Zeroes elements, or whole channels or rows, with probability ``p``; the mask is keyed by step, layer and sample.

    Args:
        p: the probability of being dropped, rounded to 1/65,536.
        keep_dims: how many leading axes the mask has of its own (None: all; 1: rows; 2: rows and channels).
        name: the layer's name in its model.
        current: where the rows' global positions come from.
    """

    def __init__(self, p: float, keep_dims: int | None, name: str, current: CurrentPart) -> None:
        super().__init__()
        self.p = p
        self.keep_dims = keep_dims
        self.name = name
        self.cut: tuple[int, int, int] | None = None  # (axis, rank, degree) of a tensor-parallel activation
        self._current = current
        self._draws = p > 0.0  # compiled code asks whether, not how often
        self._handed: Draw | None = None  # to compiled code, for this run of it
        self._taken = 0  # masks made from it

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self._draws:
            return x
        if torch.compiler.is_compiling():
            draw, call = self._handed, self._taken
            self._taken = call + 1
        else:
            draw, call = self._draw(), self._current.calls(self.name)
            self._current.drawn(self.name)
        assert draw is not None
        return self._dropped(x, draw._replace(key=rng.nth_key(draw.key, call)))

    @contextmanager
    def handed(self, rows_vary: Callable[[Tensor], None]) -> Iterator[None]:
        """Within it, compiled code finds what its masks are made from: no key can be hashed in there.

        Args:
            rows_vary: is told the tensor whose length is the part's.
        """
        if not self.training or not self._draws:
            yield
            return
        draw = self._draw()
        key = rng.nth_key(draw.key, self._current.calls(self.name))
        rows_vary(draw.position)
        device = draw.position.device
        whole = torch.tensor([key, min(draw.dropped, 65535)], device=device)  # of all, the scale is 0
        scale = torch.tensor(draw.scale, dtype=torch.float64, device=device)
        self._handed, self._taken = Draw(whole[0], draw.position, whole[1], scale), 0
        try:
            yield
        finally:
            self._current.drawn(self.name, self._taken)
            self._handed = None

    def _draw(self) -> Draw:
        part = self._current.part
        if part is None:
            raise ParallelError(
                f"dropout layer {self.name!r}: no batch is being computed; run the forward pass inside "
                "`for part in p.parts(batch)`, so that its masks can follow the samples"
            )
        dropped = rng.of_65536(self.p)
        scale = 1.0 / (1.0 - dropped / 65536) if dropped < 65536 else 0.0
        return Draw(part.key(f"dropout/{self.name}"), part.position, dropped, scale)

    def _dropped(self, x: Tensor, draw: Draw) -> Tensor:
        rows = draw.position.shape[0]
        copies = 1
        if x.shape[0] != rows:
            copies, rest = divmod(x.shape[0], rows) if rows else (1, x.shape[0])
            if rest:
                raise ParallelError(
                    f"dropout layer {self.name!r}: its input has {x.shape[0]} rows where the part has {rows}; "
                    "the first axis must hold the samples (or whole copies of them)"
                )
        shape = list(x.shape[1:])
        if self.cut is not None:  # draw for the whole activation and keep this rank's slice
            axis, rank, degree = self.cut
            axis = axis % x.dim()
            shape[axis - 1] *= degree
        if self.keep_dims is not None:
            own = self.keep_dims - 1
            shape = shape[:own] + [1] * (len(shape) - own)
        per_row = [copies, *shape] if copies != 1 else shape  # copies of the rows stack along the first axis
        keep = rng.keep_mask(draw.key, draw.position, per_row, draw.dropped)
        if copies != 1:
            keep = keep.transpose(0, 1).reshape(x.shape[0], *shape)
        if self.cut is not None and keep.shape[axis] != 1:
            keep = keep.chunk(degree, axis)[rank]
        return x * (keep * torch.as_tensor(draw.scale, dtype=x.dtype, device=x.device))

    def extra_repr(self) -> str:
        return f"p={self.p}, keep_dims={self.keep_dims}"


# By class name where the class lives in a library that this package does not know: timm's DropPath.
_KEYED: dict[str, Callable[[Any], tuple[float, int | None]]] = {
    "Dropout": lambda module: (module.p, None),
    "Dropout1d": lambda module: (module.p, 2),
    "Dropout2d": lambda module: (module.p, 2),
    "Dropout3d": lambda module: (module.p, 2),
    "DropPath": lambda module: (module.drop_prob or 0.0, 1),
    "StochasticDepth": lambda module: (module.p, 1),
}


def key_dropout(model: nn.Module, current: CurrentPart) -> None:
    """Replaces the dropout layers of ``model`` in place; refuses by name those whose draws cannot be keyed."""
    for name, parent in list(model.named_modules()):
        _refuse(name, parent)
        for child_name, child in list(parent.named_children()):
            full = f"{name}.{child_name}" if name else child_name
            options = _KEYED.get(type(child).__name__)
            if options is None or isinstance(child, KeyedDropout):
                continue
            p, keep_dims = options(child)
            keyed = KeyedDropout(p, keep_dims, full, current).train(child.training)
            setattr(parent, child_name, keyed)
    if type(model).__name__ in _KEYED:
        raise ParallelError(f"a bare {type(model).__name__} cannot be wrapped; wrap the model that holds it")


def _refuse(name: str, module: nn.Module) -> None:
    kind = type(module).__name__
    drop = 0.0
    if isinstance(module, nn.MultiheadAttention | nn.RNNBase):
        drop = float(module.dropout)
    elif isinstance(module, nn.AlphaDropout | nn.FeatureAlphaDropout | nn.RReLU):
        drop = 1.0
    elif kind == "StochasticDepth" and module.mode != "row":
        raise DROPS_BY_BATCH.error(f"layer {name!r}")
    if drop:
        raise DRAWS_INSIDE_TORCH.error(f"layer {name!r} ({kind})")
