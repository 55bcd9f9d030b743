"""Inside the child: which sizes of a function's tensors belong together, which may vary, and what it returns.

Nothing is concluded from the source: the function is called at other sizes, and what it accepts is believed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from tilewright.records import IndexValues, IntegerValues
from tilewright.reference.loading import describe, line_of_reference
from tilewright.reference.problems import ReferenceProblem
from tilewright.tasks.probing_records import (
    ProbeAnswer,
    ProbedDimension,
    ProbedOutput,
    ProbedTensor,
    ProbeRequest,
    ProbeTensor,
)
from tilewright.tasks.settling import indexed_labels, settle_values
from tilewright.tasks.trials import Outcome, Trials, single_thread

_SECONDS = 40.0  # after which what was not tried counts as fixed
_MULTIPLES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71)
_SMALL_ENOUGH = 16
_ALL_SUBSETS_UP_TO = 7  # axes of one size; beyond, only likely sets are tried

Axis = tuple[int, int]  # which tensor, which of its axes


def probe(function: Callable[..., Any], request: ProbeRequest) -> ProbeAnswer:
    """Everything about shapes that calling the function tells."""
    trials = Trials(function, request.tensors, request.numbers, _SECONDS)
    search = _Search(trials, request)
    nominal = search.nominal()
    with single_thread():
        search.shrink()
        if request.unlink:
            search.unlink()
        search.find_varying()
        outputs = search.fit_outputs(nominal)
    tensors = [replace(one, labels=search.labels_of(position)) for position, one in enumerate(request.tensors)]
    indexed = indexed_labels(function, tensors, request.numbers, search.small_sizes(), search.varying)
    for position, label in indexed.items():
        values = tensors[position].values
        assert isinstance(values, IntegerValues)
        if search.size_of(label) == values.high:
            tensors[position] = replace(tensors[position], values=IndexValues(label))
        else:
            search.hold(label, f"{tensors[position].name} holds numbers up to {values.high - 1} that index it")
    held, notes = settle_values(function, tensors, request.numbers, search.small_sizes(), search.varying)
    return ProbeAnswer(
        tuple(
            ProbedTensor(one.labels, values, one.name in nominal.changed)
            for one, values in zip(tensors, held, strict=True)
        ),
        search.dimensions(),
        outputs,
        (*search.notes, *notes),
    )


class _Search:
    """The state of a probe: a label for every axis, a size for every label, and every successful call so far."""

    def __init__(self, trials: Trials, request: ProbeRequest) -> None:
        self._trials = trials
        self._request = request
        self._label: dict[Axis, str] = {
            (position, axis): label
            for position, one in enumerate(request.tensors)
            for axis, label in enumerate(one.labels)
        }
        self._size = {one.label: one.size for one in request.dimensions}
        self._base = dict(self._size)  # sizes that work too, and are quicker to try things at
        self._tried = {one.label for one in request.dimensions if one.varies and one.size > 1}
        self._multiple = {one.label: one.multiple_of for one in request.dimensions}
        self.varying: dict[str, int] = {}  # label -> the multiple its sizes must be
        self._seen: list[tuple[dict[str, int], Outcome]] = []
        self.notes: list[str] = []

    def labels_of(self, position: int) -> tuple[str, ...]:
        return tuple(self._label[position, axis] for axis in range(len(self._request.tensors[position].labels)))

    def dimensions(self) -> tuple[ProbedDimension, ...]:
        used = dict.fromkeys(self._label.values())
        given = {one.label: one.multiple_of for one in self._request.dimensions}
        return tuple(
            ProbedDimension(label, size, label in self.varying, self.varying.get(label, given.get(label, 1)))
            for label, size in self._size.items()
            if label in used or label in given
        )

    # -- calls --

    def nominal(self) -> Outcome:
        """The call at the sizes given, which must succeed."""
        try:
            outcome = self._trials.run(self._shapes(self._size))
        except ReferenceProblem:
            raise
        except Exception as error:  # whatever the reference raises
            if line_of_reference(error) is None and not isinstance(error, TypeError):
                raise
            given = ", ".join(
                f"{one.name}={'x'.join(map(str, shape)) or 'scalar'}:{one.dtype}"
                for one, shape in zip(self._request.tensors, self._shapes(self._size).values(), strict=True)
            )
            raise ReferenceProblem(f"the reference fails at {given}: {describe(error)}") from error
        if not outcome.shapes and not outcome.changed:
            raise ReferenceProblem("the reference returns nothing and changes no tensor in place; return its result")
        self._seen.append((dict(self._size), outcome))
        return outcome

    def _shapes(self, sizes: dict[str, int], instead: dict[Axis, int] | None = None) -> dict[str, tuple[int, ...]]:
        instead = instead or {}
        return {
            one.name: tuple(
                instead.get((position, axis), sizes[self._label[position, axis]]) for axis in range(len(one.labels))
            )
            for position, one in enumerate(self._request.tensors)
        }

    def _works(self, sizes: dict[str, int]) -> bool:
        outcome = self._trials.attempt(self._shapes(sizes))
        if outcome is None or not _alike(outcome, self._seen[0][1]):
            return False
        self._seen.append((dict(sizes), outcome))
        return True

    def shrink(self) -> None:
        """Make the sizes that others are tried beside as small as they can be made one after the other."""
        for label, size in self._size.items():
            if label not in self._tried or size <= _SMALL_ENOUGH:
                continue
            taken = {*self._base.values()}
            for smaller in (*_PRIMES[5:14], 48, 80, 112, 24, 40, 72, 88, 192, 320):
                if smaller < size and smaller not in taken and self._works({**self._base, label: smaller}):
                    self._base[label] = smaller
                    break
                if smaller >= 24 and size % 8:
                    break

    # -- which axes belong together --

    def unlink(self) -> None:
        """Part the axes of one size into the smallest sets that can change without the others."""
        for label in list(self._tried):
            remaining = [axis for axis, own in self._label.items() if own == label]
            parts = 0
            while len(remaining) > 1:
                together = next(
                    (chosen for chosen in _candidates(remaining, self._request.tensors) if self._moves(chosen, label)),
                    None,
                )
                if together is None or len(together) == len(remaining):
                    break
                parts += 1
                fresh = f"{label}.{parts}"
                self._label.update(dict.fromkeys(together, fresh))
                self._size[fresh] = self._size[label]
                self._base[fresh] = self._base[label]
                self._multiple[fresh] = 1
                self._tried.add(fresh)
                remaining = [axis for axis in remaining if axis not in together]

    def _moves(self, axes: Sequence[Axis], label: str) -> bool:
        """Whether these axes can take other sizes while everything else keeps its own."""
        size = self._base[label]
        for multiple in (1, 16, 8, 2):
            if size % multiple:
                continue
            outcomes = [
                self._trials.attempt(self._shapes(self._base, dict.fromkeys(axes, other)))
                for other in _others(size, multiple, {*self._base.values()})
            ]
            if outcomes and all(one is not None and _alike(one, self._seen[0][1]) for one in outcomes):
                return True
        return False

    # -- which may vary --

    def find_varying(self) -> None:
        for label in self._size:
            if label in self._tried:
                multiple = self._multiple_that_works(label)
                if multiple is not None:
                    self.varying[label] = multiple
        if not self._works(self.small_sizes()):
            self._accumulate()

    def _multiple_that_works(self, label: str) -> int | None:
        size, least = self._size[label], self._multiple[label]
        for multiple in _MULTIPLES:
            if size % multiple or multiple % least or (multiple >= size and multiple > 1):
                continue
            others = _others(size, multiple, {*self._base.values()})
            if others and all(self._works({**self._base, label: other}) for other in others):
                return multiple
        return None

    def _accumulate(self) -> None:
        """Keep of the varying dimensions those that can vary together, first come first kept."""
        wanted, self.varying = self.varying, {}
        for label, multiple in wanted.items():
            self.varying[label] = multiple
            if not self._works(self.small_sizes()):
                del self.varying[label]

    def small_sizes(self) -> dict[str, int]:
        """Every varying dimension at a small size of its own, unlike any other size."""
        sizes = dict(self._size)
        taken = {size for label, size in sizes.items() if label not in self.varying}
        for label, multiple in self.varying.items():
            choices = [multiple * prime for prime in _PRIMES[2:]]
            sizes[label] = next((one for one in choices if one not in taken), choices[-1])
            taken.add(sizes[label])
        return sizes

    # -- what comes back --

    def fit_outputs(self, nominal: Outcome) -> tuple[ProbedOutput, ...]:
        """The outputs' sizes by name. A dimension that an output's size is computed from is held fixed instead."""
        while True:
            self._look_around()
            fitted: list[list[str | int | None]] = [
                [
                    self._fit([(sizes, outcome.shapes[index][axis]) for sizes, outcome in self._seen])
                    for axis in range(len(shape))
                ]
                for index, shape in enumerate(nominal.shapes)
            ]
            unfit = [(index, row.index(None)) for index, row in enumerate(fitted) if None in row]
            if not unfit:
                return tuple(
                    ProbedOutput(dtype, tuple(size for size in row if size is not None))
                    for dtype, row in zip(nominal.dtypes, fitted, strict=True)
                )
            self._hold_source(*unfit[0])

    def _look_around(self) -> None:
        """See the outputs at small sizes, and with one of these changed at a time; what is fixed has its own size."""
        small = self.small_sizes()
        self._seen = [self._seen[0]]
        self._works(small)
        for label, multiple in self.varying.items():
            for other in _others(small[label], multiple, {*small.values()}):
                self._works({**small, label: other})

    def _fit(self, seen: list[tuple[dict[str, int], int]]) -> str | int | None:
        if len({found for _, found in seen}) == 1:
            return seen[0][1]
        for label in self.varying:
            if all(sizes.get(label, self._size[label]) == found for sizes, found in seen):
                return label
        return None

    def _hold_source(self, index: int, axis: int) -> None:
        """Take a dimension that decides this size of an output out of those that vary."""
        sizes, outcome = self._seen[1] if len(self._seen) > 1 else self._seen[0]
        sources = [
            label
            for other, found in self._seen[2:]
            for label in self.varying
            if other[label] != sizes[label] and found.shapes[index][axis] != outcome.shapes[index][axis]
        ]
        # The smallest first: of an image and a filter, the filter.
        label = min(sources or self.varying, key=lambda label: self._size[label])
        self.hold(label, "the size of an output is computed from it")

    def hold(self, label: str, reason: str) -> None:
        """Take a dimension out of those that vary."""
        if self.varying.pop(label, None) is not None:
            self.notes.append(f"{{{label}}} is fixed because {reason}")

    def size_of(self, label: str) -> int:
        return self._size[label]


def _alike(one: Outcome, other: Outcome) -> bool:
    """Whether two calls returned the same number of tensors, of the same dtypes and ranks."""
    return (
        one.dtypes == other.dtypes
        and [len(shape) for shape in one.shapes] == [len(shape) for shape in other.shapes]
        and one.changed == other.changed
    )


def _others(size: int, multiple: int, avoid: set[int]) -> list[int]:
    """A smaller and a larger size that are this multiple of a prime."""
    count = size // multiple
    smaller = [multiple * p for p in (7, 5, 11, 3, 13, 2) if p < count and multiple * p not in avoid]
    larger = next((p for p in range(count + 1, 2 * count + 3) if _is_prime(p) and multiple * p not in avoid), None)
    return smaller[:1] + ([multiple * larger] if larger else [])


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, int(number**0.5) + 1))


def _candidates(remaining: list[Axis], tensors: Sequence[ProbeTensor]) -> Iterator[tuple[Axis, ...]]:
    """Sets of axes with the first of them, the smaller ones first."""
    first, others = remaining[0], remaining[1:]
    yield (first,)
    if len(remaining) <= _ALL_SUBSETS_UP_TO:
        for count in range(1, len(others)):
            for chosen in itertools.combinations(others, count):
                yield (first, *chosen)
        return
    for count in (1, 2):
        for chosen in itertools.combinations(others, count):
            yield (first, *chosen)
    from_end = _axes_like(remaining, lambda axis: axis[1] - len(tensors[axis[0]].labels))
    from_start = _axes_like(remaining, lambda axis: axis[1])
    yield from sorted({from_end, from_start}, key=len)


def _axes_like(axes: Iterable[Axis], position: Callable[[Axis], int]) -> tuple[Axis, ...]:
    listed = list(axes)
    return tuple(axis for axis in listed if position(axis) == position(listed[0]))
