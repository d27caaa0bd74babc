"""Tensors by name, as a safetensors file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from zoo.integrations.kedro.datasets.remote import FilesystemDataset
from zoo_datasets.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor


class SafetensorsDataset(FilesystemDataset["Mapping[str, Any]", "dict[str, Tensor]"]):
    """Saves tensors or NumPy arrays by name, such as a module's ``state_dict()``; loads tensors on the CPU.

    ::

        embeddings:
          type: zoo.integrations.kedro.datasets.SafetensorsDataset
          filepath: data/04_feature/embeddings.safetensors
          versioned: true
    """

    def save(self, data: Mapping[str, Any]) -> None:
        import torch
        from safetensors.torch import save

        if not isinstance(data, Mapping):
            raise InputError(f"takes tensors by name, not {type(data).__name__}")
        tensors = {}
        for name, value in data.items():
            try:
                tensors[name] = torch.as_tensor(value).detach().cpu().contiguous()
            except (TypeError, ValueError, RuntimeError) as error:
                raise InputError(f"{name!r} is no tensor: {error}") from None
        with self._fs.open(self._save_to(), "wb") as file:
            file.write(save(tensors))

    def load(self) -> dict[str, Tensor]:
        from safetensors import SafetensorError
        from safetensors.torch import load

        path = self._load_from()
        with self._fs.open(path, "rb") as file:
            content = file.read()
        try:
            return dict(load(content))
        except SafetensorError as error:
            raise InputError(f"{path}: no safetensors file, or damaged: {error}") from None
