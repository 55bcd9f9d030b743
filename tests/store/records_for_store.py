"""Records to store: a small task, settings, an environment, questions, replies and attempts."""

from __future__ import annotations

import hashlib

from tilewright.records import (
    Attempt,
    Budget,
    Case,
    CaseResult,
    CaseStatus,
    Dimension,
    DType,
    Environment,
    Measurement,
    Message,
    Modelled,
    ModelTerm,
    Passed,
    Question,
    Rejected,
    Reply,
    Role,
    Settings,
    Stage,
    StopReason,
    Task,
    TaskOutput,
    TensorInput,
    TuneResult,
    Usage,
    Verdict,
)
from tilewright.records.verdict import Duplicate

KERNEL_TEXT = "//! op      double_it(x) -> y\r\n// naïve\n"

TASK = Task(
    name="double_it",
    reference="def double_it(x):\n    return x * 2\n",
    function="double_it",
    inputs=(TensorInput("x", DType.F32, ("n",)),),
    outputs=(TaskOutput("y", DType.F32, ("n",)),),
    dimensions=(Dimension("n", 1000),),
)
SETTINGS = Settings(author="replay:somewhere", budget=Budget(attempts=5))
ENVIRONMENT = Environment("0.1.0", "3.11", "2.9", "NVRTC 13.0", "H200 (emulated)", "Linux x86_64", emulated=True)
PASSED = Passed((CaseResult(Case({"n": 7}, 1), CaseStatus.RIGHT, "H200 (emulated)", 0.25, emulated=True),))


def question(number: int, k: int = 1, text: str = "write it") -> Question:
    return Question(f"{number:04d}-{k}", "you write kernels", (Message(Role.USER, text),))


def reply(text: str = "here: \ud800 ü", dollars: float | None = 0.01) -> Reply:
    return Reply("replay:somewhere", text, StopReason.END, Usage(100, 10), dollars, 1.5)


def modelled(time_us: float) -> Modelled:
    return Modelled("H200", {"n": 1000}, (ModelTerm("issue slots", time_us, "x"),), time_us, 1.0, 0.5, 0, 4, 8, 1)


def attempt(
    number: int,
    time_us: float | None = None,
    *,
    verdict: Verdict = PASSED,
    measurement: Measurement | None = None,
    stage: Stage = Stage.STRUCTURE,
    text: str = "",
) -> Attempt:
    """`text`: of its file; without it the record has no identity of one."""
    return Attempt(
        number=number,
        step=number,
        stage=Stage.DRAFT if number == 1 else stage,
        parent=None if number == 1 else 1,
        summary=f"step {number}",
        kernel=hashlib.sha256(text.encode()).hexdigest()[:20] if text else f"{number:x}",
        verdict=verdict,
        measurement=modelled(time_us) if time_us else measurement,
        tune=TuneResult((((("WARPS", 4),), 2.0),), (("WARPS", 4),)),
        usage=Usage(100, 10),
        dollars=0.01,
        replies=1,
        seconds=2.0,
    )


DUPLICATE = Rejected(Duplicate(1))
