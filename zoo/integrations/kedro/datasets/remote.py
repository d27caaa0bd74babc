"""What the datasets share: a place on any file system that fsspec knows."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any, TypeVar

import fsspec  # type: ignore[import-untyped]
from kedro.io import AbstractVersionedDataset, Version
from kedro.io.core import get_filepath_str, get_protocol_and_path

In = TypeVar("In")
Out = TypeVar("Out")


class FilesystemDataset(AbstractVersionedDataset[In, Out]):
    """A versioned dataset at an fsspec path. Credentials go to the file system and are kept nowhere else.

    Args:
        filepath: a path, or a URL such as ``s3://bucket/model``.
        version: filled in by Kedro for ``versioned: true``.
        credentials: of the file system; in catalog.yml the name of an entry of credentials.yml.
        fs_args: further arguments of the file system.
        metadata: for other tools; ignored here.
    """

    def __init__(
        self,
        *,
        filepath: str,
        version: Version | None = None,
        credentials: dict[str, Any] | None = None,
        fs_args: dict[str, Any] | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        self._protocol, path = get_protocol_and_path(filepath, version)
        arguments = {"auto_mkdir": True} if self._protocol == "file" else {}
        self._fs = fsspec.filesystem(self._protocol, **arguments | (fs_args or {}) | (credentials or {}))
        self.metadata = metadata
        super().__init__(PurePosixPath(path), version, self._is_there, self._fs.glob)

    def _is_there(self, path: str) -> bool:
        """Whether something whole is at a path of the file system, without protocol."""
        return bool(self._fs.exists(path))

    def _load_from(self) -> str:
        return str(get_filepath_str(self._get_load_path(), self._protocol))

    def _save_to(self) -> str:
        return str(get_filepath_str(self._get_save_path(), self._protocol))

    def _exists(self) -> bool:
        return self._is_there(self._load_from())

    def _release(self) -> None:
        super()._release()
        self._fs.invalidate_cache(str(get_filepath_str(self._filepath, self._protocol)))

    def _describe(self) -> dict[str, Any]:
        return {"filepath": self._filepath, "protocol": self._protocol, "version": self._version}
