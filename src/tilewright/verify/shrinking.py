"""The smallest case that still fails: a fault is easier to see in one row of seventeen than in a thousand of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace

from tilewright.records import Case, Crashed, Dimension, Evidence, Task, WrongValues

MOST_RUNS = 12
MOST_SECONDS = 4.0

Attempt = Callable[[Case], Evidence | None]
Located = Crashed | WrongValues


def smallest_failing(task: Task, case: Case, evidence: Located, attempt: Attempt) -> Located:
    """Shrink one varying dimension after another while `attempt` still finds the fault, and it still looks the same.

    What follows from a dimension shrinks with it.
    """
    deadline = time.monotonic() + MOST_SECONDS
    runs = 0
    for dimension in sorted(task.free, key=lambda one: -case.sizes[one.name]):
        for size in _smaller(dimension, case.sizes[dimension.name]):
            if runs >= MOST_RUNS or time.monotonic() > deadline:
                return evidence
            sizes = task.complete({**case.sizes, dimension.name: size})
            if not task.is_sound(sizes):
                continue
            candidate = replace(case, sizes=sizes)
            found = attempt(candidate)
            runs += 1
            if found is not None and _looks(found) == _looks(evidence):
                assert isinstance(found, (Crashed, WrongValues))
                case, evidence = candidate, found
                break
    return evidence


def _looks(evidence: Evidence) -> Hashable:
    """One wrong element of one tells less than the last three of each row, so the pattern must stay."""
    if isinstance(evidence, WrongValues):
        return tuple((one.output, one.pattern, one.wrong > 1) for one in evidence.outputs)
    if isinstance(evidence, Crashed):
        return evidence.fault, frozenset(one.kind for one in evidence.findings)
    return type(evidence).__name__


def _smaller(dimension: Dimension, size: int) -> Iterator[int]:
    """Ever larger sizes below the present one."""
    if not dimension.varies:
        return
    unit = dimension.multiple_of
    seen: set[int] = set()
    for wanted in (1, 2, size // 8, size // 4, size // 2):
        smaller = -(-max(wanted, dimension.at_least) // unit) * unit
        if smaller < size and smaller not in seen:
            seen.add(smaller)
            yield smaller
