"""What tests of failures share."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import pytest


@pytest.fixture
def temporary(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A place for temporary files, in which nothing is left, whoever was killed; pytest's own are elsewhere."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", None)
        yield
        # torch's cache of compiled code is to stay.
        assert not [name for name in os.listdir(folder) if not name.startswith("torchinductor_")]
