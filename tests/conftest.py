"""Fixtures for all tests."""

from __future__ import annotations

import logging
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


@pytest.fixture(autouse=True)
def _nobody_elses_log() -> None:
    """Kedro, once a test module has imported it, has the root logger write to stdout, where commands print results."""
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if type(handler).__module__.startswith("kedro")]:
        root.removeHandler(handler)


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
