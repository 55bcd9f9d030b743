"""A suite in numbers: how many kernels are correct, and their speed beside eager, torch.compile and the roofline.

As in KernelBench, fast_p is the fraction of all tasks whose kernel is correct and more than p times as fast as a
baseline; fast_0 is the fraction that is correct. Means are over the tasks that have a kernel and that baseline.
Modelled times have no baselines and count only for fast_0.

`evaluation` and `baseline_times` write the files that KernelBench's `benchmark_eval_analysis.py` reads. Times there are
in milliseconds, and -1 where there is none; a modelled time is none."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tilewright.records import Timing
from tilewright.suites.suite_folder import Status, Suite, TaskRecord

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
    """The time of a baseline beside the kernel of a task; None if it was not timed."""
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


EVALUATION = "eval_results.json"
BASELINE_FILES = {
    EAGER: "baseline_time_torch.json",
    COMPILED: "baseline_time_torch_compile_inductor_default.json",
}
NO_RUNTIME = -1.0

Json = dict[str, Any]


def evaluation(suite: Suite, records: tuple[TaskRecord, ...]) -> Json:
    """By the number of the problem, a list of one sample."""
    return {one.id: [_sample(suite, one)] for one in records}


def baseline_times(suite: Suite, records: tuple[TaskRecord, ...], name: str) -> Json:
    """By level and file, the statistics of a baseline where it was timed."""
    found: Json = {}
    for record in records:
        measured = record.measured
        timing = next((one for one in measured.baselines if one.name == name), None) if measured else None
        if measured is not None and timing is not None:
            found[f"{record.name}.py"] = _statistics(timing, measured.gpu)
    return {f"level{suite.level}": found}


def _sample(suite: Suite, record: TaskRecord) -> Json:
    right = record.status is Status.MADE
    measured = record.measured if right else None
    stats = _statistics(measured.kernel, measured.gpu) if measured is not None else {}
    return {
        "sample_id": 0,
        "compiled": right or record.status is Status.NONE_PASSED,
        "correctness": right,
        "metadata": _metadata(suite, record),
        "runtime": stats.get("mean", NO_RUNTIME),
        "runtime_stats": stats,
    }


def _metadata(suite: Suite, record: TaskRecord) -> dict[str, str]:
    facts = {
        "hardware": record.measured.gpu if record.measured else suite.device,
        "author": suite.settings.author,
        "tilewright": suite.tilewright,
        "kernel": record.kernel,
        "status": record.status.value,
        "reason": record.reason,
        "provisional": "not all of it was judged at the task's own size" if record.provisional else "",
        "degenerate": record.degenerate,
    }
    return {name: text for name, text in facts.items() if text}


def _statistics(timing: Timing, hardware: str) -> Json:
    times_ms = [one / 1000.0 for one in timing.samples_us]
    return {
        "mean": _rounded(statistics.fmean(times_ms)),
        "std": _rounded(statistics.pstdev(times_ms)),
        "min": _rounded(min(times_ms)),
        "max": _rounded(max(times_ms)),
        "num_trials": len(times_ms),
        "hardware": hardware,
        "device": "cuda:0",
    }


def _rounded(value: float) -> float:
    """Three significant digits would make a kernel of 0.0123 ms its neighbour's equal; four are kept."""
    return float(f"{value:.4g}")
