"""Weights to begin from: timm's, a file's or another run's, fitted to the net at hand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from zoo.config import NO_WEIGHTS
from zoo.models.vit.arch import create_vit
from zoo.pretrained import pretrained_run
from zoo.weights_file import read_weights
from zoo_datasets.errors import InputError


def fresh_net(arch: str, args: Mapping[str, Any], seed: int) -> nn.Module:
    """A net whose weights only the seed decides."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return create_vit(arch, args)


def pretrained_net(
    arch: str, args: Mapping[str, Any], classes: list[str], source: str, seed: int
) -> nn.Module:
    """A net that begins from ``source``; see ``ViTConfig.pretrained``.

    Position embeddings, patch filters and input channels are resampled as timm does. The head is drawn anew where
    the source has other classes.

    Args:
        args: of the architecture, "num_classes" among them.
        classes: names of the labels.

    Raises:
        InputError: no such file, damaged, or weights of another architecture; names what does not fit.
    """
    net = fresh_net(arch, args, seed)
    if source == NO_WEIGHTS or torch.get_default_device().type == "meta":  # only the shape is asked for
        return net
    if source == "hub":
        return _from_hub(arch, args, seed)
    path = Path(source)
    weights, theirs = _read_source(path)
    heads = _heads(net)
    for name in heads:
        own = net.get_submodule(name).state_dict(prefix=f"{name}.")
        found = weights.get(f"{name}.weight")
        fits = found is not None and found.shape[0] == args["num_classes"] and theirs in (None, classes)
        if not fits:
            weights |= own
    return _fitted(arch, args, weights, path)


def _read_source(path: Path) -> tuple[dict[str, Tensor], list[str] | None]:
    """Weights, and the classes they were trained for where a run says so."""
    if not path.is_dir():
        return read_weights(path), None
    checkpoint = pretrained_run(path, "vit")
    return checkpoint.weights(), checkpoint.description["classes"]


def _from_hub(arch: str, args: Mapping[str, Any], seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # of a new head
        try:
            return create_vit(arch, args, pretrained=True)
        except InputError:
            raise
        except Exception as error:  # whatever the hub's client, the network or timm raises
            why = " ".join(str(error).split())
            raise InputError(
                f"--pretrained hub: cannot load timm's weights of {arch} ({why}); download them elsewhere and give the file"
            ) from None


def _fitted(arch: str, args: Mapping[str, Any], weights: Mapping[str, Tensor], path: Path) -> nn.Module:
    """The net with these weights, resampled by timm, strictly."""
    import timm

    first = weights.get("patch_embed.proj.weight")
    config = {
        "state_dict": dict(weights),
        "custom_load": False,
        "label_offset": 0,
        "num_classes": args["num_classes"],
        "input_size": (first.shape[1] if first is not None and first.ndim == 4 else 3, 224, 224),
    }
    try:
        net: nn.Module = timm.create_model(arch, pretrained=True, pretrained_cfg_overlay=config, **args)
    except (RuntimeError, KeyError, AttributeError, AssertionError) as error:
        why = " ".join(str(error).split())
        why = why if len(why) < 300 else f"{why[:300]}..."
        raise InputError(
            f"--pretrained {path}: not weights of {arch}; give their --arch and --model-args ({why})"
        ) from None
    fresh = create_vit(arch, args)  # with dropout as this package needs it
    fresh.load_state_dict(net.state_dict())
    return fresh


def _heads(net: nn.Module) -> tuple[str, ...]:
    classifier = net.pretrained_cfg["classifier"]  # type: ignore[index]
    return (classifier,) if isinstance(classifier, str) else tuple(classifier)
