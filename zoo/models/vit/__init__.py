"""ViT: image classification with any Vision Transformer of timm (Dosovitskiy et al. 2021, arXiv:2010.11929).

arch.py        timm's architectures by name, and one small enough for 8-pixel images
pretrained.py  weights to begin from
torchvision.py torchvision's weights under timm's names
plan.py        how a net may be cut over ranks
samples.py     images on their way to the net: size, augmentation, partners
mix.py         mixup and cutmix
schedule.py    warm-up and cosine
groups.py      what each weight's optimizer options are, and what is frozen
config.py      the options
trainer.py     the training, over any strategy
metrics.py     accuracy and confusion
report.py      tables and plots
export.py      what `zoo export` writes beside the weights

Nothing heavy is imported here, so that listing models costs no import of torch.
"""

from __future__ import annotations

from zoo.registry import ModelEntry

MODEL = ModelEntry(
    name="vit",
    summary="image classification with any Vision Transformer of timm (Dosovitskiy et al. 2021)",
    model="zoo.models.vit.arch:create_vit",
    config="zoo.models.vit.config:ViTConfig",
    trainer="zoo.models.vit.trainer:ViTTrainer",
    convert="zoo.models.vit.torchvision:convert",
    export="zoo.models.vit.export:write_timm_config",
)
