"""Official SEAN checkpoints, in and out.

Names, shapes and values are theirs but for the mappings of the styles: a linear layer a label there
(``fc_mu0``, ``fc_mu1``, ...), one batched layer here (``fc_mu``), whose first axis is the label.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from zoo.models.sean.config import SeanConfig
from zoo_datasets.errors import InputError

_OFFICIAL = re.compile(r"(?P<norm>.*\.fc_mu)(?P<label>\d+)\.(?P<kind>weight|bias)")
_OURS = re.compile(r"(?P<norm>.*\.fc_mu)\.(?P<kind>weight|bias)")


def from_official(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state of a ``Generator`` or ``Discriminator`` from the official one's.

    Raises:
        InputError: a label's mapping is missing, or of another shape than the others.
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
                raise InputError(
                    f"sean: official checkpoint: no {_official_name(name, label)}: is the file complete?"
                )
            if by_label[label].shape != by_label[0].shape:
                raise InputError(
                    f"sean: official checkpoint: {_official_name(name, label)} has shape "
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
        InputError: the tensors that tell are missing.
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
        InputError: a name or a shape differs from the model's.
    """
    ours = from_official(state)
    expected = model.state_dict()
    for name in (*expected, *ours):
        if name not in ours:
            raise InputError(f"sean: official checkpoint: no {name}, which a {type(model).__name__} has")
        if name not in expected:
            raise InputError(f"sean: official checkpoint: {name} is no tensor of a {type(model).__name__}")
        if ours[name].shape != expected[name].shape:
            raise InputError(
                f"sean: official checkpoint: {name} has shape {tuple(ours[name].shape)}, "
                f"not {tuple(expected[name].shape)}: give the options it was trained with"
            )
    model.load_state_dict(ours)


def _official_name(ours: str, label: int) -> str:
    norm, kind = ours.rsplit(".", 1)
    return f"{norm}{label}.{kind}"


def _tensor(state: Mapping[str, Tensor], name: str) -> Tensor:
    if name not in state or state[name].dim() != 4:
        raise InputError(
            f"sean: official checkpoint: no {name} of four axes: is this the right network's file?"
        )
    return state[name]
