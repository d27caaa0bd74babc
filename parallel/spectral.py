"""Spectral norm whose power iteration runs once a loop over the parts, so that parts equal the big batch.

torch iterates at every forward in training mode: a step cut into K parts, or a discriminator that is called
on real and on fake rows, would iterate as often. Both of torch's forms, hook and parametrization, are
covered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.parametrize import ParametrizationList
from torch.nn.utils.spectral_norm import SpectralNorm


@dataclass
class _Norm:
    norm: Any  # what has ``n_power_iterations``
    layer: nn.Module  # whose ``training`` says whether to iterate
    iterations: int
    iterate: Callable[[], Any]

    def done(self, module: nn.Module, *_: Any) -> None:
        if module.training:
            self.norm.n_power_iterations = 0


class SpectralNorms:
    """The spectral norms of a net, and whether this loop's iteration is still due."""

    def __init__(self, module: nn.Module) -> None:
        self._norms: list[_Norm] = []
        for layer in module.modules():
            if isinstance(layer, ParametrizationList):
                for norm in layer:
                    if isinstance(norm, _SpectralNorm):
                        self._parametrized(norm, layer)
            for hook in layer._forward_pre_hooks.values():
                if isinstance(hook, SpectralNorm):
                    self._hooked(hook, layer)

    def _hooked(self, hook: SpectralNorm, layer: nn.Module) -> None:
        self._add(hook, layer, lambda: hook.compute_weight(layer, do_power_iteration=True))

    def _parametrized(self, norm: _SpectralNorm, holder: ParametrizationList) -> None:
        def iterate() -> None:
            norm._power_method(norm._reshape_weight_to_matrix(holder.original), norm.n_power_iterations)

        self._add(norm, norm, iterate)

    def _add(self, norm: Any, layer: nn.Module, iterate: Callable[[], Any]) -> None:
        found = _Norm(norm, layer, norm.n_power_iterations, iterate)
        self._norms.append(found)
        layer.register_forward_hook(found.done)

    def due(self) -> None:
        """The next forward in training mode iterates again."""
        for found in self._norms:
            found.norm.n_power_iterations = found.iterations

    @torch.no_grad()
    def advance(self) -> None:
        """Iterates now where that is due: before a forward that replicas share, each of which would iterate."""
        for found in self._norms:
            if found.layer.training and found.norm.n_power_iterations:
                found.iterate()
                found.norm.n_power_iterations = 0
