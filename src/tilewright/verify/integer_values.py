"""Flags and whole numbers as far as a type goes, or as far as the reference was seen to take them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from numpy.random import Generator

from tilewright.records import DType, Integers, TensorSpec

Whole = npt.NDArray[np.int64]
Known = tuple[float, ...]  # what the reference compares with


def flags(generator: Generator, shape: tuple[int, ...]) -> Whole:
    """Rows with few flags, none, long runs, all, and many; of one dimension, pieces of it."""

    def row(number: int, width: int) -> Whole:
        if number % 5 == 2:
            length = max(width // 3, 1)
            runs: Whole = 1 - np.arange(width) // length % 2
            return runs
        share = (0.01, 0.0, 0.5, 1.0, 0.97)[number % 5]
        drawn: Whole = (generator.random(width) < share).astype(np.int64)
        if number % 5 == 0 and width:
            drawn[width // 2] = 1
        return drawn

    if len(shape) < 2:
        count = int(np.prod(shape, dtype=np.int64))
        return np.concatenate([row(number, len(one)) for number, one in enumerate(np.array_split(range(count), 5))])
    rows = int(np.prod(shape[:-1], dtype=np.int64))
    return np.concatenate([row(number, shape[-1]) for number in range(rows)])


Level = Callable[[Generator, TensorSpec, Integers, Known], Whole]


def _limits(dtype: DType) -> tuple[int, int]:
    bits = 8 * dtype.itemsize
    return (0, 2**bits - 1) if dtype is DType.U8 else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _placed(generator: Generator, values: Whole, edges: list[int]) -> Whole:
    """The values with each of the edges somewhere among them, as far as there is room."""
    places = generator.permutation(values.size)[: len(edges)]
    values[places] = np.array(edges[: places.size], dtype=np.int64)
    return values


def _full(generator: Generator, spec: TensorSpec, content: Integers, known: Known) -> Whole:
    """All that the type holds: everywhere, around 0, at its ends and at what the reference compares with."""
    low, high = _limits(spec.dtype)
    values = generator.integers(low, high, spec.numel, dtype=np.int64, endpoint=True)
    near = generator.integers(max(low, -100), min(high, 100), spec.numel, dtype=np.int64, endpoint=True)
    values = np.where(generator.random(spec.numel) < 0.4, near, values)
    edges = [low, high, 0, 1, *((-1,) if low < 0 else ())]
    edges += [int(one) for one in known if float(one).is_integer() and low <= one <= high and abs(one) < 2**62]
    return _placed(generator, values, list(dict.fromkeys(edges)))


def _large(generator: Generator, spec: TensorSpec, content: Integers, known: Known) -> Whole:
    """Both signs, but not the few numbers that are no divisors, or next to them."""
    low, high = _limits(spec.dtype)
    sizes = generator.integers(3, high // 2, spec.numel, dtype=np.int64)
    near = generator.integers(3, min(high, 100), spec.numel, dtype=np.int64)
    sizes = np.where(generator.random(spec.numel) < 0.5, near, sizes)
    signs: Whole = generator.choice((-1, 1), spec.numel)
    both: Whole = sizes * signs if low < 0 else sizes
    return both


def _signed(generator: Generator, spec: TensorSpec, content: Integers, known: Known) -> Whole:
    """As far below 0 as the task goes above: indices that count from the end."""
    values = generator.integers(-content.high, content.high, spec.numel, dtype=np.int64)
    return _placed(generator, values, [-content.high, -1, 0, content.high - 1])


def _own(generator: Generator, spec: TensorSpec, content: Integers, known: Known) -> Whole:
    """The task's own domain with its ends, one number many times over, and rising numbers."""
    values = generator.integers(content.low, content.high, spec.numel, dtype=np.int64)
    third = spec.numel // 3
    values[:third] = content.high - 1
    values[third : 2 * third] = np.sort(values[third : 2 * third])
    return _placed(generator, values, [content.low, content.high - 1])


def _least(generator: Generator, spec: TensorSpec, content: Integers, known: Known) -> Whole:
    """Nothing but the number furthest from 0, whose products add up to the most."""
    low, high = _limits(spec.dtype)
    return np.full(spec.numel, low or high, dtype=np.int64)


def _next_to_least(generator: Generator, spec: TensorSpec, content: Integers, known: Known) -> Whole:
    """Nothing but its neighbour, which is odd where that is even: sums that floats cannot hold."""
    low, high = _limits(spec.dtype)
    return np.full(spec.numel, low + 1 if low else high, dtype=np.int64)


def _alike(generator: Generator, spec: TensorSpec, content: Integers, known: Known) -> Whole:
    """The task's own domain, nearly everywhere the same number of it."""
    values = generator.integers(content.low, content.high, spec.numel, dtype=np.int64)
    values[generator.random(spec.numel) < 0.9] = content.high - 1
    return values


LEAST, NEXT_TO_LEAST, ALIKE = "least", "next to least", "alike"

# From the most to the least that is asked of the reference.
WHOLE_LEVELS: dict[str, Level] = {
    "full": _full,
    "large": _large,
    "signed": _signed,
    "own": _own,
    LEAST: _least,
    NEXT_TO_LEAST: _next_to_least,
    ALIKE: _alike,
}
