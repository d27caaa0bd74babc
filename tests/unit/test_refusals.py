"""The table of refusals in the docs is the one that the code raises from."""

from __future__ import annotations

from pathlib import Path

from parallel.errors import ParallelError
from parallel.refusals import ALL, REFUSALS, table
from parallel.registry import entries, resolve

DOC = Path(__file__).resolve().parents[2] / "docs" / "refusals.md"


def test_the_docs_hold_the_table_that_the_code_makes() -> None:
    assert DOC.read_text(encoding="utf-8").endswith(table())


def test_every_refusal_names_strategies_that_exist() -> None:
    assert entries()
    for refusal in REFUSALS:
        for spec in () if refusal.strategies == ALL else refusal.strategies:
            assert resolve(spec)


def test_an_error_is_one_line_with_where_why_and_what_to_do() -> None:
    for refusal in REFUSALS:
        error = refusal.error("net.layer")
        assert isinstance(error, ParallelError)
        assert str(error).startswith("net.layer: ") and "\n" not in str(error)
        assert refusal.because in str(error) and str(error).endswith(refusal.instead)
