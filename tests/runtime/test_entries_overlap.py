"""Tensors that share memory, against the truth: the set of bytes each touches."""

from __future__ import annotations

import itertools
import random

import pytest

from tilewright.records import DType, TensorSpec
from tilewright.runtime.entries import extent_of, overlap


def touched(address: int, spec: TensorSpec) -> set[int]:
    starts = (
        address + 4 * sum(i * s for i, s in zip(index, spec.stride, strict=True))
        for index in itertools.product(*map(range, spec.shape))
    )
    return {start + byte for start in starts for byte in range(4)}


def spec(shape: tuple[int, ...], stride: tuple[int, ...]) -> TensorSpec:
    return TensorSpec(DType.F32, shape, stride)


@pytest.mark.parametrize(
    ("offset", "one", "other", "expected"),
    [
        (0, spec((4, 4), (4, 1)), spec((4, 4), (4, 1)), True),
        (64, spec((4, 4), (4, 1)), spec((4, 4), (4, 1)), False),
        (60, spec((4, 4), (4, 1)), spec((4, 4), (4, 1)), True),
        (16, spec((4, 4), (8, 1)), spec((4, 4), (8, 1)), False),  # the halves of a matrix
        (12, spec((4, 4), (8, 1)), spec((4, 4), (8, 1)), True),
        (4, spec((8,), (2,)), spec((8,), (2,)), False),  # even and odd elements
        (16, spec((3, 2, 4), (24, 12, 1)), spec((3, 2, 4), (24, 12, 1)), False),  # q and k of packed heads
        (0, spec((0, 4), (4, 1)), spec((4, 4), (4, 1)), False),
        (4, spec((), ()), spec((), ()), False),
        (0, spec((), ()), spec((1,), (7,)), True),
    ],
)
def test_known_cases(offset: int, one: TensorSpec, other: TensorSpec, expected: bool) -> None:
    a, b = extent_of(4096, one), extent_of(4096 + offset, other)
    assert overlap(a, b) is expected
    assert overlap(b, a) is expected
    assert bool(touched(4096, one) & touched(4096 + offset, other)) is expected


def test_no_overlap_is_ever_missed() -> None:
    generator = random.Random(7)
    apart = 0
    for _ in range(3000):
        specs = []
        for _ in range(2):
            rank = generator.randint(0, 3)
            shape = tuple(generator.randint(1, 4) for _ in range(rank))
            specs.append(spec(shape, tuple(generator.choice((0, 1, 2, 3, 4, 6, 8, 12)) for _ in range(rank))))
        address = 4096 + 4 * generator.randint(-40, 40)
        said = overlap(extent_of(4096, specs[0]), extent_of(address, specs[1]))
        shared = bool(touched(4096, specs[0]) & touched(address, specs[1]))
        assert said or not shared, (specs, address)
        apart += not said
    assert apart > 500
