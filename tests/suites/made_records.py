"""Suites and records made up for tests: three kernels with round times, and tasks without one."""

from __future__ import annotations

from tilewright.records import Measured, Settings, Timing
from tilewright.store import Request
from tilewright.suites import Status, Suite, SuiteTask, TaskRecord


def measured(kernel_us: float, eager_us: float | None, compiled_us: float | None, floor_us: float) -> Measured:
    named = (("eager", eager_us), ("torch.compile", compiled_us))
    baselines = tuple(Timing(name, (time_us,) * 2) for name, time_us in named if time_us is not None)
    return Measured("NVIDIA H200", {"n": 8}, Timing("kernel", (kernel_us, kernel_us)), baselines, floor_us)


def made(id: str, name: str, measurement: Measured | None, **further: object) -> TaskRecord:
    return TaskRecord(id, name, Status.MADE, seconds=10.0, measurement=measurement, **further)  # type: ignore[arg-type]


# x eager: 4, 0.5, 2 and none; x compile: 1, 2, none, none; so x the better of the two: 1, 0.5.
RECORDS = (
    made("1", "1_a", measured(10.0, 40.0, 10.0, 8.0), kernel="kernels/1_a.cu", summary="a | b", attempts=3),
    made("2", "2_b", measured(20.0, 10.0, 40.0, 10.0)),
    made("3", "3_c", measured(5.0, 10.0, None, 1.0), provisional=True),
    made("4", "4_d", None),
    TaskRecord("5", "5_e", Status.UNSUPPORTED, "the playbook does not support the operation convolution", 2.0),
    TaskRecord("6", "6_f", Status.NONE_PASSED, "no step paid any more; the last attempt: wrong values", 8.0),
)


def made_suite(tasks: int = 8, level: int | None = 1) -> Suite:
    listed = tuple(
        SuiteTask(str(one), f"{one}_{chr(96 + one)}", Request(f"/kb/{one}.py")) for one in range(1, tasks + 1)
    )
    return Suite(
        "KernelBench level 1",
        listed,
        Settings("playbook"),
        "H200",
        "NVIDIA H200 (cuda:0)",
        False,
        "2026-11-16T05:00:00+00:00",
        "0.1.0",
        level,
    )
