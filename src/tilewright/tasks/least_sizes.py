"""Inside the child: how small the sizes that vary may be."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.tasks.size_search import SizeSearch

_LARGE = 67  # times its multiple: a size that a kernel is tried at beside small ones
_PROLONGED = 0.4  # of what was allowed before
_MOST_SPENT = 0.95  # of the trials, after which refusals say nothing


def find_least(search: SizeSearch) -> bool:
    """Find the least sizes that are taken together, and beside which every other may be large.

    One that may not be large beside them, as a filter beside a small image, is held; the answer says whether one was.
    """
    held = False
    search.prolong(_PROLONGED)  # without them a kernel would be tried at sizes that the reference refuses
    while search.spent < _MOST_SPENT:
        least = _joint_least(search)
        large = next((label for label in search.varying if not _large_beside(search, least, label)), None)
        if search.spent >= _MOST_SPENT:
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
