"""Ways into an FSDP2 model beside a call of it: other methods, parts of it, ``forward`` called by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from parallel.batch import Nest, map_nest


def redirect(root: FSDPModule) -> None:
    """Makes every method of every module below the root gather the parameters that it is sharded with, as a call does."""
    # Whichever is called first, FSDP2 wants to meet the root first.
    know_root = root._get_fsdp_state()._lazy_init
    seen: set[nn.Module] = set()

    def below(module: nn.Module, owner: FSDPModule) -> None:
        if module in seen or next(module.parameters(), None) is None:
            return
        seen.add(module)
        if isinstance(module, FSDPModule):
            owner = module
            if owner is not root:
                module.register_forward_pre_hook(lambda module, args: know_root(), prepend=True)
        for name in ("forward", *own_methods(module, private=True)):
            setattr(module, name, _gathering(getattr(module, name), owner, know_root))
        for child in module.children():
            below(child, owner)

    assert isinstance(root, nn.Module)
    below(root, root)


def _gathering(
    plain: Callable[..., Any], owner: FSDPModule, know_root: Callable[[], None]
) -> Callable[..., Any]:
    """Not within the owner's forward (or one that backward repeats): what it gathers it also frees."""
    state = owner._get_fsdp_state()
    idle = state._training_state

    @wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or state._training_state is not idle:
            return plain(*args, **kwargs)
        know_root()
        args, kwargs = state._pre_forward(owner, args, kwargs)  # type: ignore[arg-type]
        return state._post_forward(owner, args, no_views(plain(*args, **kwargs)))  # type: ignore[arg-type]

    return call


def own_methods(module: nn.Module, *, private: bool = False) -> list[str]:
    """Methods of the model's own classes: called directly, they must find whole parameters, as forward does.

    Args:
        private: also those with a leading underscore, and none of torch's classes (which index and name their children so).
    """
    names: list[str] = []
    for cls in type(module).__mro__:
        if cls is nn.Module:
            break
        of_torch = cls.__module__.split(".")[0] == "torch"
        if not of_torch or not (private or issubclass(cls, FSDPModule)):
            names += [
                name
                for name, value in vars(cls).items()
                if callable(value)
                and not name.startswith("__" if private else "_")
                and name != "forward"
                and not hasattr(nn.Module, name)
                and not hasattr(FSDPModule, name)
                and not isinstance(value, staticmethod | classmethod | type)
            ]
    return list(dict.fromkeys(names))


def no_views(nest: Nest) -> Nest:
    """FSDP2 gathers for backward from a hook on what a forward returns; an in-place operation on a view would lose it."""
    return map_nest(lambda t: t.clone() if t.requires_grad and t._base is not None else t, nest)
