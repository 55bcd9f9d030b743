"""Inside the child: the sizes of what a function returns, in terms of the sizes it is given."""

from __future__ import annotations

from tilewright.records import SizeFormula
from tilewright.tasks.fitting import Sample, fit_formula
from tilewright.tasks.probing_records import ProbedOutput
from tilewright.tasks.size_search import SizeSearch, others_of
from tilewright.tasks.trials import Outcome

_STEPS = (*range(1, 10), -1, -2, -3)  # neighbours of a size, by which rounding down shows

Calls = list[tuple[dict[str, int], Outcome]]


def fit_outputs(search: SizeSearch, nominal: Outcome) -> tuple[ProbedOutput, ...]:
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
                ProbedOutput(dtype, tuple(search.follow(size) for size in row if size is not None))
                for dtype, row in zip(nominal.dtypes, fitted, strict=True)
            )
        search.hold(fitting.source_of(*unfit[0]), "the size of an output is computed from it")


class _Fitting:
    """Calls at small sizes, and what came back."""

    def __init__(self, search: SizeSearch, nominal: Outcome) -> None:
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

        def sample(call: tuple[dict[str, int], Outcome]) -> Sample:
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
