"""Checkpoints changed by hand, with checksums as if they had been written so."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from parallel.checkpoint import read_manifest
from parallel.checkpoint.disk import checksum
from parallel.checkpoint.manifest import _digest, write_manifest


def sign(folder: Path, **fields: Any) -> None:
    """Writes the manifest anew, for the files that there are."""
    files = {str(file.relative_to(folder)): checksum(file) for file in sorted(folder.glob("*/*.safetensors"))}
    write_manifest(folder, replace(read_manifest(folder), files=files, **fields))


def of_the_future(folder: Path) -> None:
    """Makes the manifest one of a later release."""
    file = folder / "manifest.json"
    body = json.loads(file.read_text())
    del body["checksum"]
    body |= {"version": 7, "something": "new"}
    file.write_text(json.dumps({"checksum": _digest(body), **body}))
