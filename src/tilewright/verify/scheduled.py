"""Choose the few cases that run under several schedules, and those that are emulated where a GPU runs the rest."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tilewright.kernel_file import Evaluation
from tilewright.records import Case, GpuProfile, Launch, Task
from tilewright.records.gpu import WARP_LANES
from tilewright.verify.candidate import Candidate
from tilewright.verify.case_sizes import has_own_size
from tilewright.verify.case_work import work_estimate

_MANY_BLOCKS, _CROWD = 8, 200
_LITTLE_WORK = 1 << 15

Wanted = Callable[[Launch], bool]


def _several(launch: Launch) -> bool:
    return math.prod(launch.grid) > 1 and -(-math.prod(launch.block) // WARP_LANES) > 1


# One case for each: any; several blocks of several warps; enough blocks that the last to finish is seldom the last one;
# more than a GPU can start at once on a few of its multiprocessors.
_KINDS: tuple[Wanted, ...] = (
    lambda launch: True,
    _several,
    lambda launch: math.prod(launch.grid) >= _MANY_BLOCKS,
    lambda launch: math.prod(launch.grid) >= _CROWD,
)


def scheduled_cases(candidate: Candidate, cases: Sequence[Case], gpu: GpuProfile) -> frozenset[int]:
    """Indices of the first case of each kind, one kind per case.

    Long cases, with a dimension at full size, are used only where no other has several blocks of several warps.
    """
    found: dict[Wanted, int] = {}
    long = {number for number, case in enumerate(cases) if has_own_size(candidate.task, case)}
    for number in sorted(range(len(cases)), key=lambda number: number in long):
        if len(found) == len(_KINDS) or (number in long and _several in found):
            break
        evaluation = candidate.evaluate(cases[number], gpu)
        if not isinstance(evaluation, Evaluation):
            continue
        launches = [step for step in evaluation.steps if isinstance(step, Launch)]
        fits = next((one for one in _KINDS if one not in found and any(map(one, launches))), None)
        if fits is not None:
            found[fits] = number
    return frozenset(found.values())


def several_of_each(task: Task, cases: Sequence[Case]) -> frozenset[int]:
    """Indices of short cases in which, together, every dimension exceeds one, and each takes its largest size with
    little work. A race between two iterations of a loop needs two of them, and a GPU may still compute the right
    result."""
    found: dict[str, int] = {}
    longest: dict[str, int] = {}
    estimate = work_estimate(task)
    for number, case in enumerate(cases):
        if has_own_size(task, case):
            continue
        larger = {name: size for name, size in case.sizes.items() if size > 1}
        found.update(dict.fromkeys(larger.keys() - found.keys(), number))
        if estimate(case.sizes) <= _LITTLE_WORK:
            beyond = (name for name, size in larger.items() if size > cases[longest.get(name, number)].sizes[name])
            longest.update(dict.fromkeys({*beyond, *(larger.keys() - longest.keys())}, number))
    return frozenset({*found.values(), *longest.values()})
