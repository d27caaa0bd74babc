"""Spectral norm of a weight that is cut over ranks (Miyato et al. 2018, section 2.1, each product a sum over them).

With the weight matrix W cut by rows, rank r holds W_r and its rows' u_r: v is the normalised sum of W_r^T u_r. Cut by
columns, u is the normalised sum of W_r v_r. Either way sigma is the sum of u_r^T W_r v_r.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.parametrize import is_parametrized
from torch.nn.utils.spectral_norm import SpectralNorm

from parallel.crossings import Copy, Reduce
from parallel.refusals import COMPUTED_WEIGHT
from parallel.splits import Split


@dataclass(frozen=True)
class Source:
    """Where a layer's tensor lies: ``weight`` may be computed from another one.

    Attributes:
        name: below the layer, as in its state dict.
        norm: the spectral norm in between, if there is one.
    """

    holder: nn.Module
    attribute: str
    name: str
    norm: SpectralNorm | _SpectralNorm | None = None

    @property
    def tensor(self) -> Tensor:
        tensor: Tensor = getattr(self.holder, self.attribute)
        return tensor


def source_of(module: nn.Module, name: str, layer: str) -> Source | None:
    """Where the tensor ``name`` of a layer is kept; None if the layer has none, or a single number.

    Raises:
        ParallelError: it is computed from others, and not by a spectral norm.
    """
    if is_parametrized(module, name):
        chain: Any = module.parametrizations[name]  # type: ignore[index]
        if len(chain) == 1 and isinstance(chain[0], _SpectralNorm) and hasattr(chain[0], "_u"):
            return Source(chain, "original", f"parametrizations.{name}.original", chain[0])
        raise COMPUTED_WEIGHT.error(f"{name} of layer {layer!r}")
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, SpectralNorm) and hook.name == name:
            return Source(module, f"{name}_orig", f"{name}_orig", hook)
    tensor = getattr(module, name, None)
    if tensor is None or not tensor.dim():
        return None
    if name not in module._parameters and name not in module._buffers:
        raise COMPUTED_WEIGHT.error(f"{name} of layer {layer!r}")
    return Source(module, name, name)


def cut_norm(source: Source, split: Split) -> dict[str, Split]:
    """Makes the spectral norm one of slices, its source having been cut by ``split``; returns its buffers' cuts by name."""
    norm = source.norm
    assert norm is not None
    maths = _Cut(rows=split.axis == norm.dim, eps=norm.eps, group=split.group)
    vector = Split(0, split.blocks, split.group)
    if isinstance(norm, SpectralNorm):
        holder, prefix, u, v = source.holder, "", f"{norm.name}_u", f"{norm.name}_v"
        norm.compute_weight = partial(_hooked, norm, maths)  # type: ignore[method-assign]
    else:
        holder, prefix, u, v = norm, source.name.removesuffix("original") + "0.", "_u", "_v"
        norm.forward = partial(_parametrized, norm, maths)  # type: ignore[method-assign]
        norm._power_method = partial(_power_method, norm, maths)  # type: ignore[method-assign]
    name = u if maths.rows else v
    setattr(holder, name, vector.take_own(getattr(holder, name)).clone())
    return {f"{prefix}{name}": vector}


@dataclass(frozen=True)
class _Cut:
    """The products with a slice of W. ``rows``: it is a slice of rows, else of columns."""

    rows: bool
    eps: float
    group: dist.ProcessGroup

    def v(self, w: Tensor, u: Tensor) -> Tensor:
        return self._normalised(torch.mv(w.t(), u), whole=self.rows)

    def u(self, w: Tensor, v: Tensor) -> Tensor:
        return self._normalised(torch.mv(w, v), whole=not self.rows)

    def sigma(self, w: Tensor, u: Tensor, v: Tensor) -> Tensor:
        """The norm of W, which every rank divides its slice by: so the gradients of all slices reach it."""
        norm: Tensor = Copy.apply(Reduce.apply(torch.dot(u, torch.mv(w, v)), self.group), self.group)
        return norm

    def _normalised(self, product: Tensor, whole: bool) -> Tensor:
        """A product that is a sum over the ranks (``whole``), or of which this rank has a slice."""
        if whole:
            dist.all_reduce(product, group=self.group)
            return F.normalize(product, dim=0, eps=self.eps)
        square = product.square().sum()
        dist.all_reduce(square, group=self.group)
        return product / square.sqrt().clamp_min(self.eps)


def _hooked(norm: SpectralNorm, maths: _Cut, module: nn.Module, do_power_iteration: bool) -> Tensor:
    """``SpectralNorm.compute_weight``."""
    weight: Tensor = getattr(module, f"{norm.name}_orig")
    u, v = (getattr(module, f"{norm.name}_{vector}") for vector in "uv")
    w = norm.reshape_weight_to_matrix(weight)
    if do_power_iteration:
        with torch.no_grad():
            for _ in range(norm.n_power_iterations):
                v.copy_(maths.v(w, u))
                u.copy_(maths.u(w, v))
    return weight / maths.sigma(w, u.clone(), v.clone())  # the next iteration writes into them


def _parametrized(norm: Any, maths: _Cut, weight: Tensor) -> Tensor:
    """``_SpectralNorm.forward``."""
    w = norm._reshape_weight_to_matrix(weight)
    if norm.training:
        norm._power_method(w, norm.n_power_iterations)
    return weight / maths.sigma(w, norm._u.clone(), norm._v.clone())


@torch.no_grad()
def _power_method(norm: Any, maths: _Cut, w: Tensor, iterations: int) -> None:
    """``_SpectralNorm._power_method``, which takes u first."""
    for _ in range(iterations):
        norm._u.copy_(maths.u(w, norm._v))
        norm._v.copy_(maths.v(w, norm._u))
