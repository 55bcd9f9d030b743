"""Boolean and integer inputs: the task's range, and wider ones that the reference was found to accept."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numpy.random import Generator

from tilewright.records import DType, Integers, TensorSpec
from tilewright.verify.float_values import by_rows

Whole = npt.NDArray[np.int64]


def flags(generator: Generator, shape: tuple[int, ...]) -> Whole:
    """Rows with few flags, none, long runs, all, and many."""

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

    return by_rows(shape, 5, row)


LEAST, NEXT_TO_LEAST, ALIKE, IGNORED = "least", "next to least", "alike", "ignored"
_IGNORED_INDEX = -100  # what PyTorch's losses leave out


def integers(generator: Generator, spec: TensorSpec, level: str, content: Integers, known: tuple[float, ...]) -> Whole:
    """Integers of one level. `content` is the task's range, `known` what the reference compares with.

    - "full": the type's whole range, numbers around 0, its ends and what the reference compares with;
    - "large": both signs, without the few numbers that are invalid as divisors;
    - "signed": as far below 0 as the task goes above, for indices that count from the end;
    - "own": the task's range with its ends, one number many times, and rising numbers;
    - `IGNORED`: the same, with the index among them that losses leave out;
    - `LEAST`: only the number furthest from 0, for the largest sums of products;
    - `NEXT_TO_LEAST`: only its odd neighbour, for sums that floats cannot represent;
    - `ALIKE`: the task's range, nearly all of them equal.
    """
    bits, count = 8 * spec.dtype.itemsize, spec.numel
    low, high = (0, 2**bits - 1) if spec.dtype is DType.U8 else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    if level == LEAST:
        return np.full(count, low or high, dtype=np.int64)
    if level == NEXT_TO_LEAST:
        return np.full(count, low + 1 if low else high, dtype=np.int64)
    if level == "full":
        values = generator.integers(low, high, count, dtype=np.int64, endpoint=True)
        near = generator.integers(max(low, -100), min(high, 100), count, dtype=np.int64, endpoint=True)
        values = np.where(generator.random(count) < 0.4, near, values)
        edges = [low, high, 0, 1, *((-1,) if low < 0 else ())]
        edges += [int(one) for one in known if float(one).is_integer() and low <= one <= high and abs(one) < 2**62]
        return _placed(generator, values, list(dict.fromkeys(edges)))
    if level == "large":
        sizes = generator.integers(3, high // 2, count, dtype=np.int64)
        near = generator.integers(3, min(high, 100), count, dtype=np.int64)
        sizes = np.where(generator.random(count) < 0.5, near, sizes)
        signs: Whole = generator.choice((-1, 1), count)
        return sizes * signs if low < 0 else sizes
    if level == "signed":
        values = generator.integers(-content.high, content.high, count, dtype=np.int64)
        return _placed(generator, values, [-content.high, -1, 0, content.high - 1])
    values = generator.integers(content.low, content.high, count, dtype=np.int64)
    if level == ALIKE:
        values[generator.random(count) < 0.9] = content.high - 1
        return values
    third = count // 3
    values[:third] = content.high - 1
    values[third : 2 * third] = np.sort(values[third : 2 * third])
    if level == IGNORED:
        values[generator.random(count) < 0.125] = _IGNORED_INDEX
    return _placed(generator, values, [content.low, content.high - 1])


def _placed(generator: Generator, values: Whole, edges: list[int]) -> Whole:
    places = generator.permutation(values.size)[: len(edges)]
    values[places] = np.array(edges[: places.size], dtype=np.int64)
    return values
