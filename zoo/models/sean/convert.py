"""Official SEAN checkpoints, in and out.

Names, shapes and values are theirs but for the mappings of the styles: a linear layer a label there
(``fc_mu0``, ``fc_mu1``, ...), one batched layer here (``fc_mu``), whose first axis is the label.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from zoo.checkpoint import Checkpoint
from zoo.models.sean.config import SeanConfig, SeanTrainConfig
from zoo.models.sean.discriminator import Discriminator
from zoo.models.sean.generator import Generator
from zoo.table import check_new
from zoo.weights_file import read_weights
from zoo_datasets.errors import InputError
from zoo_datasets.segmented import MapFormat

log = logging.getLogger("zoo")

GENERATOR_FILE, DISCRIMINATOR_FILE = "latest_net_G.pth", "latest_net_D.pth"  # where the official code looks

_OFFICIAL = re.compile(r"(?P<norm>.*\.fc_mu)(?P<label>\d+)\.(?P<kind>weight|bias)")
_OURS = re.compile(r"(?P<norm>.*\.fc_mu)\.(?P<kind>weight|bias)")


def convert(path: Path) -> tuple[SeanTrainConfig, dict[str, Any], dict[str, nn.Module]]:
    """What ``zoo convert`` writes: options, description and networks.

    The discriminator is looked for beside the generator: ``latest_net_D.pth`` where that is ``latest_net_G.pth``.

    Raises:
        InputError: no such file, or not an official checkpoint.
    """
    state = read_weights(path, "the official generator, latest_net_G.pth")
    with _named(path):
        sizes = official_config(state)
        models: dict[str, nn.Module] = {"net": Generator(sizes)}
        load_official(models["net"], state)
    beside = path.with_name(path.name.replace("net_G", "net_D"))
    if beside != path and beside.is_file():
        judge = read_weights(beside, "the official discriminator")
        with _named(beside):
            sizes = official_config(state, judge)
            models["discriminator"] = Discriminator(sizes)
            load_official(models["discriminator"], judge)
    else:
        log.warning("%s: no discriminator beside it; the generator alone is converted", path)
    log.warning(  # `zoo convert` shows nothing below it
        "%s: the image size is not in the file; %d is taken for samples and evaluations "
        "(from Python the network takes any multiple of %d)",
        path,
        sizes.image_size,
        sizes.coarsest,
    )
    names = [str(label) for label in range(sizes.labels)]
    options = {name: value for name, value in asdict(sizes).items() if name != "labels"}
    description = {
        "model": asdict(sizes),
        "names": names,
        "data": None,
        "map_format": asdict(MapFormat(sizes.labels)),
        "styles": None,
    }
    return SeanTrainConfig(data=None, labels=sizes.labels, **options), description, models


def export_official(checkpoint: Checkpoint, folder: Path) -> list[Path]:
    """Writes a run's generator and discriminator as the official code loads them.

    Raises:
        InputError: a file is there already.
    """
    states = {GENERATOR_FILE: checkpoint.weights()}
    discriminator = checkpoint.weights_of("discriminator")
    if discriminator is not None:
        states[DISCRIMINATOR_FILE] = discriminator
    else:
        log.warning("%s: holds no discriminator; the generator alone is written", checkpoint.folder)
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / name for name in states]
    for file in files:
        check_new(file, "--to")
    for file, state in zip(files, states.values(), strict=True):
        torch.save(to_official(state), file)
    return files


def from_official(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state of a ``Generator`` or ``Discriminator`` from the official one's.

    Raises:
        InputError: a label's mapping is missing, or of another shape than the others; who knows the file names it.
    """
    ours: dict[str, Tensor] = {}
    stacks: dict[str, dict[int, Tensor]] = {}
    for name, tensor in state.items():
        found = _OFFICIAL.fullmatch(name)
        if found is None:
            ours[name] = tensor
        else:
            stacks.setdefault(f"{found['norm']}.{found['kind']}", {})[int(found["label"])] = tensor
    for name, by_label in stacks.items():
        for label in range(max(by_label) + 1):
            if label not in by_label:
                raise InputError(f"no {_official_name(name, label)}: is the file complete?")
            if by_label[label].shape != by_label[0].shape:
                raise InputError(
                    f"{_official_name(name, label)} has shape "
                    f"{tuple(by_label[label].shape)}, unlike label 0's {tuple(by_label[0].shape)}"
                )
        ours[name] = torch.stack([by_label[label] for label in range(len(by_label))])
    return ours


def to_official(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of :func:`from_official`."""
    official: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if _OURS.fullmatch(name) is None:
            official[name] = tensor
        else:
            official |= {_official_name(name, label): row for label, row in enumerate(tensor)}
    return official


def official_config(
    generator: Mapping[str, Tensor], discriminator: Mapping[str, Tensor] | None = None
) -> SeanConfig:
    """The sizes that official checkpoints tell by their shapes.

    They tell neither the image size nor whether the resolution doubles 5 or 6 times: the defaults are taken.

    Raises:
        InputError: the tensors that tell are missing; who knows the file names it.
    """
    default = SeanConfig()
    mask, style = _tensor(generator, "fc.weight"), _tensor(generator, "Zencoder.model.14.weight")
    deep = any(name.startswith("up_4.") for name in generator)
    first = None if discriminator is None else _tensor(discriminator, "discriminator_0.model0.0.weight")
    return SeanConfig(
        labels=mask.shape[1],
        filters=mask.shape[0] // 16,
        style_length=style.shape[0],
        upsampling=7 if deep else default.upsampling,
        discriminator_filters=default.discriminator_filters if first is None else first.shape[0],
    )


def load_official(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Loads an official checkpoint's state into a ``Generator`` or ``Discriminator``.

    Raises:
        InputError: a name or a shape differs from the model's; who knows the file names it.
    """
    ours = from_official(state)
    expected, what = model.state_dict(), f"the official {type(model).__name__.lower()}"
    for name in (*expected, *ours):
        if name not in ours:
            raise InputError(f"no {name}, which a {type(model).__name__} has: is the file complete?")
        if name not in expected:
            raise InputError(f"{name} is no tensor of a {type(model).__name__}; give {what}'s file")
        if ours[name].shape != expected[name].shape:
            raise InputError(
                f"{name} has shape {tuple(ours[name].shape)}, not {tuple(expected[name].shape)} as the other "
                f"tensors' sizes have it; give {what}'s file"
            )
    model.load_state_dict(ours)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """What does not fit is said of the file."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _official_name(ours: str, label: int) -> str:
    norm, kind = ours.rsplit(".", 1)
    return f"{norm}{label}.{kind}"


def _tensor(state: Mapping[str, Tensor], name: str) -> Tensor:
    if name not in state or state[name].dim() != 4:
        raise InputError(f"no {name} of four axes: is this the right network's file?")
    return state[name]
