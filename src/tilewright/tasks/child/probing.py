"""Runs in the child: finds the dimensions of a function's tensors, which of them are dynamic, and the outputs.

The source is not analysed. The function is called at other sizes; sizes that it accepts while taking the same branches
are taken as valid.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tilewright.records import TaskOutput
from tilewright.tasks.child.domain_search import DomainSearch
from tilewright.tasks.child.input_values import find_values
from tilewright.tasks.child.size_fitting import SizeFitter, SizeReader
from tilewright.tasks.child.size_search import SizeSearch
from tilewright.tasks.child.trials import TrialOutcome, Trials, single_thread
from tilewright.tasks.questions import BoundAnswer, ProbeAnswer, ProbeRequest

_SECONDS = 40.0  # dimensions not tried by then are static
_LARGE = 67  # times the multiple: a size tried beside small ones
_PROLONGED = 0.4  # of the limits so far
_MOST_SPENT = 0.95  # of the limits; refusals beyond it mean nothing


def probe(function: Callable[..., Any], request: ProbeRequest) -> ProbeAnswer:
    """Find everything about shapes by calling the function."""
    for for_real in (False, True):
        search = SizeSearch(Trials(function, request.tensors, request.numbers, _SECONDS, for_real), request)
        nominal = search.nominal()
        with single_thread():
            search.shrink()
            if request.unlink:
                search.unlink()
            search.find_varying()
            outputs = _fit_outputs(search, nominal)
            if search.holds():  # else meta tensors accepted what real ones refuse
                break
    with single_thread():
        domain = DomainSearch(search, nominal, request.numbers)
        held = _find_least(search)
        if domain.restrict() or held:
            outputs = _fit_outputs(search, nominal)
    tensors = [
        replace(one, dimensions=search.labels_of(position), in_place=one.name in nominal.changed)
        for position, one in enumerate(request.tensors)
    ]
    tensors, notes = find_values(function, tensors, {*request.unspecified}, request.numbers, search)
    return ProbeAnswer(
        tuple(tensors),
        search.dimensions(),
        outputs,
        (*search.notes, *notes),
        domain.bounded(request.numbers),
    )


def bound(function: Callable[..., Any], request: ProbeRequest) -> BoundAnswer:
    """The described dimensions and numbers, with bounds beyond which the reference takes another branch."""
    search = SizeSearch(Trials(function, request.tensors, request.numbers, _SECONDS), request)
    nominal = search.nominal()
    search.use_described()
    domain = DomainSearch(search, nominal, request.numbers)
    with single_thread():
        domain.restrict()
    return BoundAnswer(search.dimensions(), domain.bounded(request.numbers), tuple(search.notes))


# -- output sizes --


def _fit_outputs(search: SizeSearch, nominal: TrialOutcome) -> tuple[TaskOutput, ...]:
    """The outputs. A dimension becomes static if no formula is found for an output size that depends on it."""
    while True:
        fitting = SizeFitter(search, nominal)
        fitted = [
            [fitting.fit(_size_of_output(index, axis)) for axis in range(len(shape))]
            for index, shape in enumerate(nominal.shapes)
        ]
        unfit = [(index, row.index(None)) for index, row in enumerate(fitted) if None in row]
        if not unfit:
            return tuple(
                TaskOutput(f"y{index}", dtype, tuple(search.follow(size) for size in row if size is not None))
                for index, (dtype, row) in enumerate(zip(nominal.dtypes, fitted, strict=True))
            )
        sources = fitting.sources(_size_of_output(*unfit[0])) or sorted(search.varying, key=search.size_of)
        search.fix(sources[0], "the size of an output is computed from it")


def _size_of_output(index: int, axis: int) -> SizeReader:
    return lambda outcome: outcome.shapes[index][axis]


# -- least sizes --


def _find_least(search: SizeSearch) -> bool:
    """Find least sizes that work together, and with each size large. True if a dimension became static.

    A dimension that cannot be large beside them, such as a filter beside a small image, becomes static.
    """
    held = False
    search.trials.prolong(_PROLONGED)  # else a kernel would be tested at sizes that the reference refuses
    while search.trials.spent < _MOST_SPENT:
        least = _joint_least(search)
        large = next((label for label in search.varying if not _may_be_large(search, least, label)), None)
        if search.trials.spent >= _MOST_SPENT:
            break
        if large is None:
            bounded = {label: least[label] for label in search.varying if _is_bound(search, least, label)}
            search.at_least |= bounded
            search.unless |= {label: found for label in bounded if (found := _alternatives(search, least, label))}
            break
        search.fix(large, "its largest value depends on other sizes")
        held = True
    return held


def _joint_least(search: SizeSearch) -> dict[str, int]:
    """Minimise every size beside the others, smaller ones first: filters before images."""
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


def _is_bound(search: SizeSearch, least: Mapping[str, int], label: str) -> bool:
    """Whether a least size is a bound of its own, and not just the multiple or a formula that must stay positive."""
    smaller = least[label] - search.varying[label]
    return smaller > 0 and search.is_sound(search.complete({**least, label: smaller}))


def _alternatives(search: SizeSearch, least: Mapping[str, int], label: str) -> tuple[str, ...]:
    """The dimensions of which each, made larger, lifts this bound: a mean needs only one dimension above 1."""
    smallest = {**least, label: search.varying[label]}
    others = [(one, unit) for one, unit in search.varying.items() if one != label]
    return tuple(one for one, unit in others if _works(search, {**smallest, one: least[one] + unit}))


def _may_be_large(search: SizeSearch, least: Mapping[str, int], label: str) -> bool:
    sizes = {**least, label: max(search.varying[label] * _LARGE, least[label])}
    # Another branch gives a bound of its own.
    return not search.is_sound(search.complete(sizes)) or _works(search, sizes) or search.takes_other_branch(sizes)


def _works(search: SizeSearch, sizes: Mapping[str, int]) -> bool:
    completed = search.complete(sizes)
    return search.is_sound(completed) and search.outcome(completed) is not None
