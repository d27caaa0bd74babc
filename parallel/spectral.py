"""Spectral norm whose power iteration runs once a loop over the parts, so that parts equal the big batch.

torch iterates at every forward in training mode: a step cut into K parts, or a discriminator that is called on real and
on fake rows, would iterate as often. Both of torch's forms, hook and parametrization, are covered.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm


class SpectralNorms:
    """The spectral norms of a net, and whether this loop's iteration is still due."""

    def __init__(self, module: nn.Module) -> None:
        self._norms: list[tuple[Any, int]] = []
        for layer in module.modules():
            if isinstance(layer, _SpectralNorm):
                self._add(layer, layer)
            for hook in layer._forward_pre_hooks.values():
                if isinstance(hook, SpectralNorm):
                    self._add(hook, layer)

    def _add(self, norm: Any, layer: nn.Module) -> None:
        self._norms.append((norm, norm.n_power_iterations))

        def done(module: nn.Module, *_: Any) -> None:
            if module.training:
                norm.n_power_iterations = 0

        layer.register_forward_hook(done)

    def due(self) -> None:
        """The next forward in training mode iterates again."""
        for norm, iterations in self._norms:
            norm.n_power_iterations = iterations
