"""Runs in the child: fits formulas to sizes observed in calls at small sizes."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.records import SizeFormula
from tilewright.tasks.child.size_formulas import Sample, fit_formula
from tilewright.tasks.child.size_search import SizeSearch, others_of
from tilewright.tasks.child.trials import TrialOutcome

_STEPS = (*range(1, 10), -1, -2, -3)  # steps to neighbouring sizes, which show rounding

Calls = list[tuple[dict[str, int], TrialOutcome]]
SizeReader = Callable[[TrialOutcome], int | None]  # a size observed in a call; None if there is none, or several


class SizeFitter:
    """Calls at small sizes, and their outcomes."""

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

    def fit(self, reading: SizeReader) -> str | int | SizeFormula | None:
        """The label, number or formula that gives a size in every call; None if none was found."""
        calls = [self._own, self._start, *(call for calls in self._single.values() for call in calls)]
        seen = _samples(calls, reading)
        if seen is None:
            return None
        if len({found for _, found in seen}) == 1:
            return seen[0][1]
        for label in self._search.changing:
            if all(sizes[label] == found for sizes, found in seen):
                return label
        return self._formula(reading)

    def _formula(self, reading: SizeReader) -> SizeFormula | None:
        self._look_closer()
        start = _samples([self._start], reading)
        steps = {label: _samples(calls, reading) for label, calls in self._single.items()}
        others = _samples([self._own, *self._several], reading)
        if start is None or others is None:
            return None
        known = {label: samples for label, samples in steps.items() if samples is not None}
        return fit_formula(start[0], known, others) if len(known) == len(steps) else None

    def _look_closer(self) -> None:
        """Call once with every size changed a little, alone and together."""
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

    def sources(self, reading: SizeReader) -> list[str]:
        """The dynamic labels that a size depends on, smallest first: of an image and a filter, the filter."""
        start = reading(self._start[1])
        deciding = (
            label for label, calls in self._single.items() if any(reading(outcome) != start for _, outcome in calls)
        )
        return sorted(deciding, key=self._search.size_of)


def _samples(calls: Calls, reading: SizeReader) -> list[Sample] | None:
    found = [(sizes, reading(outcome)) for sizes, outcome in calls]
    samples: list[Sample] = [(sizes, size) for sizes, size in found if size is not None]
    return samples if len(samples) == len(found) else None
