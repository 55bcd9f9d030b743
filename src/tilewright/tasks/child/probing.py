"""Inside the child: which sizes of a function's tensors hang together, which may vary, and what it returns.

Nothing is concluded from the source: the function is called at other sizes, and what it accepts is believed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tilewright.records import SizeFormula, TaskOutput
from tilewright.tasks.child.input_values import settle_values
from tilewright.tasks.child.size_formulas import Sample, fit_formula
from tilewright.tasks.child.size_search import SizeSearch, others_of
from tilewright.tasks.child.trials import TrialOutcome, Trials, single_thread
from tilewright.tasks.questions import ProbeAnswer, ProbeRequest

_SECONDS = 40.0  # after which what was not tried counts as fixed
_STEPS = (*range(1, 10), -1, -2, -3)  # neighbours of a size, by which rounding down shows
_LARGE = 67  # times its multiple: a size that a kernel is tried at beside small ones
_PROLONGED = 0.4  # of what was allowed before
_MOST_SPENT = 0.95  # of the trials, after which refusals say nothing

Calls = list[tuple[dict[str, int], TrialOutcome]]


def probe(function: Callable[..., Any], request: ProbeRequest) -> ProbeAnswer:
    """Everything about shapes that calling the function tells."""
    for for_real in (False, True):
        search = SizeSearch(Trials(function, request.tensors, request.numbers, _SECONDS, for_real), request)
        nominal = search.nominal()
        with single_thread():
            search.shrink()
            if request.unlink:
                search.unlink()
            search.find_varying()
            outputs = _fit_outputs(search, nominal)
            if search.holds():  # else calls without content were believed that fail with content
                break
    with single_thread():
        if _find_least(search):
            outputs = _fit_outputs(search, nominal)
    tensors = [
        replace(one, dimensions=search.labels_of(position), in_place=one.name in nominal.changed)
        for position, one in enumerate(request.tensors)
    ]
    tensors, notes = settle_values(function, tensors, {*request.unsaid}, request.numbers, search)
    return ProbeAnswer(tuple(tensors), search.dimensions(), outputs, (*search.notes, *notes))


# -- the sizes of what it returns --


def _fit_outputs(search: SizeSearch, nominal: TrialOutcome) -> tuple[TaskOutput, ...]:
    """The outputs' sizes: a label, a number, or a label that follows by a formula.

    A dimension that decides a size for which no formula is found is held fixed.
    """
    while True:
        fitting = _Fitting(search, nominal)
        fitted = [
            [fitting.fit(index, axis) for axis in range(len(shape))] for index, shape in enumerate(nominal.shapes)
        ]
        unfit = [(index, row.index(None)) for index, row in enumerate(fitted) if None in row]
        if not unfit:
            return tuple(
                TaskOutput(f"y{index}", dtype, tuple(search.follow(size) for size in row if size is not None))
                for index, (dtype, row) in enumerate(zip(nominal.dtypes, fitted, strict=True))
            )
        search.hold(fitting.source_of(*unfit[0]), "the size of an output is computed from it")


class _Fitting:
    """Calls at small sizes, and what came back."""

    def __init__(self, search: SizeSearch, nominal: TrialOutcome) -> None:
        self._search = search
        self._own = (search.own_sizes, nominal)
        small = search.small_sizes()
        outcome = search.outcome(small)
        self._start = (small, outcome) if outcome is not None else self._own
        self._single: dict[str, Calls] = {label: [] for label in search.varying}  # calls with one size changed
        self._several: Calls = []
        self._looked = False
        for label, multiple in search.varying.items():
            for other in others_of(small[label], multiple, {*small.values()}):
                self._look({label: other}, self._single[label])

    def _look(self, changed: dict[str, int], into: Calls) -> None:
        sizes = self._search.complete({**self._start[0], **changed})
        outcome = self._search.outcome(sizes)
        if outcome is not None:
            into.append((sizes, outcome))

    def fit(self, index: int, axis: int) -> str | int | SizeFormula | None:
        """What a size of an output is at every call; None where that was not found out."""
        calls = [self._own, self._start, *(call for calls in self._single.values() for call in calls)]
        seen: list[Sample] = [(sizes, outcome.shapes[index][axis]) for sizes, outcome in calls]
        if len({found for _, found in seen}) == 1:
            return seen[0][1]
        for label in self._search.moving:
            if all(sizes[label] == found for sizes, found in seen):
                return label
        return self._formula(index, axis)

    def _formula(self, index: int, axis: int) -> SizeFormula | None:
        self._look_closer()

        def sample(call: tuple[dict[str, int], TrialOutcome]) -> Sample:
            return call[0], call[1].shapes[index][axis]

        steps = {label: [sample(call) for call in calls] for label, calls in self._single.items()}
        return fit_formula(sample(self._start), steps, [sample(call) for call in (self._own, *self._several)])

    def _look_closer(self) -> None:
        """Call with every size changed a little, alone and with others: once, where an output needs a formula."""
        if self._looked:
            return
        self._looked = True
        small, varying = self._start[0], self._search.varying
        for label, multiple in varying.items():
            for step in _STEPS:
                if small[label] + step * multiple > 0:
                    self._look({label: small[label] + step * multiple}, self._single[label])
        for rounds in (1, 2, 3):
            changed = {
                label: small[label] + (1 + (number * rounds) % 4) * multiple
                for number, (label, multiple) in enumerate(varying.items(), rounds)
            }
            self._look(changed, self._several)

    def source_of(self, index: int, axis: int) -> str:
        """A varying label that decides this size of an output."""
        start = self._start[1].shapes[index][axis]
        sources = [
            label
            for label, calls in self._single.items()
            if any(outcome.shapes[index][axis] != start for _, outcome in calls)
        ]
        # The smallest first: of an image and a filter, the filter.
        return min(sources or self._search.varying, key=self._search.size_of)


# -- how small the sizes that vary may be --


def _find_least(search: SizeSearch) -> bool:
    """Find the least sizes that are taken together, and beside which every other may be large.

    One that may not be large beside them, as a filter beside a small image, is held; the answer says whether one was.
    """
    held = False
    search.trials.prolong(_PROLONGED)  # without them a kernel would be tried at sizes that the reference refuses
    while search.trials.spent < _MOST_SPENT:
        least = _joint_least(search)
        large = next((label for label in search.varying if not _large_beside(search, least, label)), None)
        if search.trials.spent >= _MOST_SPENT:
            break
        if large is None:
            search.at_least |= {label: least[label] for label in search.varying if _says_more(search, least, label)}
            break
        search.hold(large, "how large it may be depends on other sizes")
        held = True
    return held


def _joint_least(search: SizeSearch) -> dict[str, int]:
    """Every size as small as it can be made beside the others, the smaller first: filters before images."""
    sizes = search.small_sizes()
    for label in sorted(search.varying, key=search.size_of):
        multiple = search.varying[label]
        first = -(-search.at_least.get(label, 1) // multiple)
        refused, taken = first - 1, max(sizes[label] // multiple, first)
        middle = first
        while taken - refused > 1:
            if _works(search, {**sizes, label: middle * multiple}):
                taken = middle
            else:
                refused = middle
            middle = (refused + taken) // 2
        sizes = search.complete({**sizes, label: taken * multiple})
    return sizes


def _says_more(search: SizeSearch, least: Mapping[str, int], label: str) -> bool:
    """Whether a least size is more than the multiple, and than formulas say: no size that follows is below 1."""
    smaller = least[label] - search.varying[label]
    return smaller > 0 and search.is_sound(search.complete({**least, label: smaller}))


def _large_beside(search: SizeSearch, least: Mapping[str, int], label: str) -> bool:
    sizes = {**least, label: max(search.varying[label] * _LARGE, least[label])}
    return not search.is_sound(search.complete(sizes)) or _works(search, sizes)


def _works(search: SizeSearch, sizes: Mapping[str, int]) -> bool:
    completed = search.complete(sizes)
    return search.is_sound(completed) and search.outcome(completed) is not None
