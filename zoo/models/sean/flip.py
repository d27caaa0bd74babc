"""Mirrored images: where labels tell left from right, their maps change sides too."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import Tensor

_SIDES = {"l": "r", "r": "l", "left": "right", "right": "left"}


def mirror_table(names: Sequence[str]) -> Tensor:
    """The label of each label's mirror image, int64 [256]; 255 (no label) and others stay as they are.

    Two labels change places where the name of one becomes the other's with left and right (l and r) exchanged:
    ``l_eye`` and ``r_eye``, but not ``l_lip``, the lower lip, since there is no ``r_lip``.
    """
    table = torch.arange(256)
    place = {name.casefold(): label for label, name in enumerate(names)}
    for label, name in enumerate(names):
        words = re.split(r"([^a-z]+)", name.casefold())
        table[label] = place.get("".join(_SIDES.get(word, word) for word in words), label)
    return table


def flipped(image: Tensor, labels: Tensor, chosen: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """Images [rows, 3, height, width] and maps [rows, height, width], those mirrored that are chosen (0 or 1, [rows])."""
    flip = chosen.bool()
    mirrored = table.to(labels.device)[labels.long()].to(labels.dtype).flip(-1)
    return (
        torch.where(flip.view(-1, 1, 1, 1), image.flip(-1), image),
        torch.where(flip.view(-1, 1, 1), mirrored, labels),
    )
