"""What lies beside exported weights, so that timm and the Hugging Face hub know what net they are of."""

from __future__ import annotations

from pathlib import Path

import torch

from zoo.checkpoint import Checkpoint
from zoo.models.vit.arch import create_vit, statistics_of
from zoo_datasets.errors import InputError

CONFIG = "config.json"


def write_timm_config(checkpoint: Checkpoint, folder: Path) -> Path:
    """Writes timm's config.json: with weights called model.safetensors the folder is one for the hub.

    ``timm.create_model("local-dir:FOLDER")`` makes the net from it, and so does "hf-hub:..." once it is uploaded.

    Raises:
        InputError: the folder has a config.json already.
    """
    from timm.models._hub import save_config_for_hf  # public, but not passed on by timm.models

    path = folder / CONFIG
    if path.exists():
        raise InputError(
            f"{path}: exists already, and timm's config.json is written beside the weights; give a new folder"
        )
    model = checkpoint.description["model"]
    with torch.device("meta"):
        net = create_vit(model["arch"], model["args"])
    size, channels = model["args"]["img_size"], model["args"]["in_chans"]
    mean, std = statistics_of(net)
    save_config_for_hf(
        net,
        str(path),
        model_config={"label_names": checkpoint.description["classes"]},
        model_args=model["args"],
        data_config={
            "input_size": (channels, size, size),
            "mean": mean,
            "std": std,
            "crop_pct": 1.0,
            "interpolation": "bicubic",
        },
    )
    return path
