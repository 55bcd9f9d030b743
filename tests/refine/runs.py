"""Runs and attempts to decide from."""

from __future__ import annotations

from typing import Any

from tilewright.records import (
    Attempt,
    BadReply,
    Case,
    Dimension,
    DType,
    Duplicate,
    Environment,
    FailureReason,
    Modelled,
    NotBuilt,
    NothingBetter,
    Passed,
    Rejected,
    Run,
    Settings,
    Stage,
    Task,
    TaskOutput,
    TensorInput,
    WrongValues,
)

TASK = Task(
    name="double",
    reference="def double(x):\n    return x * 2\n",
    function="double",
    inputs=(TensorInput("x", DType.F32, ("n",)),),
    outputs=(TaskOutput("y", DType.F32, ("n",)),),
    dimensions=(Dimension("n", 4096),),
)
ENVIRONMENT = Environment("0.1.0", "3.11", "2.13.0", "NVRTC 13.0", "H200 (emulated)", "Linux", emulated=True)

GOOD = Passed(())
WRONG = Rejected(WrongValues(Case({"n": 7}, 0), ()))
UNREADABLE = Rejected(BadReply("no code block"))
NOTHING = Rejected(NothingBetter("memory is at its least"))


def not_built() -> Rejected:
    return Rejected(NotBuilt(FailureReason.DIAGNOSTICS, ()))


def duplicate(number: int) -> Rejected:
    return Rejected(Duplicate(number))


def attempt(number: int, stage: Stage, verdict: Any, time_us: float | None = None) -> Attempt:
    measurement = None
    if time_us is not None:
        measurement = Modelled("H200", {"n": 4096}, (), time_us, 10.0, 1.0, 0, 1, 1, 1)
    return Attempt(number, number, stage, None, f"attempt {number}", f"kernel {number}", verdict, measurement)


def run_of(*attempts: Attempt, settings: Settings | None = None) -> Run:
    return Run("r", "2026-01-01T00:00:00Z", TASK, settings or Settings("playbook"), ENVIRONMENT, tuple(attempts))
