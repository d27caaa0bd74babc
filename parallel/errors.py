"""Errors that a user can cause: one line each, raised before anything is trained or written."""

from __future__ import annotations


class ParallelError(ValueError):
    """Something asked of a strategy that it cannot do, or that would give other numbers; says what to do."""


class RankError(RuntimeError):
    """A rank died without leaving an exception behind (killed, aborted, stuck)."""


class NonFiniteError(ArithmeticError):
    """A gradient turned NaN or infinite; names the step, the model and its first such parameter."""
