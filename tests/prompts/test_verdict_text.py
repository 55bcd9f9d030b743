"""Verdicts in words: build errors with their lines, findings with theirs, wrong values with the case, all bounded."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.prompts.samples import CASE, CRASHED, KERNEL, NOT_BUILT, PASSED, WRONG

from tilewright.kernel_file import KernelFileError, parse
from tilewright.prompts.verdict_text import verdict_text, verdict_words
from tilewright.records import (
    BadPlan,
    BadReply,
    BuildFailure,
    BuildRequest,
    Case,
    CaseResult,
    CaseStatus,
    Crashed,
    Declined,
    Duplicate,
    FailureReason,
    FaultKind,
    FindingKind,
    Impossible,
    NotBuilt,
    Passed,
    PlanProblem,
    Rejected,
    Unstable,
    Unsupported,
    Verdict,
)
from tilewright.toolchain import build

EVERY: list[Verdict] = [
    PASSED,
    NOT_BUILT,
    CRASHED,
    WRONG,
    Rejected(BadReply("no fence")),
    Rejected(
        BadPlan(
            (PlanProblem(3, 24, "unknown-name", "`torch.float32`", "write f32", "//! need x.dtype == torch.float32"),)
        )
    ),
    Rejected(Declined(CASE, "line 4: need cols % 8 == 0 (cols = 1001)")),
    Rejected(Crashed(CASE, FaultKind.STOPPED, "deadlock", "f", 9)),
    Rejected(Unstable(CASE, ("y",))),
    Rejected(Impossible("x must be read whole, 33.6 MB, and 4.2 MB are read", 4.2e6, 33.6e6, "bytes")),
    Rejected(Duplicate(3)),
    Unsupported("wgmma.mma_async at line 40 is not emulated"),
]


@pytest.mark.parametrize("verdict", EVERY, ids=lambda v: type(getattr(v, "evidence", v)).__name__)
def test_every_verdict_has_words(verdict: Verdict) -> None:
    assert 4 < len(verdict_words(verdict)) < 120
    assert "\n" not in verdict_words(verdict)
    assert 20 < len(verdict_text(verdict, KERNEL)) < 5000


def _built_wrong(source: str) -> NotBuilt:
    failure = build(BuildRequest(source, (), ("k",), "sm_90a", "kernel.cu"), isolated=False, cache=None)
    assert isinstance(failure, BuildFailure)
    return NotBuilt(failure.reason, failure.diagnostics, (("WARPS", 4),))


def test_build_errors_of_the_compiler_quote_their_lines() -> None:
    source = (
        "__global__ void k(float* y) {\n  int i = threadIdx.x;\n  float v = valu(i);\n  y[i] = v;\n  y[j] = w;\n}\n"
    )
    said = verdict_text(Rejected(_built_wrong(source)), source)
    assert "with WARPS = 4" in said
    assert '- line 3: identifier "valu" is undefined' in said
    assert "  >    3 |   float v = valu(i);" in said
    assert "       1 | __global__ void k(float* y) {" in said
    assert '- line 5: identifier "j" is undefined' in said


def test_only_the_first_errors_are_shown() -> None:
    source = "__global__ void k(float* y) {\n" + "".join(f"  y[{i}] = missing_{i};\n" for i in range(12)) + "}\n"
    said = verdict_text(Rejected(_built_wrong(source)), source)
    assert "missing_5" in said
    assert "> " in said
    assert 'identifier "missing_6"' not in said
    assert "(and 6 more errors)" in said


def test_endless_messages_are_cut_in_the_middle() -> None:
    evidence = NOT_BUILT.evidence
    assert isinstance(evidence, NotBuilt)
    endless = replace(
        evidence.diagnostics[0], message=f'"auto" type is {"cute::tuple<" * 40_000} twice', notes=("n" * 9000,) * 9
    )
    said = verdict_text(Rejected(NotBuilt(FailureReason.DIAGNOSTICS, (endless,))), KERNEL)
    assert len(said) < 1600
    assert '"auto" type is' in said
    assert said.count("twice") == 1


def test_problems_of_a_plan_come_with_their_remedy() -> None:
    plan = (
        "//! op f(x) -> y\n//! out y: x.dtype[x.shape]\n//! need x.dtype == float\n//! launch f<<<1, n>>>(x, y)\n"
        "__global__ void f(const float* x, float* y) {}\n"
    )
    with pytest.raises(KernelFileError) as caught:
        parse(plan)
    lines = plan.split("\n")
    found = tuple(
        PlanProblem(p.line, p.column, p.code.value, p.found, p.remedy, lines[p.line - 1]) for p in caught.value.problems
    )
    said = verdict_text(Rejected(BadPlan(found)), plan)
    for one in found:
        assert f"line {one.line}, column {one.column}: {one.code}: {one.message}; {one.remedy}" in said
    assert "4 | //! launch f<<<1, n>>>(x, y)" in said


def test_findings_have_thread_place_line_and_remedy() -> None:
    said = verdict_text(CRASHED, KERNEL)
    assert "At rows=3, cols=1001, seed 7" in said
    assert "thread 31 of block 2: global access outside every tensor: 2 bytes after the end of x" in said
    assert f"  >   87 | {KERNEL.splitlines()[86]}" in said
    assert "the other is thread 0 of block 2 at line 58" in said
    assert f"  >   54 | {KERNEL.splitlines()[53]}" in said
    assert f"  >   58 | {KERNEL.splitlines()[57]}".rstrip() in said
    assert "put a barrier" in said
    assert "Right before that: rows=1, cols=8, seed 1." in said


def test_findings_quote_the_lines_on_record_where_the_file_is_not_at_hand() -> None:
    evidence = CRASHED.evidence
    assert isinstance(evidence, Crashed)
    said = verdict_text(Rejected(replace(evidence, source_lines=((87, "  float4 v = x[i];"),))))
    assert "  87 |   float4 v = x[i];" in said


def test_wrong_values_name_the_case_the_elements_and_where_it_is_right() -> None:
    said = verdict_text(WRONG)
    assert "smallest case found to fail: rows=3, cols=1001, seed 7" in said
    assert "27 of 3,003 elements wrong (the last elements)" in said
    assert "from column 992 on" in said
    assert "y[0, 992]: expected 0.5, got 0" in said
    assert "PyTorch's own worst error here is 0.0038" in said
    assert "These cases are right: rows=1, cols=1024, seed 1; rows=4, cols=64, seed 2." in said


def test_what_was_declined_or_not_run_is_said_of_a_file_that_passed() -> None:
    declined = CaseResult(Case({"cols": 7}, 1), CaseStatus.DECLINED, "")
    said = verdict_text(Passed((*PASSED.cases, declined), ("The task's own sizes are too large to emulate.",)))
    assert said.startswith("Right in 2 cases, worst error 0.3")
    assert "1 case declined, such as cols=7, seed 1." in said
    assert said.endswith("too large to emulate.")
    large = CaseResult(Case({"cols": 4096}, 1), CaseStatus.TOO_LARGE, "")
    once = verdict_text(Passed((*PASSED.cases, large), ("not run at the task's own sizes, which are too large",)))
    assert once.endswith("rows=3, cols=1024, seed 1. Not run at the task's own sizes, which are too large.")
    assert "1 case too large to run here, such as cols=4096" in verdict_text(Passed((*PASSED.cases, large)))


def test_every_kind_of_finding_can_be_told() -> None:
    evidence = CRASHED.evidence
    assert isinstance(evidence, Crashed)
    for kind in FindingKind:
        one = replace(evidence.findings[0], kind=kind, line=None, thread=None)
        assert kind.value in verdict_text(Rejected(replace(evidence, findings=(one,))), KERNEL)
