"""timm's Vision Transformers by name."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import nn

from zoo_datasets.errors import InputError, shown

PREFIXES = ("vit_", "deit")

# Names of our own: one of timm's, and arguments for it.
PRESETS: dict[str, tuple[str, dict[str, Any]]] = {
    "vit_micro_patch2_8": (
        "vit_tiny_patch16_224",
        {"img_size": 8, "patch_size": 2, "in_chans": 1, "embed_dim": 96, "depth": 4, "num_heads": 4},
    ),
}


def resolve_arch(name: str, args: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name as timm knows it, and all arguments; those given win over a preset's.

    Raises:
        InputError: no such architecture; names the nearest.
    """
    base, preset = PRESETS.get(name, (name, {}))
    check_arch(base)
    return base, preset | dict(args)


def check_arch(name: str) -> None:
    """Raises unless timm has a Vision Transformer of that name (a pretrained tag may follow a dot).

    Raises:
        InputError: it has none; names the nearest.
    """
    import timm

    architecture, _, tag = name.partition(".")
    if architecture.startswith(PREFIXES) and timm.is_model(architecture):
        tags = timm.list_models(f"{architecture}.*", pretrained=True) if tag else []
        if not tag or name in tags:
            return
        raise InputError(f"unknown weights {shown(name)}; there are: {', '.join(tags) or 'none'}")
    known = [*PRESETS, *timm.list_models([f"{prefix}*" for prefix in PREFIXES])]
    near = difflib.get_close_matches(architecture, known, n=3, cutoff=0.3)
    raise InputError(
        f"unknown architecture {shown(name)}; the nearest are {', '.join(near) or ', '.join(known[:3])}"
    )


def create_vit(arch: str, args: Mapping[str, Any] | None = None, pretrained: bool = False) -> nn.Module:
    """A Vision Transformer, exactly timm's, with fresh weights.

    Args:
        arch: a name that :func:`check_arch` takes.
        args: keyword arguments of ``timm.create_model``, such as num_classes, img_size and in_chans.
        pretrained: load the weights that timm has for the name, downloading them once.

    Raises:
        InputError: no such architecture, or arguments that it does not take.
    """
    import timm

    check_arch(arch)
    args = dict(args or {})
    if args.get("patch_drop_rate"):
        raise InputError(
            "patch_drop_rate: the patches to drop are drawn inside timm, where they cannot follow the sample; leave it 0"
        )
    try:
        net: nn.Module = timm.create_model(arch, pretrained=pretrained, **args)
    except (TypeError, AssertionError) as error:
        why = " ".join(str(error).split()) or "they do not fit together"
        raise InputError(f"architecture {arch} with {args}: {why}") from None
    if args.get("attn_drop_rate"):
        # The fused kernel draws its dropout inside torch, where it cannot follow the sample.
        for module in net.modules():
            if hasattr(module, "fused_attn"):
                setattr(module, "fused_attn", False)  # noqa: B010
    return net


def input_of(net: nn.Module) -> dict[str, int]:
    """Side and channels of the images that a net takes."""
    patches: Any = net.patch_embed
    height, width = patches.img_size
    if height != width:
        raise InputError(
            f"--img-size: the architecture takes {height} x {width} pixels, and only squares are fed"
        )
    return {"img_size": height, "in_chans": patches.proj.in_channels}


def statistics_of(net: nn.Module) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel that timm has for the architecture, of pixels from 0 to 1."""
    config: Any = net.pretrained_cfg
    mean, std = (np.asarray(config[name], dtype=np.float64) for name in ("mean", "std"))
    if input_of(net)["in_chans"] != len(mean):  # one for all
        mean, std = mean.mean(keepdims=True), std.mean(keepdims=True)
    return mean.tolist(), std.tolist()
