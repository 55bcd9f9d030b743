"""Runs in the child: finds which axes share a dimension, which dimensions are dynamic, and formulas between them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from tilewright.records import Dimension, DType, SizeFormula, SizeTerm, TensorInput
from tilewright.reference import ReferenceProblem
from tilewright.reference.loading import describe, line_of_reference
from tilewright.tasks.child.size_formulas import Relation, relations
from tilewright.tasks.child.trials import BranchEffect, Shapes, TrialOutcome, Trials
from tilewright.tasks.questions import ProbeRequest

Axis = tuple[int, int]  # position of a tensor, and one of its axes
_ALL_SUBSETS_UP_TO = 7  # axes of one size; of more, only likely sets are tried
_MULTIPLES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
_PRIMES = tuple(n for n in range(2, 2000) if all(n % divisor for divisor in range(2, math.isqrt(n) + 1)))
_LEAST = (13, 29, 61, 127, 251, 509, 1021)  # tried as the least size of a dimension
_SMALL_ENOUGH = 16
_ROOM = 60
_UNLINKING = 0.5  # part of the trials for separating axes of one size
_RELATING = 0.7  # and until which relations are looked for


class SizeSearch:
    """The state of a probe. Every axis has a label (a dimension), and every label a size."""

    def __init__(self, trials: Trials, request: ProbeRequest) -> None:
        self.trials = trials
        self._request = request
        self._label: dict[Axis, str] = {
            (position, axis): label
            for position, one in enumerate(request.tensors)
            for axis, label in enumerate(one.dimensions)
        }
        self._size = {one.name: one.size for one in request.dimensions}
        self._base = dict(self._size)  # small sizes that work, for quick trials
        self._tried = {one.name for one in request.dimensions if one.varies and one.size > 1}
        self._multiple = {one.name: one.multiple_of for one in request.dimensions}
        self._formula: Relation = {one.name: one.formula for one in request.dimensions if one.formula is not None}
        self._roomy = dict(self._size)  # larger ones: an image must stay larger than its filter
        self._tried -= {*self._formula}
        self._least: dict[str, int] = {}  # label -> lower limit for small sizes
        self.at_least = {one.name: one.at_least for one in request.dimensions}
        self.unless = {one.name: one.unless for one in request.dimensions if one.unless}
        self.at_most = {one.name: one.at_most for one in request.dimensions if one.at_most is not None}
        self.branching = {one.name for one in request.dimensions if one.branches}
        self._nominal: TrialOutcome | None = None
        self.varying: dict[str, int] = {}  # dynamic label without formula -> the multiple of its sizes
        self.notes: list[str] = []

    def labels_of(self, position: int) -> tuple[str, ...]:
        return tuple(self._label[position, axis] for axis in range(len(self._request.tensors[position].dimensions)))

    def dimensions(self) -> tuple[Dimension, ...]:
        used = {*self._label.values(), *(one.name for one in self._request.dimensions), *self._formula}
        given = {one.name: one.multiple_of for one in self._request.dimensions}
        return tuple(
            Dimension(
                label,
                size,
                label in self.changing,
                self.varying.get(label, given.get(label, 1)) if label not in self._formula else 1,
                self._formula.get(label),
                self.at_least.get(label, 1),
                self.at_most.get(label) if label in self.varying else None,
                label in self.branching,
                self.unless.get(label, ()),
            )
            for label, size in self._size.items()
            if label in used
        )

    @property
    def changing(self) -> dict[str, int]:
        """The dynamic labels, and those given by formulas over them."""
        following = (label for label, one in self._formula.items() if not self.varying.keys().isdisjoint(one.names))
        return {**self.varying, **dict.fromkeys(following, 1)}

    @property
    def own_sizes(self) -> dict[str, int]:
        return dict(self._size)

    def size_of(self, label: str) -> int:
        return self._size[label]

    def complete(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """The sizes with those given by formulas computed."""
        return {label: self._formula[label].at(sizes) if label in self._formula else sizes[label] for label in sizes}

    def is_sound(self, sizes: Mapping[str, int]) -> bool:
        return all(one.at(sizes) > 0 for one in self._formula.values())

    def sizes_of_axes(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """The size of every axis, named `x.shape[1]`."""
        return {
            f"{self._request.tensors[position].name}.shape[{axis}]": sizes[label]
            for (position, axis), label in self._label.items()
        }

    def free_labels(self, label: str) -> tuple[str, ...]:
        """The labels in a label's formula; itself without a formula."""
        return self._formula[label].names if label in self._formula else (label,)

    def label_of(self, axis: str) -> str | None:
        """The label of `x.shape[1]`; None if it is no axis of an input."""
        names = self.sizes_of_axes(dict.fromkeys(self._size, 0))
        return dict(zip(names, self._label.values(), strict=True)).get(axis)

    def follow(self, size: str | int | SizeFormula) -> str | int:
        """The label or number for the size of an output. Equal formulas share a label."""
        if not isinstance(size, SizeFormula):
            return size
        label = next((label for label, one in self._formula.items() if one == size), str(size))
        self._formula[label] = size
        self._size[label] = size.at(self._size)
        return label

    def fix(self, label: str, reason: str = "") -> None:
        """Make a dimension, or those in its formula, static."""
        for source in self.free_labels(label):
            if self.varying.pop(source, None) is not None and reason:
                self.notes.append(f"{{{source}}} is fixed because {reason}")
        self._reconcile()

    def use_described(self) -> None:
        """Use the dimensions as described, without calls."""
        self.varying = {label: self._multiple[label] for label in self._tried}

    # -- calls --

    def nominal(self) -> TrialOutcome:
        """The call at the given sizes, which must succeed."""
        try:
            outcome = self.trials.run(self.shapes(self._size))
        except ReferenceProblem:
            raise
        except Exception as error:  # whatever the reference raises
            if line_of_reference(error) is None and not isinstance(error, TypeError):
                raise
            given = ", ".join(
                f"{one.name}={'x'.join(map(str, shape)) or 'scalar'}:{one.dtype}"
                for one, shape in zip(self._request.tensors, self.shapes(self._size).values(), strict=True)
            )
            raise ReferenceProblem(f"the reference fails at {given}: {describe(error)}{self._cast_words()}") from error
        if not outcome.shapes and not outcome.changed:
            raise ReferenceProblem("the reference returns nothing and changes no tensor in place; return its result")
        self._nominal = outcome
        return outcome

    def _cast_words(self) -> str:
        """A hint for a module with f32 parameters and 16-bit inputs."""
        learned = {one.dtype for one in self._request.tensors if one.parameter}
        given = {one.dtype for one in self._request.tensors if not one.parameter}
        casts = {DType.BF16: "bfloat16", DType.F16: "half"}
        cast = next((casts[one] for one in casts if one in given), "")
        if learned != {DType.F32} or not cast:
            return ""
        return f"; its parameters are f32: write FILE.py:CLASS(ARGUMENTS).{cast}() for a module of the inputs' dtype"

    def shapes(self, sizes: Mapping[str, int], instead: dict[Axis, int] | None = None) -> dict[str, tuple[int, ...]]:
        instead = instead or {}
        return {
            one.name: tuple(
                instead.get((position, axis), sizes[self._label[position, axis]]) for axis in range(len(one.dimensions))
            )
            for position, one in enumerate(self._request.tensors)
        }

    def outcome(self, sizes: Mapping[str, int], instead: dict[Axis, int] | None = None) -> TrialOutcome | None:
        """The outcome of a call at other sizes; None if it fails or takes another branch than the nominal call."""
        shapes = self.shapes(sizes, instead)
        outcome = self.trials.attempt(shapes)
        if outcome is None or self._nominal is None or not _alike(outcome, self._nominal):
            return None
        return None if self._takes_other_branch(outcome, shapes) else outcome

    def takes_other_branch(self, sizes: Mapping[str, int]) -> bool:
        """Whether a call at these sizes succeeds but takes another branch, with another result."""
        shapes = self.shapes(self.complete(sizes))
        outcome = self.trials.attempt(shapes)
        return outcome is not None and self._takes_other_branch(outcome, shapes)

    def _takes_other_branch(self, outcome: TrialOutcome, shapes: Shapes) -> bool:
        if self._nominal is None or not outcome.asked.differs_from(self._nominal.asked):
            return False
        return self.trials.compare_branches(shapes, {}, self._nominal.asked.answers).found is not BranchEffect.SAME

    def holds(self) -> bool:
        """Whether all dynamic dimensions also work in a call with real data."""
        return not self.varying or self.trials.holds(self.shapes(self.small_sizes()))

    def _works(self, sizes: Mapping[str, int]) -> bool:
        return self.outcome(self.complete(sizes)) is not None

    def shrink(self) -> None:
        """Reduce the base sizes, one after the other."""
        for label, size in self._size.items():
            if label not in self._tried or size <= _SMALL_ENOUGH:
                continue
            taken = {*self._base.values()}
            for smaller in (*_PRIMES[5:14], 48, 80, 112, 24, 40, 72, 88, 192, 320):
                if smaller < size and smaller not in taken and self._works({**self._base, label: smaller}):
                    self._base = self.complete({**self._base, label: smaller})
                    break
                if smaller >= 24 and size % 8:
                    break
        roomy = {
            label: min((prime for prime in _PRIMES if 4 * size < prime < self._size[label]), default=self._size[label])
            for label, size in self._base.items()
        }
        self._roomy = self.complete(roomy) if self._works(roomy) else self._roomy

    @property
    def _labels(self) -> list[str]:
        """All labels, in the order of the axes."""
        return list(dict.fromkeys((*self._label.values(), *self._size)))

    # -- which axes share a dimension --

    def unlink(self) -> None:
        """Split the axes of one size into the smallest sets that can change independently, within the time limit."""
        for label in [one for one in self._labels if one in self._tried]:
            remaining = [axis for axis, own in self._label.items() if own == label]
            bound: list[Axis] = []  # axes without such a set
            parts = 0
            while remaining and len(remaining) + len(bound) > 1 and self.trials.spent < _UNLINKING:
                sets = candidates(remaining, self._request.tensors, whole=bool(bound))
                timely = itertools.takewhile(lambda _: self.trials.spent < _UNLINKING, sets)
                together = next((chosen for chosen in timely if self._can_change(chosen, label)), None)
                if together is None:
                    bound.append(remaining.pop(0))
                    continue
                if not bound and len(together) == len(remaining):
                    break
                parts += 1
                fresh = f"{label}.{parts}"
                self._label.update(dict.fromkeys(together, fresh))
                self._size[fresh] = self._size[label]
                self._base[fresh] = self._base[label]
                self._roomy[fresh] = self._roomy[label]
                self._multiple[fresh] = 1
                self._tried.add(fresh)
                remaining = [axis for axis in remaining if axis not in together]

    def _can_change(self, axes: Sequence[Axis], label: str) -> bool:
        """Whether these axes can change while all others keep their sizes."""
        size = self._base[label]
        for multiple in (1, 16, 8, 2):
            if size % multiple:
                continue
            others = others_of(size, multiple, {*self._base.values()})
            if others and all(self.outcome(self._base, dict.fromkeys(axes, other)) is not None for other in others):
                return True
        others = neighbours(self._roomy[label], {*self._roomy.values()})
        return all(self.outcome(self._roomy, dict.fromkeys(axes, other)) is not None for other in others)

    # -- which dimensions are dynamic --

    def find_varying(self) -> None:
        for label in self._labels:
            if label in self._tried:
                multiple = self._multiple_that_works(label, self._base, _MULTIPLES)
                if multiple != self._multiple[label] == 1 and self._moves_a_little(label):
                    multiple = 1
                if multiple is not None:
                    self.varying[label] = multiple
        self._relate()
        self._reconcile()
        if self.trials.spent > _RELATING:
            self.notes.append("more dimensions may be dynamic: not all were tried within the time limit")

    def _moves_a_little(self, label: str) -> bool:
        """Whether the sizes next to a label's own work; if so, its least size is determined too."""
        size = self._size[label]
        others = neighbours(size, {*self._roomy.values()})
        if not all(self._works({**self._roomy, label: other}) for other in others):
            return False
        smaller = (one for one in _LEAST if one < size and self._works({**self._roomy, label: one}))
        self._least[label] = next(smaller, others[0])
        return True

    def _reconcile(self) -> None:
        """Reduce the dynamic dimensions to a set that works together."""
        if not self._works(self.small_sizes()):
            # An image must stay larger than its filter.
            large = [label for label in self.varying if self._size[label] > _ROOM]
            self._least |= {label: max(_ROOM, self._least.get(label, 0)) for label in large}
            if not self._works(self.small_sizes()):
                self._accumulate()

    def _multiple_that_works(self, label: str, base: Mapping[str, int], multiples: Sequence[int]) -> int | None:
        size, least = self._size[label], self._multiple[label]
        for multiple in multiples:
            if size % multiple or multiple % least or (multiple >= size and multiple > 1):
                continue
            others = [{**base, label: other} for other in others_of(size, multiple, {*base.values()})]
            others = [sizes for sizes in others if self.is_sound(sizes)]
            working = [sizes for sizes in others if self._works(sizes)]
            if working and all(sizes in working or self.takes_other_branch(sizes) for sizes in others):
                if len(working) < len(others):
                    self._keep_above(label, working[0][label])
                return multiple
        return None

    def _keep_above(self, label: str, working: int) -> None:
        """Limit small sizes of a label to those that take the nominal branch."""
        smaller = (one for one in _LEAST if one < self._size[label] and self._works({**self._base, label: one}))
        self._least[label] = next(smaller, working)

    def _relate(self) -> None:
        """Find dimensions that can change only together, related by a formula."""
        while True:
            stuck = {
                label: self._size[label]
                for label in self._labels
                if label in self._tried and label not in self.changing
            }
            base = {**self._base, **stuck}
            for relation in relations(stuck):
                if self.trials.spent > _RELATING:
                    return
                found = self._related(relation, base)
                if found:
                    self.varying |= found
                    for label in relation:
                        self._link(label)
                    break
            else:
                return

    def _related(self, relation: Relation, base: Mapping[str, int]) -> dict[str, int] | None:
        """The multiples of the free dimensions of a relation, which is then recorded; None if it does not hold."""
        free = list(dict.fromkeys(name for formula in relation.values() for name in formula.names))
        self._formula |= relation
        # Doubled sizes satisfy every multiple, so one call rules out most relations.
        if all(self._works({**base, label: 2 * self._size[label]}) for label in free):
            steps = {label: math.lcm(*(_step(formula, label) for formula in relation.values())) for label in free}
            found = {
                label: self._multiple_that_works(
                    label, base, [multiple for multiple in _MULTIPLES if multiple % step == 0]
                )
                for label, step in steps.items()
            }
            known = {label: multiple for label, multiple in found.items() if multiple is not None}
            wider = {label: self._size[label] + multiple for label, multiple in known.items()}
            if len(known) == len(free) and self._works({**base, **wider}):
                return known
        for label in relation:
            del self._formula[label]
        return None

    def _accumulate(self) -> None:
        """Keep dynamic dimensions greedily, as long as they work together."""
        wanted, self.varying = self.varying, {}
        refused: list[str] = []
        for label, multiple in wanted.items():
            self.varying[label] = multiple
            if self._works(self.small_sizes()):
                continue
            del self.varying[label]
            twin = next((other for other in refused if self._size[other] == self._size[label]), None)
            if twin is not None and self._vary_as_one(label, twin, math.lcm(multiple, wanted[twin])):
                refused.remove(twin)
            else:
                refused.append(label)

    def _vary_as_one(self, label: str, twin: str, multiple: int) -> bool:
        """Whether two dimensions of one size work as one, such as the rows of keys and of values."""
        self._formula[label] = SizeFormula((SizeTerm(1, (twin,)),))
        self.varying[twin] = multiple
        works = self._works(self.small_sizes())
        if works:
            self._link(label)
        else:
            del self._formula[label], self.varying[twin]
        return works

    def _link(self, label: str) -> None:
        """Merge a label that equals another into it, unless the dimensions were named by a person."""
        (same, *others) = self._formula[label].names
        if others or self._formula[label] != SizeFormula((SizeTerm(1, (same,)),)) or not self._request.unlink:
            return
        self._label = {axis: same if own == label else own for axis, own in self._label.items()}
        for known in (self._formula, self._size, self._base, self._roomy):
            del known[label]

    def small_sizes(self) -> dict[str, int]:
        """Small sizes for the dynamic dimensions, all different, in the same order as their own sizes."""
        sizes = dict(self._size)
        taken = {size for label, size in sizes.items() if label not in self.changing}
        last = 3
        for label in sorted(self.varying, key=self.size_of):
            alone = [one for one in self._formula.values() if one.names == (label,)]
            multiple = self.varying[label]
            for prime in primes_from(max(last + 1, self._least.get(label, 0) // multiple)):
                sizes[label], last = multiple * prime, prime
                made = {sizes[label], *(one.at(sizes) for one in alone)}
                if made.isdisjoint(taken) and min(made) > 0 and sizes[label] >= self._least.get(label, 0):
                    break
            taken |= made
        return self.complete(sizes)


def _step(formula: SizeFormula, label: str) -> int:
    """The multiple of a size for which the formula's division is exact."""
    coefficient = next((one.coefficient for one in formula.terms if one.names == (label,)), 0)
    return formula.divisor // math.gcd(formula.divisor, coefficient)


def _alike(one: TrialOutcome, other: TrialOutcome) -> bool:
    """Whether two calls returned the same number of tensors, of the same dtypes and ranks."""
    return (
        one.dtypes == other.dtypes
        and [len(shape) for shape in one.shapes] == [len(shape) for shape in other.shapes]
        and one.changed == other.changed
    )


# -- sizes and sets of axes to try --


def others_of(size: int, multiple: int, avoid: set[int]) -> list[int]:
    """A smaller and a larger size, each `multiple` times a prime."""
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
    """Sets of axes that contain the first one, smaller sets first.

    `whole`: some axes were set aside, so the set of all the remaining is tried too, and otherwise only likely ones.
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
    positions: tuple[Callable[[Axis], int], ...] = (
        lambda axis: axis[1] - len(tensors[axis[0]].dimensions),
        lambda axis: axis[1],
    )
    yield from sorted({tuple(axis for axis in remaining if at(axis) == at(first)) for at in positions}, key=len)
