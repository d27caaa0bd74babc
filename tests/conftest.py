"""Fixtures for all tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).resolve().parent))

from pool import Pool

settings.register_profile("no deadline", deadline=None)  # no timed tests
settings.load_profile("no deadline")


@pytest.fixture(scope="session")
def reference() -> Path:
    """The folder of reference data: ``$ZOO_REFERENCE``, or ``../shared/reference`` beside the checkout."""
    beside = Path(__file__).resolve().parent.parent.parent / "shared" / "reference"
    folder = Path(os.environ.get("ZOO_REFERENCE", beside))
    if not folder.is_dir():
        pytest.skip(f"no reference data at {folder}; set ZOO_REFERENCE to its folder")
    return folder


@pytest.fixture(scope="session")
def ranks() -> Iterator[Pool]:
    """The pool of ranks: ``ranks.run(function, spec, n, *args, precision="fp64")`` gives every rank's value."""
    pool = Pool()
    yield pool
    pool.close()
