"""Numbers of a range of blocks: a base and a multiple of the block's place in the range, for each thread.

Operations are exact for all blocks of the range, or say where it must be cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = Any  # of int64 or bool: one for each thread of the block, or one for all

FAR = float(1 << 62)


class Beyond(Exception):
    """What this cannot do; the interpreter does it."""


class Cut(Exception):
    """The range must be cut at a place."""

    def __init__(self, at: int) -> None:
        super().__init__(at)
        self.at = at


@dataclass(frozen=True)
class Linear:
    """`base + slope * k`, for the k-th block of a range."""

    base: Array
    slope: Array

    @property
    def fixed(self) -> bool:
        return not np.any(self.slope)


class Numbers:
    """Operations on numbers of a range of `count` blocks. `mask`: the threads for which they must hold."""

    count: int

    def fit(self, base: Array, slope: Array, width: int, mask: Array) -> Linear:
        """Within a signed width for all blocks; what leaves it wraps around, if it is the same for all."""
        last = self.count - 1
        if width == 64:
            far = np.abs(base.astype(np.float64)) + np.abs(np.asarray(slope, np.float64)) * self.count
            if np.any((far > FAR) & mask) and np.any(slope):
                raise Beyond if self.count == 1 else Cut(self.count // 2)
            return Linear(base, slope)
        low, high = -(1 << (width - 1)), 1 << (width - 1)
        end = base + slope * last
        out = ((base < low) | (base >= high) | (end < low) | (end >= high)) & mask
        if not out.any():
            return Linear(base, slope)
        if np.any(slope) and self.count > 1:
            raise Cut(self.count // 2)
        return Linear(((base + high) & ((1 << width) - 1)) - high, np.int64(0))

    def unsigned(self, one: Linear, width: int, mask: Array) -> Linear:
        """The same bits read as an unsigned number; of 64 bits only what is below 2**63."""
        end = one.base + one.slope * (self.count - 1)
        negative, later = (one.base < 0) & mask, (end < 0) & mask
        if not (negative.any() or later.any()):
            return one
        if width == 64:
            raise Beyond if self.count == 1 or one.fixed else Cut(self.count // 2)
        if np.any(negative != later):
            raise Cut(self.count // 2) if self.count > 1 else Beyond
        return Linear(np.where(one.base < 0, one.base + (1 << width), one.base), one.slope)

    def below(self, base: Array, slope: Array, mask: Array) -> Array:
        """Whether `base + slope * k` is negative, which must be the same for all k."""
        first = np.broadcast_to(base < 0, mask.shape)
        turns = (first != (base + slope * (self.count - 1) < 0)) & mask
        if turns.any():
            start, step = (np.broadcast_to(one, mask.shape)[turns] for one in (base, slope))
            rising = step > 0
            at = np.where(rising, -(start // np.where(rising, step, 1)), start // np.where(rising, 1, -step) + 1)
            raise Cut(int(at.min()))
        return first

    def divided(self, one: Linear, by: int, mask: Array) -> tuple[Linear, Linear]:
        """Quotient and remainder, rounded down."""
        quotient = one.base // by
        if one.fixed or not np.any(np.asarray(one.slope) % by):
            return Linear(quotient, one.slope // by), Linear(one.base - quotient * by, np.int64(0))
        rest = Linear(one.base - quotient * by, one.slope)
        self.below(rest.base, rest.slope, mask)
        self.below(rest.base - by, rest.slope, mask)
        return Linear(quotient, np.int64(0)), rest

    def product(self, a: Linear, b: Linear) -> tuple[Array, Array]:
        """Base and slope, where one of them is the same for all blocks and no part passes 64 bits."""
        if not a.fixed:
            a, b = b, a
        most = np.max(np.abs(np.asarray(a.base, np.float64)))
        reach = np.abs(np.asarray(b.base, np.float64)) + np.abs(np.asarray(b.slope, np.float64)) * self.count
        if most * np.max(reach) > FAR:
            raise Beyond
        return a.base * b.base, a.base * b.slope

    def joined(self, a: Linear, b: Linear, width: int, mask: Array) -> Linear:
        """Bits of two numbers; a sum where one has zeros wherever the other may have ones."""
        if a.fixed and b.fixed:
            return Linear(a.base | b.base, np.int64(0))
        if not b.fixed:
            a, b = b, a
        free = int(np.bitwise_or.reduce(np.ravel(a.base))) | int(np.bitwise_or.reduce(np.ravel(a.slope)))
        room = free & -free if free else 0
        fits = (b.base >= 0) & (b.base < room)
        if not b.fixed or not np.all(fits | ~mask):
            raise Beyond
        return self.fit(a.base + b.base, a.slope + b.slope, width, mask)

    def either(self, chosen: Array, a: Linear, b: Linear) -> Linear:
        if chosen.all() or not chosen.any():  # stays one number for all threads, as divisors must be
            return a if chosen.any() else b
        return Linear(np.where(chosen, a.base, b.base), np.where(chosen, a.slope, b.slope))
