"""ViT's options."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, ClassVar

from zoo.config import PretrainedConfig, require


@dataclass(frozen=True, kw_only=True)
class ViTConfig(PretrainedConfig):
    """Defaults that suit small images and random weights."""

    default_epochs: ClassVar[int] = 30

    data: str | None = "digits"
    """digits, cifar10, cifar100, or a folder of images, class/image; digits:0-4 takes these classes only"""
    arch: str = "vit_micro_patch2_8"
    """a Vision Transformer of timm, vit_* or deit*; the default is one for 8-pixel images"""
    model_args: tuple[str, ...] = ()
    """KEY=VALUE arguments of the architecture, such as depth=6 qk_norm=true"""
    img_size: int | None = None
    """pixels of a side that images are brought to; the architecture's unless given"""
    in_chans: int | None = None
    """1 for grey, 3 for RGB; the architecture's unless given"""
    pretrained: str = "none"
    """weights to begin from: none, hub (downloaded by timm), or a file or run"""
    freeze: str = "none"
    """weights that stay as they are: none, backbone (all but the head), or blocks:N (what comes before block N)"""
    batch_size: int = 32
    """images of a global batch, whatever the number of ranks"""
    lr: float = 1e-3
    """learning rate of AdamW at its highest"""
    weight_decay: float = 0.05
    """of weight matrices"""
    layer_decay: float = 1.0
    """factor of the learning rate from a block to the one before it"""
    warmup: float = 0.3
    """share of the steps in which the learning rate rises, before it falls as a cosine"""
    clip_norm: float | None = 1.0
    """norm that the whole gradient is scaled down to"""
    label_smoothing: float = 0.0
    """share of the target that is spread over all classes"""
    mixup: float = 0.0
    """alpha of mixup; 0 is none"""
    cutmix: float = 0.0
    """alpha of cutmix; 0 is none. With mixup, each batch takes one of the two"""
    randaugment: int = 0
    """RandAugment's operations an image; 0 is none"""
    magnitude: int = 9
    """RandAugment's strength, 0 to 30"""
    flip: bool = False
    """mirror half of the training images"""
    crop: float = 1.0
    """least share of an image's area in a random crop; 1 crops nothing"""
    dropout: float = 0.0
    """of embeddings and of what attention and MLP give"""
    attn_dropout: float = 0.0
    """of attention weights"""
    drop_path: float = 0.0
    """probability that a sample skips the last block; earlier ones less"""
    ema: float = 0.0
    """decay a step of a moving average of the weights, which is then what is evaluated and used; 0 is none"""
    recompute: bool = False
    """recompute each block's activations in backward, to save memory"""
    workers: int = 0
    """processes on each rank that read and augment images"""
    skip_bad: bool = False
    """leave out images that cannot be read, and say how many"""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("lr", "layer_decay", "crop"):
            value = getattr(self, name)
            require(value > 0, name, f"must be above 0, not {value}")
        for name in ("layer_decay", "crop", "warmup"):
            value = getattr(self, name)
            require(0 <= value <= 1, name, f"must be at most 1 and not negative, not {value}")
        for name in ("label_smoothing", "dropout", "attn_dropout", "drop_path", "ema"):
            value = getattr(self, name)
            require(0 <= value < 1, name, f"must be from 0 to below 1, not {value}")
        for name in ("weight_decay", "mixup", "cutmix", "randaugment", "workers"):
            value = getattr(self, name)
            require(value >= 0, name, f"must not be negative, not {value}")
        require(0 <= self.magnitude <= 30, "magnitude", f"must be from 0 to 30, not {self.magnitude}")
        require(
            self.clip_norm is None or self.clip_norm > 0,
            "clip_norm",
            f"must be above 0, not {self.clip_norm}",
        )
        require(
            self.img_size is None or self.img_size >= 1,
            "img_size",
            f"must be at least 1, not {self.img_size}",
        )
        require(
            self.in_chans in (None, 1, 3), "in_chans", f"must be 1 (grey) or 3 (RGB), not {self.in_chans}"
        )
        kind, colon, number = self.freeze.partition(":")
        known = self.freeze in ("none", "backbone") or (kind == "blocks" and colon and number.isdecimal())
        require(bool(known), "freeze", f"must be none, backbone or blocks:N, not {self.freeze}")
        for argument in self.model_args:
            require("=" in argument, "model_args", f"must be KEY=VALUE, not {argument}")
        own = {"num_classes", "img_size", "in_chans"} & self.model_arguments().keys()
        require(
            not own,
            "model_args",
            f"cannot hold {', '.join(sorted(own))}: the data or an option of its own says it",
        )

    def model_arguments(self) -> dict[str, Any]:
        """``model_args`` as timm takes them; a value that is not JSON is text."""
        return {
            key: _value(text) for key, _, text in (argument.partition("=") for argument in self.model_args)
        }

    def arch_args(self) -> dict[str, Any]:
        """Everything that the options say about the net but its name and its classes."""
        given: dict[str, Any] = {"img_size": self.img_size, "in_chans": self.in_chans}
        rates = {
            "proj_drop_rate": self.dropout,
            "pos_drop_rate": self.dropout,
            "attn_drop_rate": self.attn_dropout,
            "drop_path_rate": self.drop_path,
        }
        given |= {name: rate for name, rate in rates.items() if rate}
        return {name: value for name, value in given.items() if value is not None} | self.model_arguments()


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
