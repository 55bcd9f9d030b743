"""Numbers at the ends of a domain, and beyond them: what a formula that is right inside gets wrong there.

Where normal numbers make the reference fail, a task holds what stands for the numbers between 0 and 1. Probabilities
and targets are exactly 0 and 1 as often as not, whole rows of them, and `t * (log t - a)` is NaN there.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilewright.records import BETWEEN_0_AND_1, DType, TensorInput, TensorSpec
from tilewright.verify.float_values import Floats

EDGES, OUTSIDE = "edges", "outside"
BOTH, LOWER, UPPER = "0 and 1", "0", "1"  # ends that the reference takes, in a kind of values that says so of a tensor
ANYWHERE = "below 0 or above 1"

_SHARE = 0.25  # of the elements of an ordinary row that are at the ends, or beyond them
_BEYOND = (-0.5, -2.0, -1e-3, 1.5, -30.0, 4.0)
# Distances from an end that a type still tells apart from it, of few bits, so that no rounding reaches the end itself.
_NEAR_0 = {DType.F16: (2.0**-7, 2.0**-12), DType.F8E4M3: (2.0**-5,), DType.F8E5M2: (2.0**-5, 2.0**-12)}
_NEAR_0_OTHERWISE = (2.0**-7, 2.0**-24, 2.0**-60)
_NEAR_1 = {
    DType.F32: (2.0**-8, 2.0**-20),
    DType.F64: (2.0**-8, 2.0**-20),
    DType.F16: (2.0**-8,),
    DType.BF16: (2.0**-7,),
}

_Generator = np.random.Generator
_Row = Callable[[_Generator, int, "_Ends"], Floats]


class _Ends:
    """The ends of a domain that count, and numbers beside them; an ordinary number takes the place of one that does
    not."""

    def __init__(self, level: str, dtype: DType) -> None:
        self.low = 0.0 if level in (BOTH, LOWER) else 0.25
        self.high = 1.0 if level in (BOTH, UPPER) else 0.75
        near = _NEAR_0.get(dtype, _NEAR_0_OTHERWISE) if level in (BOTH, LOWER) else ()
        below = _NEAR_1.get(dtype, ()) if level in (BOTH, UPPER) else ()
        self.beside = (*near, *(1.0 - one for one in below))


def bounded(one: TensorInput) -> bool:
    """Whether a tensor holds what stands for the numbers between 0 and 1."""
    return one.values == BETWEEN_0_AND_1 and one.dtype.is_float and not one.optional


def edge_values(generator: _Generator, spec: TensorSpec, level: str, number: int) -> Floats:
    """Rows with a 1 among zeros, some numbers at the ends, zeros, numbers beside the ends, ones, and both ends in turn.
    Of one dimension, pieces of it. `number` is the tensor's, so that rows of two tensors meet in other pairs."""
    ends = _Ends(level, spec.dtype)
    return _by_rows(spec, lambda row, width: _ROWS[(row + 2 * number) % len(_ROWS)](generator, width, ends))


def values_outside(generator: _Generator, spec: TensorSpec) -> Floats:
    """Some elements of every row below 0 or above 1."""
    values = _ordinary(generator, spec.numel)
    return np.where(generator.random(spec.numel) < _SHARE, generator.choice(_BEYOND, spec.numel), values)


def _by_rows(spec: TensorSpec, row: Callable[[int, int], Floats]) -> Floats:
    if len(spec.shape) < 2:
        pieces = np.array_split(np.arange(spec.numel), len(_ROWS))
        return np.concatenate([row(number, len(piece)) for number, piece in enumerate(pieces)])
    width = spec.shape[-1]
    return np.concatenate([row(number, width) for number in range(spec.numel // max(width, 1))])


def _ordinary(generator: _Generator, width: int) -> Floats:
    low, high = BETWEEN_0_AND_1.low, BETWEEN_0_AND_1.high
    return generator.uniform(low, high, width)


def _one_among_zeros(generator: _Generator, width: int, ends: _Ends) -> Floats:
    values = np.full(width, ends.low)
    if width:
        values[generator.integers(0, width)] = ends.high
    return values


def _some(generator: _Generator, width: int, ends: _Ends) -> Floats:
    at = generator.choice((ends.low, ends.high), width)
    return np.where(generator.random(width) < _SHARE, at, _ordinary(generator, width))


def _beside(generator: _Generator, width: int, ends: _Ends) -> Floats:
    """Half of them ordinary: what is tiny is judged beside what is not."""
    near = generator.choice(ends.beside or (0.5,), width)
    return np.where(generator.random(width) < 0.5, near, _ordinary(generator, width))


_ROWS: tuple[_Row, ...] = (
    _one_among_zeros,
    _some,
    lambda generator, width, ends: np.full(width, ends.low),
    _beside,
    lambda generator, width, ends: np.full(width, ends.high),
    lambda generator, width, ends: generator.choice((ends.low, ends.high), width),
)
