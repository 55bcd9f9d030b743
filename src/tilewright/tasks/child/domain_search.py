"""Runs in the child: bounds sizes and numbers to the range in which the reference takes the nominal branches.

The recorded conditions are expressions of sizes and numbers, so they can be evaluated elsewhere without a call. Where a
condition changes, the reference is called twice: as it is, and with the condition forced to its nominal value. If the
results differ, sizes and numbers are bounded.
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
from tilewright.tasks.child.size_fitting import SizeFitter
from tilewright.tasks.child.size_search import SizeSearch
from tilewright.tasks.child.tracked_numbers import Number
from tilewright.tasks.child.trials import BranchEffect, Elapsed, TrialOutcome

_SECONDS, _PATIENCE = 5.0, 4.0  # after which what is not decided is left to calls
_LARGEST_SIZE = 1 << 31
_NEAR = 1024  # steps around a size that are all evaluated
_FEW_INDICES = 64
_SAMPLES = 400  # of several variables together
_COMPARED = 3  # calls where a condition differs
_TIMES = (2, 4, 16)  # multiples and fractions of a size

Values = dict[str, Number]  # of free labels and of numbers; a number t is named `t=`, for there may be a dimension t


@dataclass(frozen=True)
class _Guard:
    """A condition with what is needed to evaluate it."""

    key: Key
    question: Question
    ranges: Mapping[str, Range]
    following: Mapping[str, str | int | SizeFormula]  # intermediate sizes, by their symbols

    @property
    def symbols(self) -> frozenset[str]:
        return _symbols(self.question, self.ranges)

    def can_evaluate(self, known: Set[str]) -> bool:
        """Whether these symbols are enough to evaluate it. Loop bounds that depend on outer loops are not supported."""
        return self.symbols - (self.question.expression.symbols & self.ranges.keys()) <= known

    def holds(self, known: Mapping[str, Number]) -> bool:
        """Whether every value of the condition occurred in the nominal call."""
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
    """The symbols of a condition and of the bounds of its loops."""
    loops = [ranges[one] for one in question.expression.symbols if one in ranges]
    bounds = [part.symbols for one in loops for part in (one.start, one.stop, one.step)]
    return question.expression.symbols.union(*bounds)


def _some_of(numbers: range, question: Question) -> list[int]:
    """All indices, or the first, the last, and those near constants of the condition."""
    if len(numbers) <= _FEW_INDICES:
        return list(numbers)
    named = (int(one) + step for one in question.expression.constants if math.isfinite(one) for step in (-1, 0, 1))
    spread = numbers[:: max(len(numbers) // _FEW_INDICES, 1)]
    return [*numbers[:8], *numbers[-8:], *spread, *(one for one in named if one in numbers)]


class DomainSearch:
    """Finds bounds of labels, which are stored in the search, and of numbers."""

    def __init__(self, search: SizeSearch, nominal: TrialOutcome, numbers: Sequence[NumberInput]) -> None:
        self._search = search
        self._nominal = nominal
        self._asked = nominal.asked
        self._numbers: Values = {f"{one.name}=": one.value for one in numbers if not isinstance(one.value, bool)}
        self._elapsed = Elapsed(_PATIENCE)
        self._reasons: dict[str, list[str]] = {}  # lines of the reference, by label or number
        self.bounds = {one.name: one.bounds for one in numbers if one.bounds is not None}

    def restrict(self) -> bool:
        """Bound the variables that the reference branches on; True if a dimension became static."""
        self._elapsed = Elapsed(_PATIENCE)
        before = {*self._search.varying}
        guards = self._guards()
        for guard in guards:
            if self._elapsed.seconds > _SECONDS:
                self._search.notes.append("not all branches of the reference were examined within the time limit")
                break
            variables = self._variables(guard)
            if len(variables) > 1 and self._can_change(variables[0]):
                variables = self._fix_others(guard, variables)
            for name in variables:
                self._bound(guard, name)
        if self._asked.questions:
            self._find_branching_static()
        self._search.notes += self._explanations()
        return before != {*self._search.varying}

    def _find_branching_static(self) -> None:
        """Find by calls the static labels with sizes at which the reference takes another branch."""
        own = self._search.own_sizes
        for label, size in own.items():
            if label in self._search.changing or label in self._search.branching or size < 2:
                continue
            for other in (2 * size, size + 1, size // 2, 16 * size):
                if self._elapsed.seconds < _SECONDS and self._search.takes_other_branch({**own, label: other}):
                    self._search.branching.add(label)
                    break

    def bounded(self, numbers: Sequence[NumberInput]) -> tuple[NumberInput, ...]:
        return tuple(replace(one, bounds=self.bounds.get(one.name)) for one in numbers)

    # -- conditions --

    def _guards(self) -> list[_Guard]:
        """The conditions that had one value only, and whose symbols are known."""
        asked = {key: one for key, one in self._asked.questions.items() if len(one.answers) == 1}
        wanted = {symbol for one in asked.values() for symbol in _symbols(one, self._asked.ranges)}
        following: dict[str, str | int | SizeFormula] = {}
        fitting: SizeFitter | None = None
        for symbol in sorted(wanted & self._asked.sizes.keys()):
            fitting = fitting or SizeFitter(self._search, self._nominal)
            found = fitting.fit(lambda outcome, symbol=symbol: outcome.asked.sizes.get(symbol))  # type: ignore[misc]
            following |= {symbol: found} if found is not None else {}
        known = {*following, *self._search.sizes_of_axes(self._search.own_sizes)}
        known |= {one.removesuffix("=") for one in self._numbers}
        guards = [_Guard(key, one, self._asked.ranges, following) for key, one in asked.items()]
        for guard in guards:
            if not guard.can_evaluate(known) and self._elapsed.seconds < _SECONDS:
                self._bound_by_calls(guard.question)
        return [guard for guard in guards if guard.can_evaluate(known)]

    def _bound_by_calls(self, question: Question) -> None:
        """Bound labels by calls, for a condition that cannot be evaluated."""
        small = self._search.small_sizes()
        for label in [*self._search.varying] if self._search.outcome(small) is not None else []:
            own, unit = self._search.size_of(label), self._search.varying[label]

            def stays(size: Number, label: str = label) -> bool:
                return not self._search.takes_other_branch({**small, label: int(size)})

            larger = [times * own for times in _TIMES]
            smaller = [own // times // unit * unit or unit for times in _TIMES]
            ends = [_first_change(own, points, unit, stays) for points in (larger, smaller)]
            if ends != [None, None]:
                self._search.branching.add(label)
                self._reason(label, question)
                self._bound_label(question, label, *ends)

    def _labels(self, guard: _Guard) -> list[str]:
        """The free labels that a condition depends on."""
        labels: list[str] = []
        for symbol in guard.symbols:
            size = guard.following.get(symbol, self._search.label_of(symbol))
            names = size.names if isinstance(size, SizeFormula) else (size,) if isinstance(size, str) else ()
            labels += [free for name in names for free in self._search.free_labels(name)]
        return [one for one in self._search.own_sizes if one in labels]

    def _variables(self, guard: _Guard) -> list[str]:
        """The dynamic labels and the numbers that a condition depends on; without any, the static labels."""
        labels = self._labels(guard)
        changing = sorted(
            (one for one in labels if one in self._search.varying), key=self._search.size_of, reverse=True
        )
        numbers = [one for one in self._numbers if one.removesuffix("=") in guard.symbols and self._can_change(one)]
        return [*changing, *numbers] or labels

    def _can_change(self, name: str) -> bool:
        """Whether a label or a number is not fixed to one value."""
        if name not in self._numbers:
            return name in self._search.varying
        bounds = self.bounds.get(name.removesuffix("="))
        return bounds is None or bounds.low is None or bounds.low != bounds.high

    def _known(self, guard: _Guard, changed: Mapping[str, Number]) -> dict[str, Number]:
        """The value of every symbol, with some labels or numbers changed."""
        labels = {name: int(value) for name, value in changed.items() if name not in self._numbers}
        sizes = self._search.complete({**self._search.own_sizes, **labels})
        numbers = {**self._numbers, **{name: value for name, value in changed.items() if name in self._numbers}}
        known: dict[str, Number] = {name.removesuffix("="): value for name, value in numbers.items()}
        known |= self._search.sizes_of_axes(sizes)
        for symbol, size in guard.following.items():
            known[symbol] = size if isinstance(size, int) else sizes[size] if isinstance(size, str) else size.at(sizes)
        return known

    # -- conditions on several variables --

    def _fix_others(self, guard: _Guard, variables: list[str]) -> list[str]:
        """Fix all but the first variable if the condition decides the result; returns the variables still to bound."""
        takes_other_branch = [
            one for one in self._samples(guard, variables) if not guard.holds(self._known(guard, one))
        ]
        found = [self._branch_effect(guard, one) for one in takes_other_branch[:_COMPARED]]
        if BranchEffect.DIFFERENT not in found:
            return []
        keep = [] if variables[0] in self._numbers else variables[:1]
        for one in variables[len(keep) :]:
            if one in self._numbers:
                self.bounds[one.removesuffix("=")] = NumberBounds(self._numbers[one], self._numbers[one])
                self._reason(one, guard.question)
            else:
                self._fix(one, guard.question)
        return keep

    def _samples(self, guard: _Guard, variables: list[str]) -> list[Values]:
        """Random values inside the bounds, smaller sizes first."""
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
        least, most = max(self._search.at_least.get(name, 1), 1), self._search.at_most.get(name, _LARGEST_SIZE)
        return [own, *(one for one in near if least <= int(one) <= most)]

    def _points(self, guard: _Guard, name: str, unit: int) -> list[Number]:
        own = self._numbers.get(name, self._search.own_sizes.get(name, 0))
        return _points(own, unit, guard.question.expression.constants, name in self._numbers)

    # -- conditions on one variable --

    def _bound(self, guard: _Guard, name: str) -> None:
        """Bound a label or a number where the condition changes, if the result changes too."""

        def holds(value: Number) -> bool:
            return guard.holds(self._known(guard, {name: value}))

        own = self._numbers.get(name, self._search.own_sizes.get(name, 0))
        takes_other_branch = sorted(
            (one for one in self._points(guard, name, 1) if not holds(one)), key=lambda one: abs(one - own)
        )
        compared = [
            *takes_other_branch[:1],
            *takes_other_branch[len(takes_other_branch) // 3 :][:1],
            *[one for one in takes_other_branch if one > own][:1],
        ]
        # A size of 1 may be broadcast, so other sizes of the call are tried for it.
        compared += [one for one in self._search.small_sizes().values() if own == 1 and not holds(one)]
        found = {self._branch_effect(guard, {name: one}) for one in dict.fromkeys(compared)}
        if BranchEffect.DIFFERENT not in found and found != {BranchEffect.REFUSED}:
            return
        unit = self._search.varying.get(name, 1)
        points = self._points(guard, name, unit)
        above = _first_change(own, [one for one in points if one > own], unit, holds)
        below = _first_change(own, [one for one in reversed(points) if one < own], unit, holds)
        if BranchEffect.DIFFERENT in found:
            for label in self._labels(guard):  # the threshold depends on static labels too
                if label == name or label not in self._search.varying:
                    self._search.branching.add(label)
                    self._reason(label, guard.question)
        if name in self._numbers:
            if BranchEffect.DIFFERENT in found:
                self._reason(name, guard.question)
            self._bound_number(name.removesuffix("="), above, below, BranchEffect.DIFFERENT in found)
        elif name in self._search.varying:
            self._bound_label(guard.question, name, above, below)

    def _bound_label(self, question: Question, label: str, above: _End, below: _End) -> None:
        search = self._search
        unit, least, most = search.varying[label], search.at_least.get(label, 1), search.at_most.get(label)
        least = max(least, int(below[0])) if below is not None else least
        most = min(most or _LARGEST_SIZE, int(above[0])) if above is not None else most
        if most is not None and -(-least // unit) * unit + unit > most:
            self._fix(label, question)
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

    def _branch_effect(self, guard: _Guard, values: Mapping[str, Number]) -> BranchEffect:
        """Compare a call at these values, other sizes small, with one that forces the nominal branch."""
        search = self._search
        labels = {name: int(value) for name, value in values.items() if name not in self._numbers}
        numbers = {name.removesuffix("="): value for name, value in values.items() if name in self._numbers}
        small = search.small_sizes()
        beside = small if search.outcome(small) is not None else search.own_sizes
        shapes = search.shapes(search.complete({**beside, **labels}))
        if any(size < 0 for shape in shapes.values() for size in shape):
            return BranchEffect.REFUSED
        compared = search.trials.compare_branches(shapes, numbers, {guard.key: min(guard.question.answers)})
        if compared.found is BranchEffect.SAME and guard.key not in compared.asked:
            # An earlier branch may skip the condition, as may a table lookup without such a key.
            compared = search.trials.compare_branches(shapes, numbers, self._asked.answers)
            if compared.found is BranchEffect.SAME and guard.key not in compared.asked:
                return BranchEffect.DIFFERENT
        return compared.found

    # -- explanations --

    def _fix(self, label: str, question: Question) -> None:
        self._search.branching.add(label)
        self._reason(label, question)
        self._search.fix(label)

    def _reason(self, name: str, question: Question) -> None:
        place = question.place
        line = linecache.getline(place.file, place.line).strip()
        file = "" if Path(place.file).name == FILE_NAME else f" of {Path(place.file).name}"
        reason = f"line {place.line}{file}: {line}"
        reasons = self._reasons.setdefault(name, [])
        reasons += [reason] if reason not in reasons else []

    def _explanations(self) -> Iterator[str]:
        for name, reasons in self._reasons.items():
            number = name.removesuffix("=")
            conditions = self.bounds[number].conditions(number) if name in self._numbers else ()
            limits = " and ".join(conditions) or self._limits_of_label(name)
            yield f"{limits}, because the reference does something else otherwise ({'; '.join(reasons)})"
        if self._search.trials.unwatched:
            yield f"branches of the reference were found by calls alone ({self._search.trials.unwatched})"

    def _limits_of_label(self, label: str) -> str:
        search = self._search
        if label not in search.varying:
            return f"{{{label}}} is always {search.size_of(label)}"
        limits = [f"a multiple of {search.varying[label]}"] if search.varying[label] > 1 else []
        limits += [f"at least {search.at_least[label]}"] if search.at_least[label] > 1 else []
        limits += [f"at most {search.at_most[label]}"] if label in search.at_most else []
        return f"{{{label}}} is {' and '.join(limits)}"


_End = tuple[Number, Number] | None  # the last value with the nominal condition, and the next


def _first_change(own: Number, points: Iterable[Number], unit: int, holds: Callable[[Number], bool]) -> _End:
    """The first change of the condition along the points."""
    inside = own
    for point in points:
        if not holds(point):
            return _between(inside, point, unit, holds)
        inside = point
    return None


def _between(inside: Number, outside: Number, unit: int, holds: Callable[[Number], bool]) -> tuple[Number, Number]:
    """Bisect for the last value that holds and the next one; integers move by the unit."""
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
    """The bound of a number, and whether it is exclusive: of two adjacent floats the one with fewer digits."""
    if end is None:
        return None, False
    inside, outside = end
    if isinstance(inside, int):
        return inside, False
    return (outside, True) if len(repr(outside)) <= len(repr(inside)) else (inside, False)


def _points(own: Number, unit: int, constants: Iterable[Number], is_number: bool) -> list[Number]:
    """Sorted values to try: near the own one, at powers of two, and around the constants of a condition."""
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
