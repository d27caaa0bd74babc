"""What is done to a plan's blocks before they are spread: recomputed activations, compilation."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.utils.checkpoint import checkpoint

from parallel.batch import map_nest
from parallel.dropout import CurrentPart, KeyedDropout
from parallel.plan import Plan, match
from parallel.refusals import RECOMPUTED_STATE


def checkpoint_blocks(model: nn.Module, plan: Plan, current: CurrentPart) -> None:
    """Recomputes the activations of ``Plan.checkpoint`` in backward, with the same dropout masks.

    Raises:
        ParallelError: a block changes state in forward (BatchNorm, spectral norm), which would change twice.
    """
    for name, block in match(model, *plan.checkpoint):
        for inner, module in block.named_modules():
            hooks = any(isinstance(hook, SpectralNorm) for hook in module._forward_pre_hooks.values())
            if hooks or isinstance(module, _SpectralNorm | nn.modules.batchnorm._BatchNorm):
                raise RECOMPUTED_STATE.error(f"{name}.{inner}" if inner else name)
        block.forward = _Recomputed(block.forward, current)


class _Recomputed:
    def __init__(self, forward: Any, current: CurrentPart) -> None:
        self.forward, self.current = forward, current

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        drawn = self.current.snapshot()
        first = True

        def run(*inputs: Any, **options: Any) -> Any:
            nonlocal first
            if first:
                first = False
                return self.forward(*inputs, **options)
            now = self.current.snapshot()
            self.current.restore(drawn)
            try:
                return self.forward(*inputs, **options)
            finally:
                self.current.restore(now)

        return checkpoint(run, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)


def compile_blocks(model: nn.Module, plan: Plan) -> None:
    """Compiles the blocks of ``Plan.compile`` one by one, or the whole model where the plan names none; names stay."""
    for block in [block for _, block in match(model, *plan.compile)] or [model]:
        block.forward = _Compiled(block)


class _Compiled:
    """Stands in for a block's ``forward``: hooks, of FSDP2 and others, stay outside of what is compiled."""

    def __init__(self, block: nn.Module) -> None:
        self.plain = block.forward
        self.compiled = torch.compile(block.forward)
        self.dropout = [module for module in block.modules() if isinstance(module, KeyedDropout)]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # within another block
            return self.plain(*args, **kwargs)
        map_nest(rows_vary, (args, kwargs))
        with ExitStack() as handed:
            for layer in self.dropout:
                handed.enter_context(layer.handed(rows_vary))
            return self.compiled(*args, **kwargs)


def rows_vary(tensor: Tensor) -> None:
    """Says that the first axis is rows: the last batch has fewer, and code made for a fixed number would be made again."""
    if tensor.dim():
        torch._dynamo.maybe_mark_dynamic(tensor, 0)
