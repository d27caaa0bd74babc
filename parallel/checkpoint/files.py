"""safetensors files, written tensor by tensor with their checksum.

Format: https://github.com/huggingface/safetensors#format (8 bytes of header length, a JSON header, the tensors' bytes).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch import Tensor

from parallel.checkpoint.disk import BLOCK, FileSum, named

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}


@dataclass(frozen=True)
class TensorInfo:
    """A whole tensor in a file."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return self.dtype.itemsize * torch.Size(self.shape).numel()


def in_file_order(tensors: Iterable[TensorInfo]) -> list[TensorInfo]:
    """Wide types first, so that every tensor lies at a multiple of its width; then by name."""
    return sorted(tensors, key=lambda info: (-info.dtype.itemsize, info.name))


class TensorFile:
    """A safetensors file in the making, for tensors that come one by one in the order announced."""

    def __init__(self, path: Path, tensors: Iterable[TensorInfo], metadata: Mapping[str, str]) -> None:
        header: dict[str, Any] = {"__metadata__": dict(metadata)}
        position = 0
        for info in tensors:
            end = position + info.bytes
            header[info.name] = {
                "dtype": DTYPES[info.dtype],
                "shape": list(info.shape),
                "data_offsets": [position, end],
            }
            position = end
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        self._path = path
        self._hash = xxhash.xxh3_128()
        self._bytes = 0
        self._file = path.open("xb", buffering=0)
        try:
            self._write(memoryview(len(text).to_bytes(8, "little") + text))
        except OSError:
            self._file.close()
            raise

    def add(self, tensor: Tensor) -> None:
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        if flat.numel():
            self._write(memoryview(flat.view(torch.uint8).numpy()))  # type: ignore[arg-type]

    def close(self) -> FileSum:
        """Returns once the bytes are on the disk."""
        with named(self._path), self._file:
            os.fsync(self._file.fileno())
        return FileSum(self._bytes, self._hash.hexdigest())

    def abandon(self) -> None:
        self._file.close()

    def _write(self, data: memoryview) -> None:
        for start in range(0, len(data), BLOCK):
            block = data[start : start + BLOCK]
            self._hash.update(block)
            self._bytes += len(block)
            with named(self._path):
                while block:  # a raw write may take less than all
                    block = block[self._file.write(block) :]
