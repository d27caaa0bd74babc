"""What the other tests run their ranks with."""

from __future__ import annotations

import multiprocessing.connection

import pool
import pytest
from pool import Pool

from parallel import Parallel


def number(p: Parallel, value: int) -> int:
    return value


@pytest.mark.slow
def test_a_case_that_is_left_answers_none_but_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a test's time is up while its ranks work on."""
    own = Pool()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(pool, "wait", lambda *_: pytest.fail("time is up"))
            with pytest.raises(pytest.fail.Exception):
                own.run(number, "single", 1, 1)
        assert pool.wait is multiprocessing.connection.wait
        assert own.run(number, "single", 1, 2) == [2]
    finally:
        own.close()
