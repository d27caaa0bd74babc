"""How a Vision Transformer may be cut over ranks."""

from __future__ import annotations

from torch import nn

from parallel.plan import Plan

# By class name, what each of timm's layers is cut by: attention by heads, an MLP by hidden units.
_ATTENTION = {
    "qkv": "qkv num_heads attn_dim",
    "gate": "column",
    "q_norm": "shared",
    "k_norm": "shared",
    "attn_drop": "heads",
    "proj": "row",
}
_STYLES: dict[str, dict[str, str]] = {
    "Attention": _ATTENTION,
    "Mlp": {"fc1": "column", "drop1": "features", "fc2": "row"},
    "GluMlp": {"fc1": "pair", "drop1": "features", "fc2": "row"},
    "SwiGLU": {"fc1_g": "column", "fc1_x": "column", "drop1": "features", "fc2": "row"},
}


def plan_of(net: nn.Module, recompute: bool = False) -> Plan:
    """Blocks are units to gather, to compile and, if asked for, to recompute.

    A layer with a norm over what would be cut is left whole, and so is what timm computes in other ways (relative
    positions, parallel blocks): where nothing is left to cut, tensor parallelism says so.
    """
    tensor: dict[str, str] = {}
    for name, module in net.named_modules():
        if not name.startswith("blocks.") or not isinstance(
            getattr(module, "norm", nn.Identity()), nn.Identity
        ):
            continue
        for child, style in _STYLES.get(type(module).__name__, {}).items():
            layer = getattr(module, child, None)
            if layer is not None and not isinstance(layer, nn.Identity):
                tensor[f"blocks.*.{name.split('.', 2)[2]}.{child}"] = style
    blocks = ("blocks.*",)
    return Plan(units=blocks, tensor=tensor, compile=blocks, checkpoint=blocks if recompute else ())
