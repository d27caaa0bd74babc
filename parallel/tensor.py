"""Tensor parallelism: layers cut over the ranks of the "tensor" axis (Shoeybi et al. 2019, section 3).

A cut layer keeps its class and its parameter names and holds plain tensors, this rank's slices: so DDP's
reducer, FSDP2 and any optimizer carry them as they carry others. What was cut, and how, is kept beside the
net for saving.

The spectral norm of a weight, in both of torch's forms, is cut with it (:mod:`parallel.spectral_cut`).

Styles (values of ``Plan.tensor``); words behind the style name attributes of the parent module that count
what is cut, such as "qkv num_heads attn_dim":

========== =========================================================================================
column     Linear by output feature: input whole on every rank, output this rank's features
row        Linear by input feature: input this rank's features, output whole
qkv        like column, for queries, keys and values fused in one layer: each rank gets whole heads
pair       like column, for two layers fused in one, as a gated MLP's: each rank gets the same units of both
conv_out   convolution by output channel; conv_in: by input channel
gathered   conv_out whose output is put together again, for what reads all channels
channels   what works on each channel of a cut activation by itself (BatchNorm and the like)
shared     whole parameters used on cut activations (a norm over each head): their gradients are summed
slice      like shared, for a module of which the parameters named behind the style are cut along their first axis
entering   a layer that every rank computes whole, and whose output is used on cut activations
features   dropout on an activation cut along its last axis; heads: along its second
========== =========================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module
from torch.nn import functional as F

from parallel.crossings import Copy, Gather, Reduce
from parallel.dropout import KeyedDropout
from parallel.engine import Engine
from parallel.errors import ParallelError
from parallel.net import Net
from parallel.plan import match
from parallel.refusals import CUT_TIE, GROUPED_CONVOLUTION, NOTHING_TO_CUT
from parallel.spectral_cut import cut_norm, source_of
from parallel.splits import Split


class TensorParallel(Engine):
    """Layers cut as the net's plan says; a net without ``Plan.tensor`` is refused, since nothing would be cut."""

    axes: ClassVar[tuple[str, ...]] = ("tensor",)
    adds: ClassVar[bool] = True

    def place(self, net: Net) -> None:
        if not net.plan.tensor:
            raise NOTHING_TO_CUT.error(type(net.module).__name__)
        assert self.world.mesh is not None
        mesh = self.world.mesh["tensor"]
        styles: dict[str, _Style] = {}
        for glob, words in net.plan.tensor.items():
            for layer, _ in match(net.module, glob):
                styles[layer] = _Style(net, layer, words)
        for style in styles.values():
            style.check(mesh.size())
        divided: set[tuple[int, str]] = set()
        for layer, style in styles.items():
            style.divided = divided
            parallelize_module(net.module, mesh, {layer: style})


@dataclass
class _Cut:
    """Which axis of each parameter or buffer is cut, and into how many fused blocks the axis falls."""

    axes: dict[str, int]
    blocks: int
    forward: Callable[[nn.Module, dist.ProcessGroup, Tensor], Tensor] | None


class _Style(ParallelStyle):
    def __init__(self, net: Net, layer: str, words: str) -> None:
        self.net = net
        self.layer = layer
        self.style, *more = words.split()
        self.counts, self.sliced = ([], more) if self.style == "slice" else (more, [])
        self.divided: set[tuple[int, str]] = set()
        if self.style not in _KNOWN:
            known = ", ".join(_KNOWN)
            raise ParallelError(
                f"Plan.tensor: style {self.style!r} of layer {layer!r} is unknown; it is one of {known}"
            )

    def check(self, degree: int) -> None:
        """Raises where ``degree`` ranks cannot share what the layer has, before anything is cut."""
        module, parent = self._modules()
        for attribute in self.counts:
            if not isinstance(getattr(parent, attribute, None), int):
                raise ParallelError(
                    f"Plan.tensor: the parent of layer {self.layer!r} has no number {attribute!r}"
                )
            self._divides(getattr(parent, attribute), attribute, degree)
        cut = self._what()
        for name, axis in cut.axes.items():
            source = source_of(module, name, self.layer)
            if source is not None:
                self._is_not_tied(source.tensor)
                self._divides(source.tensor.shape[axis] // cut.blocks, f"{name} axis {axis}", degree)
            elif self.style == "slice":
                raise ParallelError(f"Plan.tensor: layer {self.layer!r} has no tensor {name!r} to cut")
        if isinstance(module, nn.modules.conv._ConvNd) and module.groups != 1:
            raise GROUPED_CONVOLUTION.error(f"layer {self.layer!r}")

    def _is_not_tied(self, tensor: Tensor) -> None:
        holders = [n for n, p in self.net.module.named_parameters(remove_duplicate=False) if p is tensor]
        if len(holders) > 1:
            raise CUT_TIE.error(" and ".join(holders))

    def _divides(self, number: int, what: str, degree: int) -> None:
        if number % degree:
            allowed = ", ".join(str(n) for n in range(1, number + 1) if number % n == 0)
            raise ParallelError(
                f"layer {self.layer!r}: {what} is {number}, which {degree} tensor-parallel ranks do not divide; "
                f"allowed degrees: {allowed}"
            )

    def _modules(self) -> tuple[nn.Module, nn.Module]:
        parent, _, _ = self.layer.rpartition(".")
        return self.net.module.get_submodule(self.layer), self.net.module.get_submodule(parent)

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        group, rank, degree = device_mesh.get_group(), device_mesh.get_local_rank(), device_mesh.size()
        _, parent = self._modules()
        for attribute in self.counts:
            if (id(parent), attribute) not in self.divided:
                setattr(parent, attribute, getattr(parent, attribute) // degree)
                self.divided.add((id(parent), attribute))
        if self.style in _DROPOUT:
            if not isinstance(module, KeyedDropout):
                raise ParallelError(f"layer {self.layer!r}: style {self.style!r} is for dropout layers")
            module.cut = (_DROPOUT[self.style], rank, degree)
        elif self.style == "entering":
            module.forward = _Entering(module, group)
        else:
            self._cut(module, group, rank, degree)
            if self.style in ("shared", "slice"):
                module.forward = _Shared(module, group, but=self.sliced)
        return module

    def _what(self) -> _Cut:
        return _STYLES.get(self.style, _Cut(dict.fromkeys(self.sliced, 0), 1, None))

    def _cut(self, module: nn.Module, group: dist.ProcessGroup, rank: int, degree: int) -> None:
        cut = self._what()
        for name, axis in cut.axes.items():
            source = source_of(module, name, self.layer)
            if source is None:
                continue
            split, tensor = Split(axis, cut.blocks, group), source.tensor
            piece = split.take(tensor.detach(), rank, degree).clone()
            if isinstance(tensor, nn.Parameter):
                piece = nn.Parameter(piece, requires_grad=tensor.requires_grad)
            setattr(source.holder, source.attribute, piece)
            splits = {source.name: split} | (cut_norm(source, split) if source.norm is not None else {})
            self.net.splits |= {f"{self.layer}.{held}": one for held, one in splits.items()}
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.num_features //= degree
        if cut.forward is not None:
            module.forward = _Forward(cut.forward, module, group)


@dataclass
class _Forward:
    """Stands in for a layer's ``forward``; the layer's hooks and parametrizations go on working."""

    function: Callable[[nn.Module, dist.ProcessGroup, Tensor], Tensor]
    module: nn.Module
    group: dist.ProcessGroup

    def __call__(self, x: Tensor) -> Tensor:
        return self.function(self.module, self.group, x)


class _Shared:
    """Runs a layer with its parameters passed through :class:`Copy`, so that their gradients are sums over the ranks.

    Args:
        but: parameters that are cut, whose gradients are each rank's own.
    """

    def __init__(self, module: nn.Module, group: dist.ProcessGroup, but: Sequence[str]) -> None:
        self.module, self.group, self.but, self.original = module, group, but, module.forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        own = self.module.named_parameters(recurse=False)
        held = {name: parameter for name, parameter in own if name not in self.but}
        try:
            for name, parameter in held.items():
                del self.module._parameters[name]
                setattr(self.module, name, Copy.apply(parameter, self.group))
            return self.original(*args, **kwargs)
        finally:
            for name, parameter in held.items():
                self.module.__dict__.pop(name, None)
                self.module._parameters[name] = parameter


class _Entering:
    """Runs a layer, and lets its output enter a cut region."""

    def __init__(self, module: nn.Module, group: dist.ProcessGroup) -> None:
        self.group, self.original = group, module.forward

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        output: Tensor = Copy.apply(self.original(*args, **kwargs), self.group)
        return output


def _column(module: Any, group: dist.ProcessGroup, x: Tensor) -> Tensor:
    return F.linear(Copy.apply(x, group), module.weight, module.bias)


def _row(module: Any, group: dist.ProcessGroup, x: Tensor) -> Tensor:
    y: Tensor = Reduce.apply(F.linear(x, module.weight), group)
    return y if module.bias is None else y + module.bias.to(y.dtype)


def _conv_out(module: Any, group: dist.ProcessGroup, x: Tensor) -> Tensor:
    return module._conv_forward(Copy.apply(x, group), module.weight, module.bias)


def _gathered(module: Any, group: dist.ProcessGroup, x: Tensor) -> Tensor:
    y: Tensor = Gather.apply(_conv_out(module, group, x), 1, group)
    return y


def _conv_in(module: Any, group: dist.ProcessGroup, x: Tensor) -> Tensor:
    y: Tensor = Reduce.apply(module._conv_forward(x, module.weight, None), group)
    return y if module.bias is None else y + module.bias.to(y.dtype).view(-1, *(1,) * (y.dim() - 2))


_DROPOUT = {"features": -1, "heads": 1}
_STYLES = {
    "column": _Cut({"weight": 0, "bias": 0}, 1, _column),
    "row": _Cut({"weight": 1}, 1, _row),
    "qkv": _Cut({"weight": 0, "bias": 0}, 3, _column),
    "pair": _Cut({"weight": 0, "bias": 0}, 2, _column),
    "conv_out": _Cut({"weight": 0, "bias": 0}, 1, _conv_out),
    "gathered": _Cut({"weight": 0, "bias": 0}, 1, _gathered),
    "conv_in": _Cut({"weight": 1}, 1, _conv_in),
    "channels": _Cut({"weight": 0, "bias": 0, "running_mean": 0, "running_var": 0}, 1, None),
}
_KNOWN = (*_STYLES, "shared", "slice", "entering", *_DROPOUT)
