"""What FSDP2 leaves gathered between a forward and its backward, and what is done with it meanwhile.

A parameter that lies there whole can be used by itself (``net.head.weight.square().sum()``), in no call that FSDP2 sees: no
hook then gathers it again where it was freed in between, nor sums its gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.distributed.fsdp import FSDPModule


class Gathered:
    """Parameter groups that a forward leaves gathered, and whose gradients come whichever way they are used.

    Args:
        root: the module that holds the others.
        modules: those whose parameters stay whole after their forward.
    """

    def __init__(self, root: FSDPModule, modules: Sequence[FSDPModule]) -> None:
        self._root = root._get_fsdp_state()
        self._groups: list[Any] = [
            group for module in modules for group in module._get_fsdp_state()._fsdp_param_groups
        ]

    def hold(self) -> None:
        """Before a backward: what an earlier one freed is there again, and stays until this one is through."""
        self._root._lazy_init()
        for group in self._groups:
            if not group.is_unsharded:
                group.unshard()
                group.wait_for_unshard()
            group.reshard_after_backward = False

    def release(self, reduce: bool) -> None:
        """After a backward: sums gradients that came later than the sums of their group, or without one; then frees."""
        if reduce and any(
            parameter._unsharded_param.grad is not None
            for group in self._groups
            for parameter in group.fsdp_params
        ):
            self._root._root_post_backward_final_callback()
        for group in self._groups:
            group.reshard_after_backward = True
            group.reshard()
