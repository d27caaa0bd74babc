"""Which weights learn, and how fast."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from zoo_datasets.errors import InputError

Groups = Callable[[str, nn.Parameter], Mapping[str, Any]]


def layers_of(net: Any) -> dict[str, int]:
    """Every parameter's layer, as timm counts: 0 is the embedding, the last the final norm and the head."""
    from timm.models import group_parameters

    found: dict[str, int] = group_parameters(net, net.group_matcher(coarse=False), reverse=True)
    return found


def parameter_groups(net: Any, lr: float, weight_decay: float, layer_decay: float) -> Groups:
    """Options by name: no decay of vectors, tokens and positions; the learning rate falls towards the input.

    Layer-wise decay after Clark et al. (2020, arXiv:2003.10555) and Bao et al. (2022, arXiv:2106.08254).
    """
    layers = layers_of(net)
    last = max(layers.values())
    kept = net.no_weight_decay() if hasattr(net, "no_weight_decay") else set()
    vectors = {name for name, parameter in net.named_parameters() if parameter.ndim <= 1}

    def groups(name: str, parameter: nn.Parameter) -> dict[str, Any]:
        return {
            "lr": lr * layer_decay ** (last - layers.get(name, last)),
            "weight_decay": 0.0 if name in kept or name in vectors else weight_decay,
        }

    return groups


def freeze(net: Any, what: str) -> None:
    """Freezes nothing ("none"), all but the head ("backbone"), or what comes before block N ("blocks:N").

    Raises:
        InputError: the net has fewer than N blocks.
    """
    if what == "none":
        return
    if what == "backbone":
        for name, parameter in net.named_parameters():
            parameter.requires_grad_(name.startswith(("head.", "head_dist.")))
        return
    number, blocks = int(what.removeprefix("blocks:")), len(net.blocks)
    if number > blocks:
        raise InputError(f"--freeze {what}: the net has {blocks} blocks")
    layers = layers_of(net)
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(layers[name] > number)
