"""Fixtures of the resume tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pool import Pool


@pytest.fixture(scope="session")
def fresh() -> Iterator[Pool]:
    """Processes other than those of ``ranks``: runs go on in them."""
    pool = Pool()
    yield pool
    pool.close()
