"""A suite as KernelBench writes its own: `eval_results.json` of one sample a problem, and the times of its baselines.

With the three files KernelBench's `benchmark_eval_analysis.py` computes its figures. Its times are milliseconds, and
-1 where there is none; a modelled time is none.
"""

from __future__ import annotations

import statistics
from typing import Any

from tilewright.records import Timing
from tilewright.suites.statistics import COMPILED, EAGER
from tilewright.suites.suite_records import Status, Suite, TaskRecord

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
    said = {
        "hardware": record.measured.gpu if record.measured else suite.device,
        "author": suite.settings.author,
        "tilewright": suite.tilewright,
        "kernel": record.kernel,
        "status": record.status.value,
        "reason": record.reason,
        "provisional": "not all of it was judged at the task's own size" if record.provisional else "",
        "degenerate": record.degenerate,
    }
    return {name: text for name, text in said.items() if text}


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
