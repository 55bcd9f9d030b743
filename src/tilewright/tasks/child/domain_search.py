"""Inside the child: the sizes and numbers between which a reference answers its own questions as it does at its own.

What a call asked is known as expressions of sizes and numbers, so it can be answered at any others without calling.
Where an answer changes, the reference is called on both sides of it: with the answer it gives there, and with the one
it gives at its own sizes. Equal results, and the question decides nothing; else sizes and numbers are bounded.
"""

from __future__ import annotations

import itertools
import linecache
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path

from tilewright.records import NumberBounds, NumberInput, SizeFormula
from tilewright.reference.loading import FILE_NAME
from tilewright.tasks.child.branch_watch import Key, Question, Range
from tilewright.tasks.child.size_fitting import Fitting, Reading
from tilewright.tasks.child.size_search import SizeSearch
from tilewright.tasks.child.tracked_numbers import Number
from tilewright.tasks.child.trials import Elapsed, Elsewhere, TrialOutcome

_SECONDS, _PATIENCE = 5.0, 4.0  # after which what is not decided is left to calls
_LARGEST_SIZE = 1 << 31
_NEAR = 1024  # steps around a size that are all looked at
_FEW_INDICES = 64
_SAMPLES = 400  # of several sizes together
_COMPARED = 3  # calls on the other side of an answer
_TIMES = (2, 4, 16)  # the own size, and parts of it

Values = dict[str, Number]  # of free labels, and of numbers, which are called `t=` beside a dimension t


@dataclass(frozen=True)
class _Guard:
    """A question, and the values that it hangs on."""

    key: Key
    question: Question
    ranges: Mapping[str, Range]
    following: Mapping[str, str | int | SizeFormula]  # sizes on the way, by the symbols they have in the expression

    @property
    def symbols(self) -> frozenset[str]:
        return _symbols(self.question, self.ranges)

    def is_told_by(self, known: Set[str]) -> bool:
        """Whether it can be answered from these; a loop within a loop, of another length each time, cannot."""
        return self.symbols - (self.question.expression.symbols & self.ranges.keys()) <= known

    def holds(self, known: Mapping[str, Number]) -> bool:
        """Whether every answer is one that was given at the task's own sizes."""
        expression = self.question.expression
        try:
            return all(bool(expression.at(one)) in self.question.answers for one in self._with_indices(known))
        except (ArithmeticError, ValueError):
            return False

    def _with_indices(self, known: Mapping[str, Number]) -> Iterator[dict[str, Number]]:
        loops = [symbol for symbol in self.ranges if symbol in self.question.expression.symbols]
        numbers = [_some_of(self._numbers(self.ranges[one], known), self.question) for one in loops]
        for chosen in itertools.product(*numbers):
            yield {**known, **dict(zip(loops, chosen, strict=True))}

    def _numbers(self, one: Range, known: Mapping[str, Number]) -> range:
        return range(int(one.start.at(known)), int(one.stop.at(known)), int(one.step.at(known)))


def _symbols(question: Question, ranges: Mapping[str, Range]) -> frozenset[str]:
    """Those of the question, and of how long the loops are whose indices it is about."""
    loops = [ranges[one] for one in question.expression.symbols if one in ranges]
    bounds = [part.symbols for one in loops for part in (one.start, one.stop, one.step)]
    return question.expression.symbols.union(*bounds)


def _some_of(numbers: range, question: Question) -> list[int]:
    """All indices, or the first, the last, and those that the question speaks of."""
    if len(numbers) <= _FEW_INDICES:
        return list(numbers)
    named = (int(one) + step for one in question.expression.constants if math.isfinite(one) for step in (-1, 0, 1))
    spread = numbers[:: max(len(numbers) // _FEW_INDICES, 1)]
    return [*numbers[:8], *numbers[-8:], *spread, *(one for one in named if one in numbers)]


class DomainSearch:
    """The bounds of labels, which it puts into the search, and of numbers."""

    def __init__(self, search: SizeSearch, nominal: TrialOutcome, numbers: Sequence[NumberInput]) -> None:
        self._search = search
        self._nominal = nominal
        self._asked = nominal.asked
        self._numbers: Values = {f"{one.name}=": one.value for one in numbers if not isinstance(one.value, bool)}
        self._elapsed = Elapsed(_PATIENCE)
        self._reasons: dict[str, list[str]] = {}  # lines of the reference, by label or number
        self.bounds = {one.name: one.bounds for one in numbers if one.bounds is not None}

    def restrict(self) -> bool:
        """Bound what the reference branches on; the answer says whether a dimension was held."""
        self._elapsed = Elapsed(_PATIENCE)
        before = {*self._search.varying}
        guards = self._guards()
        for guard in guards:
            if self._elapsed.seconds > _SECONDS:
                self._search.notes.append("not all was tried that the reference branches on: it would take too long")
                break
            variables = self._variables(guard)
            if len(variables) > 1 and self._moves(variables[0]):
                variables = self._settled(guard, variables)
            for name in variables:
                self._bound(guard, name)
        if self._asked.questions:
            self._look_beyond_the_fixed()
        self._search.notes += self._said()
        return before != {*self._search.varying}

    def _look_beyond_the_fixed(self) -> None:
        """Find by calls which of the fixed labels have sizes at which the reference goes another way."""
        own = self._search.own_sizes
        for label, size in own.items():
            if label in self._search.moving or label in self._search.branching or size < 2:
                continue
            for other in (2 * size, size + 1, size // 2, 16 * size):
                if self._elapsed.seconds < _SECONDS and self._search.strays({**own, label: other}):
                    self._search.branching.add(label)
                    break

    def bounded(self, numbers: Sequence[NumberInput]) -> tuple[NumberInput, ...]:
        return tuple(replace(one, bounds=self.bounds.get(one.name)) for one in numbers)

    # -- questions as guards --

    def _guards(self) -> list[_Guard]:
        """Every question whose sizes are known, and that was answered in one way only."""
        asked = {key: one for key, one in self._asked.questions.items() if len(one.answers) == 1}
        wanted = {symbol for one in asked.values() for symbol in _symbols(one, self._asked.ranges)}
        following: dict[str, str | int | SizeFormula] = {}
        fitting: Fitting | None = None
        for symbol in sorted(wanted & self._asked.sizes.keys()):
            fitting = fitting or Fitting(self._search, self._nominal)
            found = fitting.fit(_size_on_the_way(symbol))
            following |= {symbol: found} if found is not None else {}
        known = {*following, *self._search.sizes_of_axes(self._search.own_sizes)}
        known |= {one.removesuffix("=") for one in self._numbers}
        guards = [_Guard(key, one, self._asked.ranges, following) for key, one in asked.items()]
        for guard in guards:
            if not guard.is_told_by(known) and self._elapsed.seconds < _SECONDS:
                self._bound_by_calls(guard.question)
        return [guard for guard in guards if guard.is_told_by(known)]

    def _bound_by_calls(self, question: Question) -> None:
        """Bound labels where calls show that a question is answered otherwise; it cannot be answered without them."""
        small = self._search.small_sizes()
        for label in [*self._search.varying] if self._search.outcome(small) is not None else []:
            own, unit = self._search.size_of(label), self._search.varying[label]

            def stays(size: Number, label: str = label) -> bool:
                return not self._search.strays({**small, label: int(size)})

            larger = [times * own for times in _TIMES]
            smaller = [own // times // unit * unit or unit for times in _TIMES]
            ends = [_first_stray(own, points, unit, stays) for points in (larger, smaller)]
            if ends != [None, None]:
                self._search.branching.add(label)
                self._reason(label, question)
                self._bound_label(question, label, *ends)

    def _labels(self, guard: _Guard) -> list[str]:
        """The free labels that it hangs on."""
        labels: list[str] = []
        for symbol in guard.symbols:
            size = guard.following.get(symbol, self._search.label_of(symbol))
            names = size.names if isinstance(size, SizeFormula) else (size,) if isinstance(size, str) else ()
            labels += [free for name in names for free in self._search.free_labels(name)]
        return [one for one in self._search.own_sizes if one in labels]

    def _variables(self, guard: _Guard) -> list[str]:
        """The labels that vary and the numbers that it hangs on; where there are none, the labels that do not."""
        labels = self._labels(guard)
        moving = sorted((one for one in labels if one in self._search.varying), key=self._search.size_of, reverse=True)
        numbers = [one for one in self._numbers if one.removesuffix("=") in guard.symbols and self._moves(one)]
        return [*moving, *numbers] or labels

    def _moves(self, name: str) -> bool:
        """Whether a label or a number may have other values than its own."""
        if name not in self._numbers:
            return name in self._search.varying
        bounds = self.bounds.get(name.removesuffix("="))
        return bounds is None or bounds.low is None or bounds.low != bounds.high

    def _known(self, guard: _Guard, changed: Mapping[str, Number]) -> dict[str, Number]:
        """The value of every symbol, with some labels or numbers other than their own."""
        labels = {name: int(value) for name, value in changed.items() if name not in self._numbers}
        sizes = self._search.complete({**self._search.own_sizes, **labels})
        numbers = {**self._numbers, **{name: value for name, value in changed.items() if name in self._numbers}}
        known: dict[str, Number] = {name.removesuffix("="): value for name, value in numbers.items()}
        known |= self._search.sizes_of_axes(sizes)
        for symbol, size in guard.following.items():
            known[symbol] = size if isinstance(size, int) else sizes[size] if isinstance(size, str) else size.at(sizes)
        return known

    # -- several together --

    def _settled(self, guard: _Guard, variables: list[str]) -> list[str]:
        """Hold all but the first, where a question about several decides something; what is left to bound."""
        strays = [one for one in self._together(guard, variables) if not guard.holds(self._known(guard, one))]
        found = [self._elsewhere(guard, one) for one in strays[:_COMPARED]]
        if Elsewhere.DIFFERENT not in found:
            return []
        keep = [] if variables[0] in self._numbers else variables[:1]
        for one in variables[len(keep) :]:
            if one in self._numbers:
                self.bounds[one.removesuffix("=")] = NumberBounds(self._numbers[one], self._numbers[one])
                self._reason(one, guard.question)
            else:
                self._hold(one, guard.question)
        return keep

    def _together(self, guard: _Guard, variables: list[str]) -> list[Values]:
        """Values inside the bounds found so far, the smaller sizes first."""
        chosen = random.Random(0)
        choices = [self._choices(guard, one) for one in variables]
        drawn = [dict(zip(variables, map(chosen.choice, choices), strict=True)) for _ in range(_SAMPLES)]
        return sorted(drawn, key=lambda one: math.prod(float(one[name]) for name in one if name not in self._numbers))

    def _choices(self, guard: _Guard, name: str) -> list[Number]:
        if name in self._numbers:
            bounds = self.bounds.get(name.removesuffix("="), NumberBounds())
            return [one for one in self._points(guard, name, 1) if bounds.holds(one)]
        own, unit = self._search.size_of(name), self._search.varying[name]
        near = [one for one in self._points(guard, name, unit) if abs(one - own) > _NEAR * unit // 2 or one < 8 * unit]
        return [own, *(one for one in near if self._permits(name, int(one)))]

    def _points(self, guard: _Guard, name: str, unit: int) -> list[Number]:
        own = self._numbers.get(name, self._search.own_sizes.get(name, 0))
        return _points(own, unit, guard.question.expression.constants, name in self._numbers)

    def _permits(self, label: str, size: int) -> bool:
        most = self._search.at_most.get(label, _LARGEST_SIZE)
        return max(self._search.at_least.get(label, 1), 1) <= size <= most

    # -- one alone --

    def _bound(self, guard: _Guard, name: str) -> None:
        """Bound a label or a number where the answer changes, if that decides anything."""

        def holds(value: Number) -> bool:
            return guard.holds(self._known(guard, {name: value}))

        own = self._numbers.get(name, self._search.own_sizes.get(name, 0))
        strays = sorted((one for one in self._points(guard, name, 1) if not holds(one)), key=lambda one: abs(one - own))
        compared = [*strays[:1], *strays[len(strays) // 3 :][:1], *[one for one in strays if one > own][:1]]
        # A size of 1 that is broadcast can only be another's.
        compared += [one for one in self._search.small_sizes().values() if own == 1 and not holds(one)]
        found = {self._elsewhere(guard, {name: one}) for one in dict.fromkeys(compared)}
        if Elsewhere.DIFFERENT not in found and found != {Elsewhere.REFUSED}:
            return
        unit = self._search.varying.get(name, 1)
        points = self._points(guard, name, unit)
        above = _first_stray(own, [one for one in points if one > own], unit, holds)
        below = _first_stray(own, [one for one in reversed(points) if one < own], unit, holds)
        if Elsewhere.DIFFERENT in found:
            for label in self._labels(guard):  # where the answer changes hangs on those that are fixed, too
                if label == name or label not in self._search.varying:
                    self._search.branching.add(label)
                    self._reason(label, guard.question)
        if name in self._numbers:
            if Elsewhere.DIFFERENT in found:
                self._reason(name, guard.question)
            self._bound_number(name.removesuffix("="), above, below, Elsewhere.DIFFERENT in found)
        elif name in self._search.varying:
            self._bound_label(guard.question, name, above, below)

    def _bound_label(self, question: Question, label: str, above: _End, below: _End) -> None:
        search = self._search
        unit, least, most = search.varying[label], search.at_least.get(label, 1), search.at_most.get(label)
        least = max(least, int(below[0])) if below is not None else least
        most = min(most or _LARGEST_SIZE, int(above[0])) if above is not None else most
        if most is not None and -(-least // unit) * unit + unit > most:
            self._hold(label, question)
            return
        search.at_least[label] = least
        if most is not None:
            search.at_most[label] = most

    def _bound_number(self, name: str, above: _End, below: _End, branches: bool) -> None:
        before = self.bounds.get(name, NumberBounds(branches=False))
        bounds = replace(before, branches=before.branches or branches)
        low, low_excluded = _end_of_number(below)
        high, high_excluded = _end_of_number(above)
        if low is not None and bounds.holds(low):
            bounds = replace(bounds, low=low, low_excluded=low_excluded)
        if high is not None and bounds.holds(high):
            bounds = replace(bounds, high=high, high_excluded=high_excluded)
        self.bounds[name] = bounds

    def _elsewhere(self, guard: _Guard, values: Mapping[str, Number]) -> Elsewhere:
        """A call at these values beside small sizes, and the same with the answer that is given at the own sizes."""
        search = self._search
        labels = {name: int(value) for name, value in values.items() if name not in self._numbers}
        numbers = {name.removesuffix("="): value for name, value in values.items() if name in self._numbers}
        small = search.small_sizes()
        beside = small if search.outcome(small) is not None else search.own_sizes
        shapes = search.shapes(search.complete({**beside, **labels}))
        if any(size < 0 for shape in shapes.values() for size in shape):
            return Elsewhere.REFUSED
        compared = search.trials.elsewhere(shapes, numbers, {guard.key: min(guard.question.answers)})
        if compared.found is Elsewhere.SAME and guard.key not in compared.asked:
            # It is not asked where another answer leads elsewhere first, nor of a table that has no such key.
            compared = search.trials.elsewhere(shapes, numbers, self._asked.answers)
            if compared.found is Elsewhere.SAME and guard.key not in compared.asked:
                return Elsewhere.DIFFERENT
        return compared.found

    # -- what is said of it --

    def _hold(self, label: str, question: Question) -> None:
        self._search.branching.add(label)
        self._reason(label, question)
        self._search.hold(label)

    def _reason(self, name: str, question: Question) -> None:
        place = question.place
        line = linecache.getline(place.file, place.line).strip()
        file = "" if Path(place.file).name == FILE_NAME else f" of {Path(place.file).name}"
        reason = f"line {place.line}{file}: {line}"
        reasons = self._reasons.setdefault(name, [])
        reasons += [reason] if reason not in reasons else []

    def _said(self) -> Iterator[str]:
        for name, reasons in self._reasons.items():
            limits = self._limits_of_number(name) if name in self._numbers else self._limits_of_label(name)
            yield f"{limits}, because the reference does something else otherwise ({'; '.join(reasons)})"
        if self._search.trials.unwatched:
            yield f"what the reference branches on was found by calls alone ({self._search.trials.unwatched})"

    def _limits_of_number(self, name: str) -> str:
        return " and ".join(self.bounds[name.removesuffix("=")].conditions(name.removesuffix("=")))

    def _limits_of_label(self, label: str) -> str:
        search = self._search
        if label not in search.varying:
            return f"{{{label}}} is always {search.size_of(label)}"
        limits = [f"a multiple of {search.varying[label]}"] if search.varying[label] > 1 else []
        limits += [f"at least {search.at_least[label]}"] if search.at_least[label] > 1 else []
        limits += [f"at most {search.at_most[label]}"] if label in search.at_most else []
        return f"{{{label}}} is {' and '.join(limits)}"


def _size_on_the_way(symbol: str) -> Reading:
    return lambda outcome: outcome.asked.sizes.get(symbol)


_End = tuple[Number, Number] | None  # the last value at which an answer is as at the own one, and the next


def _first_stray(own: Number, points: Iterable[Number], unit: int, holds: Callable[[Number], bool]) -> _End:
    """Where an answer changes first on the way along the points."""
    inside = own
    for point in points:
        if not holds(point):
            return _between(inside, point, unit, holds)
        inside = point
    return None


def _between(inside: Number, outside: Number, unit: int, holds: Callable[[Number], bool]) -> tuple[Number, Number]:
    """The last value at which it is so and the next; whole numbers go by the unit."""
    while True:
        if isinstance(inside, int) and isinstance(outside, int):
            middle: Number = inside + (outside - inside) // (2 * unit) * unit
            middle = middle if outside > inside else inside - (inside - outside) // (2 * unit) * unit
        else:
            middle = (inside + outside) / 2
        if middle in (inside, outside):
            return inside, outside
        inside, outside = (middle, outside) if holds(middle) else (inside, middle)


def _end_of_number(end: _End) -> tuple[Number | None, bool]:
    """The bound of a number, and whether it is excluded: of two floats beside each other the one with fewer digits."""
    if end is None:
        return None, False
    inside, outside = end
    if isinstance(inside, int):
        return inside, False
    return (outside, True) if len(repr(outside)) <= len(repr(inside)) else (inside, False)


def _points(own: Number, unit: int, constants: Iterable[Number], is_number: bool) -> list[Number]:
    """Values in order: near the own one, ever farther away, and around those that a question speaks of."""
    named = [one for one in constants if math.isfinite(one)]
    if isinstance(own, float):
        scale = abs(own) or 1.0
        steps = [scale * 2.0**power for power in range(-12, 40, 2)]
        floats = (
            {own + step for step in steps}
            | {own - step for step in steps}
            | {own * 2.0**-power for power in range(1, 40, 3)}
        )
        floats |= {0.0, -own} | {float(one) * part for one in named for part in (0.5, 1.0, 2.0, -1.0)}
        return sorted(
            {float(one) for one in floats}
            | {math.nextafter(float(one), sign * math.inf) for one in named for sign in (-1, 1)}
        )
    near = {own + unit * step for step in range(-_NEAR, _NEAR + 1)}
    far = {own * (1 << power) for power in range(32)} | {own // (1 << power) for power in range(32)}
    spoken = {int(one) + unit * step for one in named for step in (-2, -1, 0, 1, 2)}
    spoken |= {int(own / one) + unit * step for one in named if one for step in (-1, 0, 1)}
    least = -_LARGEST_SIZE if is_number else 1
    whole = (one // unit * unit for one in near | far | spoken)
    return sorted({one for one in whole if least <= one <= _LARGEST_SIZE})
