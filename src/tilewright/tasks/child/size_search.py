"""Inside the child: which axes share a size, which sizes may vary, and which follow from others."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from tilewright.records import Dimension, DType, SizeFormula, SizeTerm
from tilewright.reference import ReferenceProblem
from tilewright.reference.loading import describe, line_of_reference
from tilewright.tasks.child.size_choices import Axis, candidates, neighbours, others_of, primes_from
from tilewright.tasks.child.size_formulas import Relation, relations
from tilewright.tasks.child.trials import Elsewhere, Shapes, TrialOutcome, Trials
from tilewright.tasks.questions import ProbeRequest

_MULTIPLES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
_PRIMES = tuple(n for n in range(2, 2000) if all(n % divisor for divisor in range(2, math.isqrt(n) + 1)))
_LEAST = (13, 29, 61, 127, 251, 509, 1021)  # sizes tried where small ones are refused
_SMALL_ENOUGH = 16
_ROOM = 60
_UNLINKING = 0.5  # of the trials, after which axes of one size stay together
_RELATING = 0.7  # and after which no more relations are looked for


class SizeSearch:
    """The state of a probe: a label for every axis, a size for every label, and what was found of them so far."""

    def __init__(self, trials: Trials, request: ProbeRequest) -> None:
        self.trials = trials
        self._request = request
        self._label: dict[Axis, str] = {
            (position, axis): label
            for position, one in enumerate(request.tensors)
            for axis, label in enumerate(one.dimensions)
        }
        self._size = {one.name: one.size for one in request.dimensions}
        self._base = dict(self._size)  # sizes that work too, and are quicker to try things at
        self._tried = {one.name for one in request.dimensions if one.varies and one.size > 1}
        self._multiple = {one.name: one.multiple_of for one in request.dimensions}
        self._formula: Relation = {one.name: one.formula for one in request.dimensions if one.formula is not None}
        self._roomy = dict(self._size)  # sizes beside which a filter does not become larger than its image
        self._tried -= {*self._formula}
        self._least: dict[str, int] = {}  # of labels that cannot be as small as others
        self.at_least = {one.name: one.at_least for one in request.dimensions}  # believed where it is above 1
        self.unless = {one.name: one.unless for one in request.dimensions if one.unless}
        self.at_most = {one.name: one.at_most for one in request.dimensions if one.at_most is not None}
        self.branching = {one.name for one in request.dimensions if one.branches}
        self._nominal: TrialOutcome | None = None
        self.varying: dict[str, int] = {}  # label -> the multiple its sizes must be; none of those that follow
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
                label in self.moving,
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
    def moving(self) -> dict[str, int]:
        """The labels that vary, and those that follow from one that does."""
        following = (label for label, one in self._formula.items() if not self.varying.keys().isdisjoint(one.names))
        return {**self.varying, **dict.fromkeys(following, 1)}

    @property
    def own_sizes(self) -> dict[str, int]:
        return dict(self._size)

    def size_of(self, label: str) -> int:
        return self._size[label]

    def complete(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """The sizes with those that follow from others made to follow."""
        return {label: self._formula[label].at(sizes) if label in self._formula else sizes[label] for label in sizes}

    def is_sound(self, sizes: Mapping[str, int]) -> bool:
        return all(one.at(sizes) > 0 for one in self._formula.values())

    def sizes_of_axes(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """The size of every axis as the reference calls it: `x.shape[1]`."""
        return {
            f"{self._request.tensors[position].name}.shape[{axis}]": sizes[label]
            for (position, axis), label in self._label.items()
        }

    def free_labels(self, label: str) -> tuple[str, ...]:
        """What a label follows from; itself, if it follows from nothing."""
        return self._formula[label].names if label in self._formula else (label,)

    def label_of(self, axis: str) -> str | None:
        """The label of `x.shape[1]`; None where that is no axis of an input."""
        names = self.sizes_of_axes(dict.fromkeys(self._size, 0))
        return dict(zip(names, self._label.values(), strict=True)).get(axis)

    def follow(self, size: str | int | SizeFormula) -> str | int:
        """A label for the size of an output; the same formula has the same label."""
        if not isinstance(size, SizeFormula):
            return size
        label = next((label for label, one in self._formula.items() if one == size), str(size))
        self._formula[label] = size
        self._size[label] = size.at(self._size)
        return label

    def hold(self, label: str, reason: str = "") -> None:
        """Take a dimension, or those it follows from, out of those that vary."""
        for source in self.free_labels(label):
            if self.varying.pop(source, None) is not None and reason:
                self.notes.append(f"{{{source}}} is fixed because {reason}")
        self._reconcile()

    def believe(self) -> None:
        """Take the dimensions as they were described, without a call."""
        self.varying = {label: self._multiple[label] for label in self._tried}

    # -- calls --

    def nominal(self) -> TrialOutcome:
        """The call at the sizes given, which must succeed."""
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
        """What to write where a module has f32 parameters, as they are initialised, and is given 16-bit inputs."""
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
        """What a call at other sizes returns; None where it fails, or does something else than the first call."""
        shapes = self.shapes(sizes, instead)
        outcome = self.trials.attempt(shapes)
        if outcome is None or self._nominal is None or not _alike(outcome, self._nominal):
            return None
        return None if self._strays(outcome, shapes) else outcome

    def strays(self, sizes: Mapping[str, int]) -> bool:
        """Whether a call at these sizes succeeds, but goes another way than the first call, to another result."""
        shapes = self.shapes(self.complete(sizes))
        outcome = self.trials.attempt(shapes)
        return outcome is not None and self._strays(outcome, shapes)

    def _strays(self, outcome: TrialOutcome, shapes: Shapes) -> bool:
        if self._nominal is None or not outcome.asked.strays_from(self._nominal.asked):
            return False
        return self.trials.elsewhere(shapes, {}, self._nominal.asked.answers).found is not Elsewhere.SAME

    def holds(self) -> bool:
        """Whether all that vary can do so in a call with content too."""
        return not self.varying or self.trials.holds(self.shapes(self.small_sizes()))

    def _works(self, sizes: Mapping[str, int]) -> bool:
        return self.outcome(self.complete(sizes)) is not None

    def shrink(self) -> None:
        """Make the sizes that others are tried beside as small as they can be made one after the other."""
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
        """Every label, in the order of the axes."""
        return list(dict.fromkeys((*self._label.values(), *self._size)))

    # -- which axes belong together --

    def unlink(self) -> None:
        """Part the axes of one size into the smallest sets that can change without the others, while there is time."""
        for label in [one for one in self._labels if one in self._tried]:
            remaining = [axis for axis, own in self._label.items() if own == label]
            bound: list[Axis] = []  # those that change in no set
            parts = 0
            while remaining and len(remaining) + len(bound) > 1 and self.trials.spent < _UNLINKING:
                sets = candidates(remaining, self._request.tensors, whole=bool(bound))
                timely = itertools.takewhile(lambda _: self.trials.spent < _UNLINKING, sets)
                together = next((chosen for chosen in timely if self._moves(chosen, label)), None)
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

    def _moves(self, axes: Sequence[Axis], label: str) -> bool:
        """Whether these axes can take other sizes while everything else keeps its own."""
        size = self._base[label]
        for multiple in (1, 16, 8, 2):
            if size % multiple:
                continue
            others = others_of(size, multiple, {*self._base.values()})
            if others and all(self.outcome(self._base, dict.fromkeys(axes, other)) is not None for other in others):
                return True
        others = neighbours(self._roomy[label], {*self._roomy.values()})
        return all(self.outcome(self._roomy, dict.fromkeys(axes, other)) is not None for other in others)

    # -- which may vary --

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
            self.notes.append("more sizes may vary than are said to: to try all would have taken too long")

    def _moves_a_little(self, label: str) -> bool:
        """Whether a label takes the sizes next to its own; then the least that it takes is looked for as well."""
        size = self._size[label]
        others = neighbours(size, {*self._roomy.values()})
        if not all(self._works({**self._roomy, label: other}) for other in others):
            return False
        smaller = (one for one in _LEAST if one < size and self._works({**self._roomy, label: one}))
        self._least[label] = next(smaller, others[0])
        return True

    def _reconcile(self) -> None:
        """See to it that all that vary can do so together."""
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
            if working and all(sizes in working or self.strays(sizes) for sizes in others):
                if len(working) < len(others):
                    self._keep_above(label, working[0][label])
                return multiple
        return None

    def _keep_above(self, label: str, working: int) -> None:
        """Where a size that was tried goes another way, small sizes are not below one that does not."""
        smaller = (one for one in _LEAST if one < self._size[label] and self._works({**self._base, label: one}))
        self._least[label] = next(smaller, working)

    def _relate(self) -> None:
        """Find sizes that cannot change alone but together with others, by a formula."""
        while True:
            stuck = {
                label: self._size[label] for label in self._labels if label in self._tried and label not in self.moving
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
        """The multiples of the free sizes of a relation, which is kept; None where the function refuses it."""
        free = list(dict.fromkeys(name for formula in relation.values() for name in formula.names))
        self._formula |= relation
        # Twice its size a free one is what every multiple permits, so most relations are done with after one call.
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
        """Keep of the varying dimensions those that can vary together, first come first kept."""
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
        """Whether two of one size vary together, as the rows of keys and values do, of which torch looks at one."""
        self._formula[label] = SizeFormula((SizeTerm(1, (twin,)),))
        self.varying[twin] = multiple
        works = self._works(self.small_sizes())
        if works:
            self._link(label)
        else:
            del self._formula[label], self.varying[twin]
        return works

    def _link(self, label: str) -> None:
        """Give the axes of a label that is the same as another that label; names that a person gave stay."""
        (same, *others) = self._formula[label].names
        if others or self._formula[label] != SizeFormula((SizeTerm(1, (same,)),)) or not self._request.unlink:
            return
        self._label = {axis: same if own == label else own for axis, own in self._label.items()}
        for known in (self._formula, self._size, self._base, self._roomy):
            del known[label]

    def small_sizes(self) -> dict[str, int]:
        """Every varying dimension at a small size of its own, unlike any other size; the larger stay the larger."""
        sizes = dict(self._size)
        taken = {size for label, size in sizes.items() if label not in self.moving}
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
    """The multiple that a size must be for nothing to be lost in a formula's division by it."""
    coefficient = next((one.coefficient for one in formula.terms if one.names == (label,)), 0)
    return formula.divisor // math.gcd(formula.divisor, coefficient)


def _alike(one: TrialOutcome, other: TrialOutcome) -> bool:
    """Whether two calls returned the same number of tensors, of the same dtypes and ranks."""
    return (
        one.dtypes == other.dtypes
        and [len(shape) for shape in one.shapes] == [len(shape) for shape in other.shapes]
        and one.changed == other.changed
    )
