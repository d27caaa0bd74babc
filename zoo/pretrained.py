"""Weights that a training begins from: a file's, or another run's."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor, nn

from zoo.checkpoint import MANIFEST, Checkpoint, read_checkpoint
from zoo.config import NO_WEIGHTS
from zoo.weights_file import read_weights
from zoo_datasets.errors import InputError

if TYPE_CHECKING:
    from parallel.interface import Parallel

log = logging.getLogger("zoo")

_MOST = 300  # characters of what does not fit


def begin_from(p: Parallel, source: str, model: str, nets: Mapping[str, nn.Module]) -> None:
    """Loads weights into wrapped nets that have neither optimizer nor average yet; called on every rank.

    Args:
        source: ``NO_WEIGHTS``; a run or a checkpoint of the same model, its averaged weights where it has such; or a
            file of weights, safetensors or what ``torch.save`` wrote of a state dict, for the first of the nets.
        nets: by the names that checkpoints keep them under. What the source lacks begins anew, and is named.

    Raises:
        InputError: it is not there, cannot be read, is of another model, or does not fit; says which tensors.
    """
    if source == NO_WEIGHTS:
        return
    found = _read(Path(source), model, list(nets)) if p.is_main else {}
    names: list[str] = p.broadcast(list(found))
    for name, net in nets.items():
        if name not in names:
            log.info("--pretrained %s holds no %s, which begins anew", source, name)
            continue
        try:
            p.load_state_dict(net, found.get(name, {}))
        except ValueError as error:
            why = str(error)
            why = why if len(why) < _MOST else f"{why[:_MOST]}..."
            raise InputError(
                f"--pretrained {source}: does not fit this {type(net).__name__}; give the options it was trained with "
                f"({why})"
            ) from None


def pretrained_run(path: Path, model: str) -> Checkpoint:
    """The checkpoint of a run of this model.

    Raises:
        InputError: there is none, it is damaged, or of another model.
    """
    checkpoint = read_checkpoint(path)
    if checkpoint.entry.name != model:
        raise InputError(
            f"--pretrained {path}: a run of {checkpoint.entry.name}, not of {model} ({MANIFEST})"
        )
    return checkpoint


def _read(path: Path, model: str, names: list[str]) -> dict[str, dict[str, Tensor]]:
    """The weights of each net that the source has."""
    first, *others = names
    if not path.is_dir():
        return {first: read_weights(path)}
    checkpoint = pretrained_run(path, model)
    found = {name: checkpoint.weights_of(name) for name in others}
    return {first: checkpoint.weights()} | {name: state for name, state in found.items() if state is not None}
