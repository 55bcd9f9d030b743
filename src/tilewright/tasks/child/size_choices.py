"""Inside the child: which other sizes are tried, and which sets of axes are changed together."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

from tilewright.records import TensorInput

_ALL_SUBSETS_UP_TO = 7  # axes of one size; beyond, only likely sets are tried

Axis = tuple[int, int]  # which tensor, which of its axes


def others_of(size: int, multiple: int, avoid: set[int]) -> list[int]:
    """A smaller and a larger size that are this multiple of a prime."""
    count = size // multiple
    smaller = [multiple * p for p in (7, 5, 11, 3, 13, 2) if p < count and multiple * p not in avoid]
    larger = next(p for p in itertools.count(count + 1) if _is_prime(p) and multiple * p not in avoid)
    return [*smaller[:1], multiple * larger]


def neighbours(size: int, avoid: set[int]) -> list[int]:
    """The prime before and the prime after a size."""
    before = next((p for p in range(size - 1, 1, -1) if _is_prime(p) and p not in avoid), None)
    after = next(p for p in itertools.count(size + 1) if _is_prime(p) and p not in avoid)
    return [*([before] if before else []), after]


def primes_from(least: int) -> Iterator[int]:
    return (one for one in itertools.count(least) if _is_prime(one))


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, int(number**0.5) + 1))


def candidates(remaining: list[Axis], tensors: Sequence[TensorInput], whole: bool) -> Iterator[tuple[Axis, ...]]:
    """Sets of axes with the first of them, the smaller ones first.

    `whole`: some axes were set aside, so all that remain are a set too, and only likely others are tried.
    """
    first, others = remaining[0], remaining[1:]
    if others or whole:
        yield (first,)
    if len(remaining) <= _ALL_SUBSETS_UP_TO or whole:
        counts = {*range(1, len(others))} if not whole else {1, len(others)} - {0}
        for count in sorted(counts):
            for chosen in itertools.combinations(others, count):
                yield (first, *chosen)
        return
    for count in (1, 2):
        for chosen in itertools.combinations(others, count):
            yield (first, *chosen)
    from_end = _axes_like(remaining, lambda axis: axis[1] - len(tensors[axis[0]].dimensions))
    from_start = _axes_like(remaining, lambda axis: axis[1])
    yield from sorted({from_end, from_start}, key=len)


def _axes_like(axes: Iterable[Axis], position: Callable[[Axis], int]) -> tuple[Axis, ...]:
    listed = list(axes)
    return tuple(axis for axis in listed if position(axis) == position(listed[0]))
