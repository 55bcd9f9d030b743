"""A suite in numbers: how many kernels are right, and how fast they are beside eager, torch.compile and the roofline.

As KernelBench counts: fast_p is the fraction of all tasks whose kernel is right and more than p times as fast as a
baseline, so fast_0 is the fraction that is right. Means are over the tasks that have a kernel and that baseline.
Modelled times have no baselines and are part of no figure but fast_0.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from tilewright.suites.suite_records import Status, TaskRecord

EAGER, COMPILED, BETTER = "eager", "torch.compile", "the better of the two"
BASELINES = (EAGER, COMPILED, BETTER)
THRESHOLDS = (0.0, 1.0, 1.5, 2.0)
AS_FAST = 0.98  # of a baseline: below it a kernel is called slower


@dataclass(frozen=True)
class Against:
    """All tasks beside one baseline."""

    name: str
    compared: int  # tasks with a kernel and this baseline
    fast: tuple[tuple[float, float], ...]  # (p, fraction of all tasks)
    arithmetic_mean: float | None
    geometric_mean: float | None
    slower: tuple[str, ...]  # names of tasks whose kernel is slower than it


@dataclass(frozen=True)
class Summary:
    """A suite in numbers. Fractions are of all its tasks."""

    tasks: int
    counts: dict[str, int]  # by status; "waiting": not done yet
    verified: int  # kernels that are not merely provisional
    against: tuple[Against, ...]  # those that were timed beside some kernel
    roofline_median: float | None  # fraction of the roofline that measured kernels reach
    roofline_geometric_mean: float | None
    seconds: float  # of all tasks, one after the other


def baseline_us(record: TaskRecord, name: str) -> float | None:
    """What a baseline took beside the kernel of a task; None where it was not timed."""
    measured = record.measured
    if measured is None or record.status is not Status.MADE:
        return None
    times = {one.name: one.median_us for one in measured.baselines}
    if name == BETTER:
        both = [times[one] for one in (EAGER, COMPILED) if one in times]
        return min(both) if len(both) == 2 else None
    return times.get(name)


def speedup(record: TaskRecord, name: str) -> float | None:
    """How many times as fast as a baseline the kernel of a task is."""
    took_us, measured = baseline_us(record, name), record.measured
    return took_us / measured.time_us if took_us is not None and measured is not None else None


def fast_p(speedups: Iterable[float], p: float, tasks: int) -> float:
    return sum(one > p for one in speedups) / tasks if tasks else 0.0


def geometric_mean(values: Iterable[float]) -> float | None:
    logs = [math.log(one) for one in values]
    return math.exp(statistics.fmean(logs)) if logs else None


def summarise(records: tuple[TaskRecord, ...], tasks: int) -> Summary:
    """The numbers of a suite of so many tasks, from those that are done."""
    made = [one for one in records if one.status is Status.MADE]
    counts = {status.value: sum(one.status is status for one in records) for status in Status}
    reached = [one.measured.fraction for one in made if one.measured is not None]
    against = (_against(made, name, tasks) for name in BASELINES)
    return Summary(
        tasks=tasks,
        counts=counts | {"waiting": tasks - len(records)},
        verified=sum(not one.provisional for one in made),
        against=tuple(one for one in against if one.compared),
        roofline_median=statistics.median(reached) if reached else None,
        roofline_geometric_mean=geometric_mean(reached),
        seconds=sum(one.seconds for one in records),
    )


def _against(made: list[TaskRecord], name: str, tasks: int) -> Against:
    found = {one.name: ratio for one in made if (ratio := speedup(one, name)) is not None}
    right = (0.0, len(made) / tasks if tasks else 0.0)
    return Against(
        name=name,
        compared=len(found),
        fast=(right, *((p, fast_p(found.values(), p, tasks)) for p in THRESHOLDS[1:])),
        arithmetic_mean=statistics.fmean(found.values()) if found else None,
        geometric_mean=geometric_mean(found.values()),
        slower=tuple(task for task, ratio in found.items() if ratio < AS_FAST),
    )
