"""What makes a value unusable, said alike by every reader."""

from __future__ import annotations

import math

import numpy as np

from zoo_datasets.errors import shown

__all__ = ["all_finite", "fault_of_value", "to_float32"]

# Half a unit in the last place above the largest float32: a tie, which rounds to the even neighbour.
_ROUNDS_TO_INFINITY = (2 - 2.0**-24) * 2.0**127


def to_float32(values: np.ndarray) -> np.ndarray:
    """Round to 32 bits; what is beyond their range becomes infinite, without a warning."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


def all_finite(values: np.ndarray) -> bool:
    """Whether no value is NaN or infinite."""
    return bool(np.isfinite(values).all())


def fault_of_value(value: float | None, text: object) -> str | None:
    """Say what is wrong with a value, or None where nothing is.

    Args:
        value: the number, in 64 bits; None where ``text`` is not one.
        text: what the file holds.
    """
    if value is None:
        return f"{shown(text)} is not a number"
    if math.isnan(value):
        return "NaN; fill in or remove missing values first"
    if math.isinf(value):
        return f"{shown(text)} is not finite"
    if abs(value) >= _ROUNDS_TO_INFINITY:
        return f"{shown(text)} is beyond the range of 32-bit numbers"
    return None
