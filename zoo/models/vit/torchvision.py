"""torchvision's Vision Transformers (``vit_b_16`` and its siblings) under timm's names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from zoo.models.vit.arch import create_vit
from zoo.models.vit.config import ViTConfig
from zoo.weights_file import read_weights
from zoo_datasets.errors import InputError, listed

# (width, patch) -> timm's name of the same net. Heads cannot be read from weights: they are what torchvision has.
ARCHITECTURES = {
    (768, 16): "vit_base_patch16_224",
    (768, 32): "vit_base_patch32_224",
    (1024, 16): "vit_large_patch16_224",
    (1024, 32): "vit_large_patch32_224",
    (1280, 14): "vit_huge_patch14_224",
}

_NAMES = (
    (r"^class_token$", "cls_token"),
    (r"^conv_proj\.", "patch_embed.proj."),
    (r"^encoder\.pos_embedding$", "pos_embed"),
    (r"^encoder\.layers\.encoder_layer_(\d+)\.", r"blocks.\1."),
    (r"^encoder\.ln\.", "norm."),
    (r"^heads\.head\.", "head."),
    (r"\.ln_([12])\.", r".norm\1."),
    (r"\.self_attention\.in_proj_", ".attn.qkv."),
    (r"\.self_attention\.out_proj\.", ".attn.proj."),
    (r"\.mlp\.(?:0|linear_1)\.", ".mlp.fc1."),
    (r"\.mlp\.(?:3|linear_2)\.", ".mlp.fc2."),
)


def convert(path: Path) -> tuple[ViTConfig, dict[str, Any], dict[str, nn.Module]]:
    """What ``zoo convert`` writes: options, description and net.

    Raises:
        InputError: no such file, or not weights of one of torchvision's Vision Transformers.
    """
    weights = renamed(read_weights(path))
    arch, args = arch_of(weights, path)
    given = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    with torch.device("meta"):
        wanted = {name: tuple(t.shape) for name, t in create_vit(arch, args).state_dict().items()}
    if given != wanted:
        name = min(name for name in given.keys() | wanted.keys() if given.get(name) != wanted.get(name))
        raise InputError(
            f"{path}: not a Vision Transformer of torchvision: {name} is {given.get(name, 'missing')}, "
            f"where {arch} has {wanted.get(name, 'nothing')}"
        )
    classes = [str(label) for label in range(args["num_classes"])]
    description = {"model": {"arch": arch, "args": args}, "classes": classes, "data": None}
    options = ViTConfig(data=None, arch=arch, img_size=args["img_size"], in_chans=args["in_chans"])
    net = create_vit(arch, args)
    net.load_state_dict(weights)
    return options, description, {"net": net}


def renamed(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors under timm's names; both fuse query, key and value in this order."""
    found = {}
    for name, tensor in weights.items():
        for pattern, replacement in _NAMES:
            name = re.sub(pattern, replacement, name)
        found[name] = tensor
    return found


def arch_of(weights: Mapping[str, Tensor], source: Path) -> tuple[str, dict[str, Any]]:
    """The architecture and its arguments, from the shapes of the weights.

    Raises:
        InputError: none of torchvision's.
    """
    filters, positions, head = (
        weights.get(n) for n in ("patch_embed.proj.weight", "pos_embed", "head.weight")
    )
    if filters is None or positions is None or head is None or filters.ndim != 4 or positions.ndim != 3:
        raise InputError(
            f"{source}: not a Vision Transformer of torchvision (vit_b_16 and its siblings); it has {listed(list(weights))}"
        )
    width, channels, patch, _ = filters.shape
    arch = ARCHITECTURES.get((width, patch))
    if arch is None:
        raise InputError(
            f"{source}: torchvision has no Vision Transformer of width {width} with {patch}-pixel patches"
        )
    side = round((positions.shape[1] - 1) ** 0.5)
    depth = sum(name.endswith(".norm1.weight") for name in weights)
    args = {"img_size": side * patch, "in_chans": channels, "num_classes": head.shape[0], "depth": depth}
    return arch, args
