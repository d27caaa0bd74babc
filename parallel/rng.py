"""Random draws that belong to a sample, not to a rank.

A draw is a pure function of (seed, name, step, global position of the row, element): whatever the layout, the
row gets the same numbers. Counter-based: the SplitMix64 finaliser (Steele, Lea, Flood, OOPSLA 2014) over a
64-bit counter, in int64 tensor operations, so that it runs on any device, costs what native draws cost, and
needs no
generator a row.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import torch
from torch import Tensor

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit integer
_MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX_2 = -7723592293110705685  # 0x94D049BB133111EB
_NEXT = 0xD1B54A32D192ED03  # of another irrational than the golden ratio, so that keys do not meet positions
_LOW_32 = 0xFFFFFFFF


def make_key(*parts: int | str) -> int:
    """A signed 64-bit key from anything that names a draw, the same on every machine and in every process."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def nth_key(key: int | Tensor, number: int) -> int | Tensor:
    """The key of the draw ``number`` (0, 1, ...) of those that share ``key``, which is the first one's."""
    if number == 0:
        return key
    moved = key + _signed(number * _NEXT)
    return moved if isinstance(moved, Tensor) else _signed(moved)


def _signed(number: int) -> int:
    return (number + 2**63) % 2**64 - 2**63


def _mix(z: Tensor) -> Tensor:
    # The masks turn int64's arithmetic shift into the logical one.
    z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * _MIX_1
    z = (z ^ ((z >> 27) & 0x1FFFFFFFFF)) * _MIX_2
    return z ^ ((z >> 31) & 0x1FFFFFFFF)


def bits(key: int | Tensor, position: Tensor, count: int) -> Tensor:
    """64 random bits for each row and element: int64 [rows, count].

    Args:
        key: from :func:`make_key`, as an int or a 0-d int64 tensor.
        position: int64 [rows], the rows' global positions.
        count: draws a row.
    """
    row = _mix(position * _GOLDEN + key).unsqueeze(-1)
    column = torch.arange(1, count + 1, device=position.device) * _GOLDEN
    return _mix(row + column)


def uniform(
    key: int | Tensor, position: Tensor, shape: Sequence[int], dtype: torch.dtype = torch.float32
) -> Tensor:
    """Uniform draws in (0, 1): [rows, *shape]."""
    count = math.prod(shape)
    draws = bits(key, position, count)
    if dtype == torch.float64:
        values = ((draws >> 11) & 0x1FFFFFFFFFFFFF).to(dtype).add_(0.5).mul_(2.0**-53)
    else:  # 24 bits, so that rounding never reaches 0 or 1
        values = ((draws >> 40) & 0xFFFFFF).to(torch.float32).add_(0.5).mul_(2.0**-24)
    return values.to(dtype).reshape(position.shape[0], *shape)


def normal(
    key: int | Tensor, position: Tensor, shape: Sequence[int], dtype: torch.dtype = torch.float32
) -> Tensor:
    """Standard normal draws [rows, *shape]: Box and Muller (1958), two from each 64 bits."""
    count = math.prod(shape)
    draws = bits(key, position, (count + 1) // 2)
    work = torch.float64 if dtype == torch.float64 else torch.float32
    first = ((draws >> 32) & _LOW_32).to(work).add_(0.5).mul_(2.0**-32)
    angle = (draws & _LOW_32).to(work).mul_(2.0 * math.pi * 2.0**-32)
    radius = first.log_().mul_(-2.0).clamp_(min=0.0).sqrt_()
    values = torch.cat((radius * angle.cos(), radius * angle.sin()), dim=-1)
    return values[:, :count].to(dtype).reshape(position.shape[0], *shape)


def integers(key: int | Tensor, position: Tensor, low: int, high: int, shape: Sequence[int]) -> Tensor:
    """Integers in [low, high), int64 [rows, *shape]; the bias is at most (high - low) / 2**32."""
    if not 0 < high - low <= 2**31:
        raise ValueError(f"integers in [{low}, {high}): the range must hold 1 to 2**31 values")
    draws = (bits(key, position, math.prod(shape)) >> 32) & _LOW_32
    return (((draws * (high - low)) >> 32) + low).reshape(position.shape[0], *shape)


def of_65536(probability: float) -> int:
    """A probability as :func:`keep_mask` takes it."""
    return min(round(probability * 65536), 65536)


def keep_mask(key: int | Tensor, position: Tensor, shape: Sequence[int], dropped: int | Tensor) -> Tensor:
    """Which elements dropout keeps: bool [rows, *shape].

    Four elements share 64 bits, 16 each, so a mask costs less than native dropout.

    Args:
        dropped: of 65,536 elements, on average; compiled code gives it and the key as 0-d int64 tensors, below 65,536.
    """
    rows, count = position.shape[0], math.prod(shape)
    if isinstance(dropped, Tensor):
        return _captured_lanes_kept(key, position, count, dropped).reshape(rows, *shape)
    if dropped >= 65536:  # beyond int16
        return torch.zeros(rows, *shape, dtype=torch.bool, device=position.device)
    return _lanes_kept(key, position, count, dropped - 32768).reshape(rows, *shape)


def _lanes_kept(key: int | Tensor, position: Tensor, count: int, least: int | Tensor) -> Tensor:
    return bits(key, position, (count + 3) // 4).view(torch.int16)[:, :count] >= least


# One operation to torch.compile: with its integers traced Inductor's runs drew other masks, or damaged the heap.
@torch.library.custom_op(
    "parallel::lanes_kept",
    mutates_args=(),
    schema="(Tensor key, Tensor position, SymInt count, Tensor dropped) -> Tensor",
)
def _captured_lanes_kept(key: Tensor, position: Tensor, count: int, dropped: Tensor) -> Tensor:
    return _lanes_kept(key, position, count, (dropped - 32768).to(torch.int16))


@_captured_lanes_kept.register_fake
def _(key: Tensor, position: Tensor, count: int, dropped: Tensor) -> Tensor:
    return position.new_empty((position.shape[0], count), dtype=torch.bool)


def shared_generator(*parts: int | str) -> torch.Generator:
    """A CPU generator for draws that a whole global batch shares: the same numbers on every rank."""
    return torch.Generator().manual_seed(make_key(*parts) & 0x7FFFFFFFFFFFFFFF)
