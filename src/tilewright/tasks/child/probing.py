"""Inside the child: which sizes of a function's tensors hang together, which may vary, and what it returns.

Nothing is concluded from the source: the function is called at other sizes, and what it accepts is believed, as long as
it answers what it asks of sizes and numbers as it does at its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tilewright.records import TaskOutput
from tilewright.tasks.child.domain_search import DomainSearch
from tilewright.tasks.child.input_values import settle_values
from tilewright.tasks.child.size_fitting import Fitting, Reading
from tilewright.tasks.child.size_search import SizeSearch
from tilewright.tasks.child.trials import TrialOutcome, Trials, single_thread
from tilewright.tasks.questions import BoundAnswer, ProbeAnswer, ProbeRequest

_SECONDS = 40.0  # after which what was not tried counts as fixed
_LARGE = 67  # times its multiple: a size that a kernel is tried at beside small ones
_PROLONGED = 0.4  # of what was allowed before
_MOST_SPENT = 0.95  # of the trials, after which refusals say nothing


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
        domain = DomainSearch(search, nominal, request.numbers)
        held = _find_least(search)
        if domain.restrict() or held:
            outputs = _fit_outputs(search, nominal)
    tensors = [
        replace(one, dimensions=search.labels_of(position), in_place=one.name in nominal.changed)
        for position, one in enumerate(request.tensors)
    ]
    tensors, notes = settle_values(function, tensors, {*request.unsaid}, request.numbers, search)
    return ProbeAnswer(
        tuple(tensors),
        search.dimensions(),
        outputs,
        (*search.notes, *notes),
        domain.bounded(request.numbers),
    )


def bound(function: Callable[..., Any], request: ProbeRequest) -> BoundAnswer:
    """The dimensions that were described, and the numbers, bounded where the reference goes another way beyond."""
    search = SizeSearch(Trials(function, request.tensors, request.numbers, _SECONDS), request)
    nominal = search.nominal()
    search.believe()
    domain = DomainSearch(search, nominal, request.numbers)
    with single_thread():
        domain.restrict()
    return BoundAnswer(search.dimensions(), domain.bounded(request.numbers), tuple(search.notes))


# -- the sizes of what it returns --


def _fit_outputs(search: SizeSearch, nominal: TrialOutcome) -> tuple[TaskOutput, ...]:
    """The outputs' sizes: a label, a number, or a label that follows by a formula.

    A dimension that decides a size for which no formula is found is held fixed.
    """
    while True:
        fitting = Fitting(search, nominal)
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
        search.hold(sources[0], "the size of an output is computed from it")


def _size_of_output(index: int, axis: int) -> Reading:
    return lambda outcome: outcome.shapes[index][axis]


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
            bounded = {label: least[label] for label in search.varying if _says_more(search, least, label)}
            search.at_least |= bounded
            search.unless |= {label: found for label in bounded if (found := _lifting(search, least, label))}
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


def _lifting(search: SizeSearch, least: Mapping[str, int], label: str) -> tuple[str, ...]:
    """The sizes of which each, made larger, lets this one be as small as any: of a mean over several, one is enough."""
    smallest = {**least, label: search.varying[label]}
    others = [(one, unit) for one, unit in search.varying.items() if one != label]
    return tuple(one for one, unit in others if _works(search, {**smallest, one: least[one] + unit}))


def _large_beside(search: SizeSearch, least: Mapping[str, int], label: str) -> bool:
    sizes = {**least, label: max(search.varying[label] * _LARGE, least[label])}
    # Where it goes another way it is bounded by itself.
    return not search.is_sound(search.complete(sizes)) or _works(search, sizes) or search.strays(sizes)


def _works(search: SizeSearch, sizes: Mapping[str, int]) -> bool:
    completed = search.complete(sizes)
    return search.is_sound(completed) and search.outcome(completed) is not None
