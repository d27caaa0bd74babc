"""Tensor parallelism: layers cut over the ranks of the "tensor" axis (Shoeybi et al. 2019, section 3).

A cut layer keeps its class and its parameter names and holds plain tensors, this rank's slices: so DDP's
reducer, FSDP2 and any optimizer carry them as they carry others. What was cut, and how, is kept beside the
net for saving.

Styles (values of ``Plan.tensor``); words behind the style name attributes of the parent module that count
what is cut, such as "qkv num_heads attn_dim":

========== =========================================================================================
column     Linear by output feature: input whole on every rank, output this rank's features
row        Linear by input feature: input this rank's features, output whole
qkv        like column, for queries, keys and values fused in one layer: each rank gets whole heads
pair       like column, for two layers fused in one, as a gated MLP's: each rank gets the same units of both
conv_out   convolution by output channel; conv_in: by input channel
channels   what works on each channel of a cut activation by itself (BatchNorm and the like)
shared     whole parameters used on cut activations (a norm over each head): their gradients are summed
features   dropout on an activation cut along its last axis; heads: along its second
========== =========================================================================================
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module
from torch.nn import functional as F

from parallel.dropout import KeyedDropout
from parallel.engine import Engine
from parallel.errors import ParallelError
from parallel.net import Net
from parallel.plan import match
from parallel.refusals import CUT_TIE, GROUPED_CONVOLUTION, NOTHING_TO_CUT
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
        self.style, *self.counts = words.split()
        self.divided: set[tuple[int, str]] = set()
        if self.style not in _STYLES and self.style not in ("shared", *_DROPOUT):
            known = ", ".join((*_STYLES, "shared", *_DROPOUT))
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
        if self.style in _STYLES:
            cut = _STYLES[self.style]
            for name, axis in cut.axes.items():
                tensor = getattr(module, name, None)
                if tensor is not None and tensor.dim():
                    self._is_not_tied(tensor)
                    self._divides(tensor.shape[axis] // cut.blocks, f"{name} axis {axis}", degree)
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
        elif self.style == "shared":
            module.forward = _Shared(module, group)
        else:
            self._cut(module, _STYLES[self.style], group, rank, degree)
        return module

    def _cut(self, module: nn.Module, cut: _Cut, group: dist.ProcessGroup, rank: int, degree: int) -> None:
        for name, axis in cut.axes.items():
            tensor = getattr(module, name, None)
            if tensor is None or not tensor.dim():
                continue
            split = Split(axis, cut.blocks, group)
            piece = split.take(tensor.detach(), rank, degree).clone()
            if isinstance(tensor, nn.Parameter):
                setattr(module, name, nn.Parameter(piece, requires_grad=tensor.requires_grad))
            else:
                setattr(module, name, piece)
            self.net.splits[f"{self.layer}.{name}"] = split
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
    """Runs a layer with its parameters passed through :class:`Copy`, so that their gradients are sums over the ranks."""

    def __init__(self, module: nn.Module, group: dist.ProcessGroup) -> None:
        self.module, self.group, self.original = module, group, module.forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        held = dict(self.module.named_parameters(recurse=False))
        try:
            for name, parameter in held.items():
                del self.module._parameters[name]
                setattr(self.module, name, Copy.apply(parameter, self.group))
            return self.original(*args, **kwargs)
        finally:
            for name, parameter in held.items():
                self.module.__dict__.pop(name, None)
                self.module._parameters[name] = parameter


class Copy(torch.autograd.Function):
    """What every rank holds whole enters a cut region: the identity, whose gradient is the sum of the ranks'."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return Reduce.apply(grads[0], ctx.group), None


class Reduce(torch.autograd.Function):
    """Summands leave a cut region: their sum over the ranks, whose gradient every rank gets whole."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        x = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return Copy.apply(grads[0], ctx.group), None


def _column(module: Any, group: dist.ProcessGroup, x: Tensor) -> Tensor:
    return F.linear(Copy.apply(x, group), module.weight, module.bias)


def _row(module: Any, group: dist.ProcessGroup, x: Tensor) -> Tensor:
    y: Tensor = Reduce.apply(F.linear(x, module.weight), group)
    return y if module.bias is None else y + module.bias.to(y.dtype)


def _conv_out(module: Any, group: dist.ProcessGroup, x: Tensor) -> Tensor:
    return module._conv_forward(Copy.apply(x, group), module.weight, module.bias)


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
    "conv_in": _Cut({"weight": 1}, 1, _conv_in),
    "channels": _Cut({"weight": 0, "bias": 0, "running_mean": 0, "running_var": 0}, 1, None),
}
