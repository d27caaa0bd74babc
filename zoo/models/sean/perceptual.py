"""The perceptual loss: distance of two images in the features of a VGG-19 trained on ImageNet."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from zoo.models.sean.loss import sample_mean
from zoo.weights_file import read_weights
from zoo_datasets.errors import InputError

PERCEPTUAL_WEIGHT = 10.0  # Zhu et al. 2020, section 3.3
HUB = "hub"  # torchvision's published weights
_WANTED = "'hub' or a file of torchvision's vgg19 weights"
_CUTS = (2, 7, 12, 21, 30)  # behind the first ReLU of each of VGG-19's five stages
_WEIGHTS = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1.0)  # of the stages


class PerceptualLoss(nn.Module):
    """Johnson et al. 2016, with pix2pixHD's layers and weights; frozen.

    Args:
        source: ``"hub"``, or a file of the weights of torchvision's ``vgg19`` (all or those of ``features``),
            as safetensors or as a ``torch.save`` of plain tensors. None: random weights.

    Raises:
        InputError: no such file, a file of something else, or the hub cannot be reached.
    """

    def __init__(self, source: str | Path | None) -> None:
        super().__init__()
        from torchvision.models.vgg import cfgs, make_layers

        features = make_layers(cfgs["E"], batch_norm=False)
        if source is not None:
            _load(features, _hub() if source == HUB else read_weights(Path(source), _WANTED), str(source))
        starts = (0, *_CUTS[:-1])
        self.stages = nn.ModuleList(features[start:stop] for start, stop in zip(starts, _CUTS, strict=True))
        self.requires_grad_(False)

    def forward(self, fake: Tensor, real: Tensor) -> Tensor:
        """Images [batch, 3, height, width] in [-1, 1], as the official model gives them to VGG, to [batch].

        The mean absolute difference at each stage, weighted and summed; no gradient flows into ``real``.
        """
        losses = []
        for stage, weight in zip(self.stages, _WEIGHTS, strict=True):
            fake = stage(fake)
            with torch.no_grad():
                real = stage(real)
            losses.append(weight * sample_mean((fake - real).abs()))
        return torch.stack(losses).sum(0)


def _load(features: nn.Module, state: Mapping[str, Tensor], source: str) -> None:
    plain = {name.removeprefix("features."): tensor for name, tensor in state.items()}
    for name, tensor in features.state_dict().items():
        if name not in plain or plain[name].shape != tensor.shape:
            found = f"of shape {tuple(plain[name].shape)}" if name in plain else "missing"
            raise InputError(
                f"{source}: features.{name} is {found}, not {tuple(tensor.shape)}: "
                "give the weights of torchvision's vgg19"
            )
    features.load_state_dict({name: plain[name] for name in features.state_dict()})


def _hub() -> Mapping[str, Tensor]:
    from torchvision.models import VGG19_Weights

    try:
        return VGG19_Weights.IMAGENET1K_V1.get_state_dict(progress=True, check_hash=True)
    except OSError as error:
        raise InputError(
            f"VGG-19's weights cannot be fetched ({error}): give a file of them instead"
        ) from error
