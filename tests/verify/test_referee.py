"""The referee on real kernels: honest ones in many styles pass, and each way to go wrong is seen and named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from tests.verify import kernels, tasks

from tilewright.devices.child_device import EmulatedDevice
from tilewright.kernel_file import parse
from tilewright.measure.preparation import job_inputs
from tilewright.prompts.verdict_text import verdict_text, verdict_words
from tilewright.records import (
    PROFILES,
    BadPlan,
    Case,
    CaseStatus,
    Completed,
    Crashed,
    Data,
    Declined,
    Dimension,
    Execution,
    Faulted,
    FaultKind,
    FindingKind,
    FindingRecord,
    Job,
    Normal,
    NormalValues,
    NotBuilt,
    NotFaster,
    Part,
    Passed,
    Pattern,
    Precision,
    Rejected,
    Task,
    Unstable,
    Unsupported,
    Watch,
    WrongValues,
)
from tilewright.reference import Reference, ReferenceProblem
from tilewright.verify import Referee, candidate
from tilewright.verify.cases import full_size_cases, plan_cases
from tilewright.verify.distributions import PARTS, TASK, contents

Make = Callable[[Task], Referee]

HONEST = {
    "pointwise": (tasks.DOUBLE, kernels.DOUBLE),
    "one running sum": (tasks.MEAN, kernels.MEAN),
    "sum by a warp": (tasks.MEAN, kernels.MEAN_BY_WARP),
    "sum by atomics": (tasks.TOTAL, kernels.TOTAL_BY_ATOMICS),
    "two-pass normalisation": (tasks.LAYERNORM, kernels.LAYERNORM),
    "online softmax with a fast exponential": (tasks.SOFTMAX, kernels.SOFTMAX_ONLINE),
    "softmax in shared memory": (tasks.SOFTMAX, kernels.SOFTMAX_SHARED),
    "tiled matmul": (tasks.MATMUL, kernels.MATMUL),
    "split matmul": (tasks.MATMUL, kernels.MATMUL_SPLIT),
    "bf16 matmul": (tasks.MATMUL_BF16, kernels.MATMUL_BF16),
    "TF32 where it is allowed": (replace(tasks.MATMUL, precision=Precision.TF32), kernels.MATMUL_TF32),
    "argmax with ties": (tasks.ARGMAX, kernels.ARGMAX),
    "in place": (tasks.ACCUMULATE, kernels.ACCUMULATE),
    "gather": (tasks.ROWS, kernels.ROWS),
    "a reference that takes even sizes only": (tasks.PICKY, kernels.PICKY),
}


QUICK = ("pointwise", "sum by a warp", "softmax in shared memory", "bf16 matmul", "gather")


@pytest.mark.parametrize("name", [one if one in QUICK else pytest.param(one, marks=pytest.mark.slow) for one in HONEST])
def test_honest_kernels_pass(name: str, referee: Make) -> None:
    task, text = HONEST[name]
    verdict = referee(task).judge(text)
    assert isinstance(verdict, Passed), verdict
    right = [one for one in verdict.cases if one.status is CaseStatus.RIGHT]
    assert len(right) >= 4
    assert verdict.error_ratio < 0.8
    assert {(one.device, one.emulated) for one in right} == {("H200 (emulated)", True)}


EXACT_CONVOLVE = replace(tasks.CONVOLVE, precision=Precision.DEFAULT_F32)


def test_a_convolution_in_tf32_is_wrong_where_pytorchs_own_is_f32(referee: Make) -> None:
    rejected = referee(EXACT_CONVOLVE).judge(kernels.CONVOLVE_TF32)
    assert isinstance(rejected, Rejected), rejected
    assert isinstance(rejected.evidence, WrongValues)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "text"), [(tasks.CONVOLVE, kernels.CONVOLVE_TF32), (EXACT_CONVOLVE, kernels.CONVOLVE)]
)
def test_a_convolution_as_exact_as_pytorchs_own_passes(task: Task, text: str, referee: Make) -> None:
    assert isinstance(referee(task).judge(text), Passed)


@pytest.mark.parametrize(
    ("task", "text"),
    [
        pytest.param(replace(tasks.SOFTMAX, leading=(("logits", 2),)), kernels.SOFTMAX_SHARED, marks=pytest.mark.slow),
        (replace(tasks.MEAN, leading=(("samples", 2),)), kernels.MEAN_BY_WARP),
        (replace(tasks.ACCUMULATE, leading=(("y", 1), ("delta", 1))), kernels.ACCUMULATE),
    ],
    ids=lambda one: one.name if isinstance(one, Task) else "",
)
def test_rows_are_judged_under_more_dimensions(task: Task, text: str, referee: Make) -> None:
    verdict = referee(task).judge(text)
    assert isinstance(verdict, Passed), verdict
    right = [one.case for one in verdict.cases if one.status is CaseStatus.RIGHT]
    assert {len(case.leading) for case in right} == {0, 1, 2}
    without = referee(replace(task, leading=())).judge(text)
    assert isinstance(without, Passed)
    assert not any(one.case.leading for one in without.cases)


def test_a_kernel_that_is_right_at_one_rank_alone_is_not_right(referee: Make) -> None:
    text = kernels.PICKY.replace("picky", "by_rank").replace("even", "pile").replace("-x[i]", "2 * x[i]")
    assert isinstance(referee(replace(tasks.BY_RANK, leading=())).judge(text), Passed)
    verdict = referee(tasks.BY_RANK).judge(text)
    assert isinstance(verdict, Rejected)
    assert isinstance(verdict.evidence, WrongValues)
    assert verdict.evidence.case.leading == ("leading_1",)
    assert "leading_1=2" in str(verdict.evidence.case)


UPPER = NormalValues(part=Part.UPPER)
TRIANGLES = replace(
    tasks.MATMUL,
    inputs=(replace(tasks.MATMUL.tensors[0], values=UPPER), replace(tasks.MATMUL.tensors[1], values=UPPER)),
)


def test_zeros_of_the_own_numbers_may_not_be_relied_upon(referee: Make) -> None:
    """What lies below the diagonals is 0 in the task's own call, and the function is asked about other numbers too."""
    text = kernels.MATMUL.replace("k < K ?", "k < K && k >= row ?").replace("j < K &&", "j < K && j <= column &&")
    assert text.count(">= row") == text.count("<= column") == 1
    verdict = referee(TRIANGLES).judge(text)
    assert isinstance(verdict, Rejected), verdict
    assert isinstance(verdict.evidence, WrongValues)


@pytest.mark.slow
def test_a_product_is_right_on_triangles(referee: Make) -> None:
    verdict = referee(TRIANGLES).judge(kernels.MATMUL)
    assert isinstance(verdict, Passed)
    assert any(one.case.values == PARTS and one.status is CaseStatus.RIGHT for one in verdict.cases)


def test_triangles_are_timed_and_one_kind_of_several() -> None:
    """What a `tril` does does not show on triangles: what is found out about a reference is found on whole matrices."""
    assert {one.values for one in plan_cases(TRIANGLES)} > {TASK, PARTS}
    assert [one.values for one in full_size_cases(TRIANGLES)][:3] == [TASK, PARTS, "normal"]
    assert PARTS not in {one.values for one in (*plan_cases(tasks.MATMUL), *full_size_cases(tasks.MATMUL))}
    for values, part in ((TASK, Part.WHOLE), (PARTS, Part.UPPER)):
        drawn = contents(TRIANGLES, Case(TRIANGLES.sizes, 1, values))
        assert drawn is not None
        assert all(isinstance(one, Normal) and one.part is part for one in drawn.values())
    assert all(isinstance(one.content, Normal) and one.content.part is Part.UPPER for one in job_inputs(TRIANGLES))


@dataclass(frozen=True)
class Bad:
    task: Task
    text: str
    evidence: type
    said: str = ""  # in the description or the message
    pattern: Pattern | None = None
    finding: FindingKind | None = None


WRONG = {
    "reads and writes past the end": Bad(
        tasks.DOUBLE, kernels.DOUBLE.replace("i < n", "i <= n"), Crashed, finding=FindingKind.OUT_OF_BOUNDS_GLOBAL
    ),
    "leaves the last block unwritten": Bad(
        tasks.DOUBLE,
        kernels.DOUBLE.replace("ceil_div(n, 256), 256", "max(n / 256, 1), 256"),
        Crashed,
        finding=FindingKind.OUTPUT_NOT_WRITTEN,
    ),
    "writes zeros into the tail": Bad(tasks.DOUBLE, kernels.DOUBLE_BY_FOURS, WrongValues, "the last", Pattern.TAIL),
    "writes zeros": Bad(
        tasks.SOFTMAX, kernels.SOFTMAX_SHARED.replace("expf(x[i] - largest) / sum", "0.f"), WrongValues, "all hold 0"
    ),
    "is half of what it should be": Bad(
        tasks.SOFTMAX,
        kernels.SOFTMAX_SHARED.replace("/ sum", "/ (2.f * sum)"),
        WrongValues,
        "0.5 (1/2) times",
        Pattern.SCALED,
    ),
    "stands one element late": Bad(
        tasks.DOUBLE,
        kernels.DOUBLE.replace("2.f * v[i]", "2.f * v[(i + n - 1) % n]"),
        WrongValues,
        "1 element too late",
        Pattern.SHIFTED,
    ),
    "rounds to bf16 on the way": Bad(
        tasks.DOUBLE,
        kernels.DOUBLE.replace("2.f * v[i]", "2.f * float(__nv_bfloat16(v[i]))"),
        WrongValues,
        "like work in bf16",
        Pattern.PRECISION,
    ),
    "leaves out the last element of a sum": Bad(
        tasks.MEAN, kernels.MEAN.replace("i < cols", "i < cols - 1"), WrongValues
    ),
    "samples one element in sixteen": Bad(
        tasks.MEAN,
        kernels.MEAN.replace("++i) sum", "i += 16) sum").replace("sum / cols", "sum / ((cols + 15) / 16)"),
        WrongValues,
    ),
    "variance in one pass": Bad(tasks.LAYERNORM, kernels.ONE_PASS, WrongValues),
    "epsilon written in": Bad(
        tasks.LAYERNORM, kernels.LAYERNORM.replace("variance + eps", "variance + 1e-5f"), WrongValues
    ),
    "softmax without the maximum": Bad(
        tasks.SOFTMAX,
        kernels.SOFTMAX_SHARED.replace("x[i] - largest", "x[i]"),
        WrongValues,
        "an exponential",
        Pattern.NOT_FINITE,
    ),
    "no barrier": Bad(
        tasks.SOFTMAX,
        kernels.SOFTMAX_SHARED.replace("held[threadIdx.x] = sum;\n  __syncthreads();", "held[threadIdx.x] = sum;"),
        Crashed,
        finding=FindingKind.RACE_SHARED,
    ),
    "TF32 products": Bad(tasks.MATMUL, kernels.MATMUL_TF32, WrongValues, "TF32", Pattern.PRECISION),
    "bf16 sums": Bad(
        tasks.MATMUL_BF16,
        kernels.MATMUL_BF16.replace("float sum = 0.f", "bf16 sum(0.f)")
        .replace("sum += float(", "sum = bf16(float(sum) + float(")
        .replace("column]);", "column]));")
        .replace("bf16(sum)", "sum"),
        WrongValues,
        "sums",
        Pattern.PRECISION,
    ),
    "drops the last part of K": Bad(
        tasks.MATMUL, kernels.MATMUL.replace("first < K; first", "first + 15 < K; first"), WrongValues
    ),
    "argmax of the last tie": Bad(tasks.ARGMAX, kernels.ARGMAX.replace(") > float", ") >= float"), WrongValues),
    "a constant index": Bad(
        tasks.ARGMAX, kernels.ARGMAX.replace("out[row] = best", "out[row] = 0"), WrongValues, "all hold 0"
    ),
    "in place, twice": Bad(
        tasks.ACCUMULATE, kernels.ACCUMULATE.replace("+= delta[i]", "+= 2.f * delta[i]"), WrongValues
    ),
    "order of the blocks": Bad(tasks.IDENTITY, kernels.TICKETS, Unstable),
    "never ends": Bad(
        tasks.DOUBLE,
        kernels.DOUBLE.replace("if (i < n)", "while (v[0] == v[0]) out[0] = 1.f;\n  if (i < n)"),
        Crashed,
    ),
    "a trap": Bad(tasks.DOUBLE, kernels.DOUBLE.replace("if (i < n)", "if (i == 3) __trap();\n  if (i < n)"), Crashed),
    "does not compile": Bad(tasks.DOUBLE, kernels.DOUBLE.replace("2.f * v[i]", "two * v[i]"), NotBuilt),
    "another op": Bad(tasks.DOUBLE, kernels.DOUBLE.replace("op      double(v)", "op      double(v, w)"), BadPlan),
    "another result": Bad(tasks.DOUBLE, kernels.DOUBLE.replace("f32[v.shape]", "f32[v.numel + 1]"), BadPlan),
    "declines the task": Bad(
        tasks.DOUBLE, kernels.DOUBLE.replace("//! let", "//! need    v.numel <= 1000\n//! let", 1), Declined, "1048576"
    ),
    "right at some sizes only": Bad(
        tasks.MEAN, kernels.MEAN.replace("i < cols", "i < (cols > 256 ? 256 : cols)"), WrongValues
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_kernels_are_seen_and_named(name: str, referee: Make) -> None:
    bad = WRONG[name]
    verdict = referee(bad.task).judge(bad.text)
    assert isinstance(verdict, Rejected), verdict
    evidence = verdict.evidence
    assert type(evidence) is bad.evidence, evidence
    if isinstance(evidence, WrongValues):
        (output,) = evidence.outputs
        assert bad.said in output.description
        assert bad.pattern in (None, output.pattern), output
        assert output.first[0].got != output.first[0].expected
        assert all(one.error_ratio is not None and one.error_ratio <= 1 for one in verdict.cases)
    elif isinstance(evidence, Crashed):
        assert bad.finding is None or bad.finding in {one.kind for one in evidence.findings}
        assert evidence.source_lines
    elif isinstance(evidence, Declined):
        assert bad.said in evidence.message


def test_the_smallest_failing_case_is_found_and_what_was_right_is_told(referee: Make) -> None:
    text = kernels.MEAN.replace("i < cols", "i < (cols > 256 ? 256 : cols)")
    verdict = referee(tasks.MEAN).judge(text)
    assert isinstance(verdict, Rejected)
    evidence = verdict.evidence
    assert isinstance(evidence, WrongValues)
    assert evidence.case.sizes == {"rows": 1, "cols": 257}
    assert {"rows": 3, "cols": 37} in [one.sizes for one in evidence.right_cases]


def test_a_crash_names_the_lines(referee: Make) -> None:
    verdict = referee(tasks.DOUBLE).judge(WRONG["reads and writes past the end"].text)
    assert isinstance(verdict, Rejected)
    crash = verdict.evidence
    assert isinstance(crash, Crashed)
    assert crash.fault is None
    assert crash.case.sizes == {"n": 1}
    assert (7, "  if (i <= n) out[i] = 2.f * v[i] + 1.f;") in crash.source_lines


def test_an_endless_loop_is_stopped(referee: Make) -> None:
    verdict = referee(tasks.DOUBLE).judge(WRONG["never ends"].text)
    assert isinstance(verdict, Rejected)
    crash = verdict.evidence
    assert isinstance(crash, Crashed)
    assert crash.fault in (FaultKind.STOPPED, FaultKind.TIME)
    assert verdict.reason == "ran too long"
    told = verdict_text(verdict)
    assert "no fault in itself" in told
    assert "never ends, or it does far more work" in told
    assert "crash" not in f"{told} {verdict_words(verdict)}"


def test_a_file_with_needs_is_judged_where_it_applies(referee: Make) -> None:
    text = kernels.MEAN.replace("//! out", "//! need    cols % 64 == 0 and rows % 8 == 0\n//! out", 1)
    verdict = referee(tasks.MEAN).judge(text)
    assert isinstance(verdict, Passed)
    right = {tuple(one.case.sizes.values()) for one in verdict.cases if one.status is CaseStatus.RIGHT}
    assert len(right) >= 3
    assert all(rows % 8 == 0 and cols % 64 == 0 for rows, cols in right)
    assert any(one.status is CaseStatus.DECLINED for one in verdict.cases)
    assert [str(one) for one in verdict.limits] == ["rows a multiple of 8", "cols a multiple of 64"]
    wrong = referee(tasks.MEAN).judge(text.replace("sum / cols", "sum / (cols + 1)"))
    assert isinstance(wrong, Rejected)


def test_sizes_beyond_the_cases_that_a_file_declines_are_told(referee: Make) -> None:
    """The cases end at the own size; that longer rows are declined shows in the plan alone."""
    task = replace(tasks.MEAN, dimensions=(Dimension("rows", 512), Dimension("cols", 1024)))
    for need, note in {
        "cols <= 1024": "cols at most 1024",
        "cols <= 1000 + rows and rows >= 3": "rows at least 24; cols at most 1512",
        "cols % 4 == 0 and cols >= 100": "cols a multiple of 4 and at least 100",
        "cols < 600 or cols % 4 == 0": "cols other than, among others, 1023, 1025, 2049, 4095",
        "rows == 512": "rows = 512",
    }.items():
        verdict = referee(task).judge(kernels.MEAN.replace("//! out", f"//! need    {need}\n//! out", 1))
        assert isinstance(verdict, Passed), verdict
        assert "; ".join(map(str, verdict.limits)) == note
        assert [one for one in verdict.notes if "asked for" in one] == [
            f"of the sizes that were asked for it takes only {note}"
        ]
    free = referee(task).judge(kernels.MEAN)
    assert isinstance(free, Passed)
    assert not free.limits
    assert not any("asked for" in one for one in free.notes)


def test_a_file_for_large_shapes_only_is_neither_right_nor_wrong(referee: Make) -> None:
    text = kernels.MEAN.replace("//! out", "//! need    rows * cols >= 1048576 * 2\n//! out", 1)
    task = replace(tasks.MEAN, dimensions=(Dimension("rows", 1 << 14), Dimension("cols", 1 << 14)))
    verdict = referee(task).judge(text.replace("1048576 * 2", "1048576 * 16"))
    assert isinstance(verdict, Unsupported)
    assert "too large to emulate" in verdict.message


def test_what_cannot_be_emulated_is_unsupported(referee: Make) -> None:
    saved = 'asm volatile("{ .reg .u64 s; stacksave.u64 s; }" ::: "memory");'
    text = kernels.DOUBLE.replace("  if (i", f"  {saved}\n  if (i")
    verdict = referee(tasks.DOUBLE).judge(text)
    assert isinstance(verdict, Unsupported)
    assert "stacksave" in verdict.message


def test_notes_say_what_was_not_covered(referee: Make) -> None:
    verdict = referee(tasks.MATMUL).judge(kernels.MATMUL)
    assert isinstance(verdict, Passed)
    blocks = "8 blocks of each launch were run and a part of the results judged"
    written = "written: all 1,048,576 elements of out by 1 launch; read: all of a, all of b"
    assert verdict.notes == (
        f"at the task's own sizes {blocks}: m=1024, k=1024, n=1024",
        f"every block's addresses at the task's own sizes: {written}",
    )
    assert str(verdict.addresses) == written
    assert verdict.cases[-1].status is CaseStatus.SAMPLED
    assert not verdict.is_provisional
    small = replace(tasks.MATMUL, dimensions=tuple(Dimension(one, 40) for one in "mkn"))
    verdict = referee(small).judge(kernels.MATMUL)
    assert isinstance(verdict, Passed)
    assert verdict.notes == ()
    assert any(one.case.sizes == small.sizes and one.status is CaseStatus.RIGHT for one in verdict.cases)


def test_fixed_dimensions_stay(referee: Make) -> None:
    fixed = replace(tasks.MEAN, dimensions=(Dimension("rows", 4, varies=False), Dimension("cols", 96, varies=False)))
    text = kernels.MEAN.replace("//! out", "//! need    rows == 4 and cols == 96\n//! out", 1)
    verdict = referee(fixed).judge(text)
    assert isinstance(verdict, Passed)
    assert {one.case.values for one in verdict.cases} >= {"task", "impulse", "offset"}
    assert all(one.case.sizes == fixed.sizes for one in verdict.cases)


def test_a_need_does_not_lead_away_from_values(referee: Make) -> None:
    need = "//! need    x.shape[0] % 8 == 0 and x.shape[1] % 8 == 0\n//! out"
    judge = referee(tasks.LAYERNORM)
    verdict = judge.judge(kernels.LAYERNORM.replace("//! out", need, 1))
    assert isinstance(verdict, Passed)
    right = [one.case for one in verdict.cases if one.status is CaseStatus.RIGHT]
    assert {case.values for case in right} >= {"task", "impulse", "small", "offset", "logarithmic"}
    assert all(case.sizes["rows"] % 8 == 0 for case in right)
    assert any("it takes only" in note for note in verdict.notes)
    usual = judge.judge(kernels.LAYERNORM.replace("//! out", "//! need    eps == 1e-05\n//! out", 1))
    assert isinstance(usual, Passed)
    assert any(note.startswith("the file declines other numbers: eps=") for note in usual.notes)
    assert not any("the file declines rows=" in note for note in usual.notes)  # it takes these sizes
    verdict = judge.judge(kernels.ONE_PASS.replace("//! out", need, 1))
    assert isinstance(verdict, Rejected)
    assert isinstance(verdict.evidence, WrongValues)


def test_a_file_is_judged_at_the_limit_of_its_need(referee: Make) -> None:
    limited = kernels.MEAN_BY_WARP.replace("//! out", "//! need    cols <= 4321\n//! out", 1)
    wrong = limited.replace("i < cols;", "i < min(cols, 4320);")
    assert isinstance(referee(tasks.MEAN).judge(limited), Passed)
    verdict = referee(tasks.MEAN).judge(wrong)
    assert isinstance(verdict, Rejected)
    assert isinstance(verdict.evidence, WrongValues)
    assert verdict.evidence.case.sizes["cols"] == 4321


@pytest.mark.parametrize(
    ("task", "text"),
    [
        (tasks.MATMUL, kernels.MATMUL.replace("first < K", "first < min(K, 160)")),
        (tasks.MEAN, kernels.MEAN_BY_WARP.replace("<<<rows, 32>>>", "<<<min(rows, 132), 32>>>")),
        (tasks.MEAN, kernels.MEAN_BY_WARP.replace("cols)\n", "cols) when rows < 512\n", 1)),
    ],
    ids=["the first 160 of k", "a grid without its loop", "no launch at many rows"],
)
def test_what_is_wrong_only_where_one_dimension_is_long(referee: Make, task: Task, text: str) -> None:
    assert text not in (kernels.MATMUL, kernels.MEAN_BY_WARP)
    verdict = referee(task).judge(text)
    assert isinstance(verdict, Rejected)
    assert isinstance(verdict.evidence, (Crashed, WrongValues))
    assert verdict.cases


IDLE = kernels.MEAN_BY_WARP.replace(
    "if (threadIdx.x == 0)",
    "float idle = sum;\n  for (int i = 0; i < 1000; ++i) idle = __shfl_sync(~0u, idle, 0) + 1.f;\n"
    "  if (idle == -1.f) sum = 0.f;\n  if (threadIdx.x == 0)",
)  # a warp that goes around a thousand times for each row


def test_thousands_of_blocks_that_take_too_long_are_run_in_part(referee: Make) -> None:
    """The budget of such a case ends before the rows do."""
    task = replace(tasks.MEAN, dimensions=(Dimension("rows", 2048), Dimension("cols", 64)))
    verdict = referee(task).judge(IDLE)
    assert isinstance(verdict, Passed)
    assert not any(one.case.sizes["rows"] == 2048 for one in verdict.cases if one.status is CaseStatus.RIGHT)
    assert any(one.case.sizes["rows"] == 256 for one in verdict.cases)


def test_what_takes_some_times_the_usual_instructions_is_no_endless_loop(
    referee: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidate, "_LEAST_BUDGET", 8_000_000)
    monkeypatch.setattr(candidate, "_BUDGET_PER_STEP", 0)
    task = replace(tasks.MEAN, dimensions=(Dimension("rows", 64), Dimension("cols", 64)))
    assert isinstance(referee(task).judge(IDLE), Passed)


TUNED = kernels.MEAN_BY_WARP.replace(
    "//! launch  run<<<rows, 32>>>",
    "//! tune    STEP = 32 | 64\n//! need    STEP == 32 or cols >= 64\n//! launch  run<<<rows, 32>>>",
)


def test_a_choice_is_judged_as_a_whole(referee: Make) -> None:
    judge = referee(tasks.MEAN)
    right = parse(TUNED.replace("i += 32", "i += STEP == 32 ? STEP : 32"))
    wrong = parse(TUNED.replace("i += 32", "i += STEP"))
    assert isinstance(judge.judge(right, {"STEP": 64}), Passed)
    assert isinstance(judge.judge(wrong), Passed)
    assert isinstance(judge.judge(wrong, {"STEP": 64}), Rejected)


def test_a_choice_that_nothing_was_run_with_does_not_pass(referee: Make) -> None:
    large = replace(tasks.MEAN, dimensions=(Dimension("rows", 8192), Dimension("cols", 8192)))
    only_large = parse(TUNED.replace("cols >= 64", "rows * cols >= 67108864").replace("i += 32", "i += STEP"))
    assert isinstance(referee(large).judge(only_large), Passed)
    assert isinstance(referee(large).judge(only_large, {"STEP": 64}), Unsupported)


def test_times_are_told(referee: Make) -> None:
    judge = referee(tasks.DOUBLE)
    assert isinstance(judge.judge(kernels.DOUBLE), Passed)
    assert judge.times.run_s > 0
    assert judge.times.judge_s > 0
    assert "judging" in str(judge.times)


def test_a_reference_that_fails_is_nobodys_kernel(referee: Make) -> None:
    text = kernels.DOUBLE.replace("(v", "(doomed").replace(" v.", " doomed.").replace("[v.", "[doomed.")
    with pytest.raises(ReferenceProblem, match="no such luck"):
        referee(tasks.FAILS).judge(text)


class _NoEmulator:
    """An emulator that runs nothing, as if every kernel used an instruction it does not know."""

    profile = PROFILES["H200"]

    def execute(self, job: Job) -> Execution:
        return Faulted(job.id, "H200 (emulated)", FaultKind.UNSUITABLE, "wgmma is not emulated")


class _Gpu:
    """In place of a GPU: results are emulated, and a watched job is answered as it was told."""

    profile = PROFILES["H200"]

    def __init__(self, emulator: EmulatedDevice, answer: Completed) -> None:
        self._emulator, self._answer = emulator, answer
        self.watched: list[Job] = []

    def execute(self, job: Job) -> Execution:
        if job.watch is Watch.NOTHING:
            return self._emulator.execute(job)
        self.watched.append(job)
        return replace(self._answer, job=job.id)


def test_triangles_are_what_is_judged_of_the_timed_call(reference: Reference, emulator: EmulatedDevice) -> None:
    """Timing compares its answers with the judged one of the same inputs, and baselines are timed with triangles."""
    digested: list[Job] = []

    class Gpu(_Gpu):
        def execute(self, job: Job) -> Execution:
            digested.extend([job] if job.digests else [])
            return super().execute(job)

    gpu = Gpu(emulator, Completed("", "GPU", (), ()))
    task = replace(TRIANGLES, dimensions=tuple(replace(one, size=72) for one in TRIANGLES.dimensions))
    verdict = Referee(task, reference, emulator=emulator, gpu=gpu).judge(kernels.MATMUL)  # type: ignore[arg-type]
    assert isinstance(verdict, Passed), verdict
    assert digested
    for one in digested[0].inputs:
        assert isinstance(one.content, Data)
        assert not np.tril(np.frombuffer(one.content.content, np.float32).reshape(72, 72), -1).any()


FAULT = FindingRecord(FindingKind.RACE_SHARED, "run", 4, 7, 0, None, "", "a write and a read", 3, other_line=6)


@pytest.mark.parametrize(
    ("answer", "passes", "runs"),
    [
        (Completed("", "GPU", (), ()), True, 2),
        (Completed("", "GPU", (), (), not_watched="it is not installed"), True, 2),
        (Completed("", "GPU", (), (), faults=(FAULT,)), False, 1),
    ],
)
def test_what_is_not_emulated_is_watched_on_the_gpu(
    answer: Completed, passes: bool, runs: int, reference: Reference, emulator: EmulatedDevice
) -> None:
    task = replace(tasks.DOUBLE, dimensions=(Dimension("n", 5000),))
    gpu = _Gpu(emulator, answer)
    verdict = Referee(task, reference, emulator=_NoEmulator(), gpu=gpu).judge(kernels.DOUBLE)  # type: ignore[arg-type]
    assert len(gpu.watched) == runs
    assert {job.watch for job in gpu.watched} == {Watch.FAULTS}
    if passes:
        assert isinstance(verdict, Passed)
        said = [note for note in verdict.notes if note.startswith("not checked by a sanitizer: it is not installed")]
        assert len(said) == bool(answer.not_watched)
        return
    assert isinstance(verdict, Rejected)
    assert isinstance(verdict.evidence, Crashed)
    assert verdict.evidence.findings == (FAULT,)
    assert {6, 7} <= {line for line, _ in verdict.evidence.source_lines}
    assert verdict.cases


def test_a_slower_kernel_is_not_run_at_full_size(reference: Reference, emulator: EmulatedDevice) -> None:
    task = replace(tasks.DOUBLE, dimensions=(Dimension("n", 5000),))
    seen: list[dict[str, int]] = []

    class Gpu(_Gpu):
        def execute(self, job: Job) -> Execution:
            seen.append({"n": job.inputs[0].spec.shape[0]})
            return super().execute(job)

    referee = Referee(task, reference, emulator=emulator, gpu=Gpu(emulator, Completed("", "GPU", (), ())))  # type: ignore[arg-type]
    told = NotFaster(2.0, 1.0, 1)
    verdict = referee.judge(kernels.DOUBLE, skip_if_slower=lambda: told)
    assert isinstance(verdict, Rejected)
    assert verdict.evidence == told
    assert verdict.cases
    assert seen
    assert task.sizes not in seen
    assert isinstance(referee.judge(kernels.DOUBLE, skip_if_slower=lambda: None), Passed)
    assert task.sizes in seen
