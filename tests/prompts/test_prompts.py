"""Every prompt renders, says what it must, and stays small: for every kind, stage and architecture."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from tests.prompts.samples import (
    EVIDENCE,
    F32_MATMUL,
    KERNEL,
    LAYERNORM,
    LONG_KERNEL,
    PASSED,
    TASKS,
    attempt,
    sample_history,
    situation,
    tuned,
)

import tilewright.prompts
from tilewright.kernel_file import parse
from tilewright.lint.catalogue import found
from tilewright.prompts.question import (
    base_of,
    correction_text,
    history_text,
    measurement_text,
    question_text,
    standing_text,
    system_text,
    tune_text,
)
from tilewright.prompts.task_text import op_line, out_lines, task_text
from tilewright.records import (
    PROFILES,
    TYPICAL,
    Attempt,
    Declined,
    Duplicate,
    Goal,
    Kind,
    LintRule,
    Measured,
    Modelled,
    ModelTerm,
    Precision,
    Rejected,
    Situation,
    Stage,
    Task,
    Timing,
    Unsupported,
)

CHARACTERS_PER_TOKEN = 4
TEMPLATES = Path(tilewright.prompts.__file__).parent / "templates"
WITH_CUTE = (Kind.MATMUL, Kind.ATTENTION)  # of the samples: large products


def tokens(text: str) -> int:
    return len(text) // CHARACTERS_PER_TOKEN


def resized(task: Task, **sizes: int) -> Task:
    return replace(task, dimensions=tuple(replace(one, size=sizes.get(one.name, one.size)) for one in task.dimensions))


@pytest.mark.parametrize("emulated_only", [False, True], ids=["gpu", "emulated"])
@pytest.mark.parametrize("gpu", [profile.name for profile in TYPICAL.values()])
@pytest.mark.parametrize("kind", list(Kind))
def test_a_system_text_is_whole_and_small(kind: Kind, gpu: str, emulated_only: bool) -> None:
    task = replace(TASKS[kind], gpu=gpu)
    text = system_text(task, emulated_only)
    assert tokens(text) <= (10_000 if kind in WITH_CUTE else 7_000)
    assert ("# CuTe" in text) == (kind in WITH_CUTE)
    assert ("It does not run `tcgen05`" in text) == emulated_only
    for part in (op_line(task), task.reference.strip(), f"{gpu} (sm_", "Summary: one line", "<<<<<<< SEARCH"):
        assert part in text
    assert "{{ " not in text
    assert "{% " not in text
    assert "\n\n\n\n" not in text


def test_hopper_s_own_instructions_are_told_with_a_gpu_and_without() -> None:
    for emulated_only in (False, True):
        text = system_text(TASKS[Kind.MATMUL], emulated_only)
        assert "SM90_TMA_LOAD_2D::copy(" in text
        assert "`wgmma` out of 128-byte swizzled shared tiles" in text


def test_cute_is_told_where_the_request_names_it() -> None:
    assert "# CuTe" not in system_text(LAYERNORM)
    asked = system_text(replace(LAYERNORM, words="LayerNorm, written in CuTe"))
    assert "Tested pattern `cute_rows`" in asked
    assert "# CuTe" in question_text(replace(situation(Stage.STRUCTURE), hint="use cute for the copies"))
    assert "# CuTe" not in question_text(replace(situation(Stage.STRUCTURE), hint="execute fewer barriers"))


def test_cute_is_told_for_large_products_only() -> None:
    small = resized(TASKS[Kind.MATMUL], m=512, k=1024, n=768)
    assert "# CuTe" not in system_text(small)
    named = system_text(replace(small, reference=small.reference + "# written in CuTe\n"))
    assert re.findall("Tested pattern `(.*?)`", named) == ["split_k", "cute_sm90"]
    large = replace(TASKS[Kind.MATMUL], words="in CuTe")
    assert re.findall("Tested pattern `(.*?)`", system_text(large)) == ["cute_sm90"]
    assert "# CuTe" not in system_text(resized(TASKS[Kind.ATTENTION], length=256))
    wide = resized(TASKS[Kind.CONVOLUTION], c=256, co=1024)
    assert "# CuTe" in system_text(wide)
    assert "# CuTe" not in system_text(TASKS[Kind.CONVOLUTION])


def test_few_long_rows_get_advice_of_their_own() -> None:
    few = resized(LAYERNORM, rows=16, cols=1 << 22)
    assert "Here 16 rows of 8192 KiB stand against 132 SMs" in system_text(few)
    assert "stand against" not in system_text(LAYERNORM)
    assert "stand against" not in system_text(resized(LAYERNORM, rows=4096, cols=1 << 18))


def test_a_reduction_that_keeps_columns_gets_their_pattern() -> None:
    by_rows = TASKS[Kind.REDUCTION]
    assert "Tested pattern `columns`" not in system_text(by_rows)
    kept = tuple(replace(one, shape=(by_rows.tensors[0].dimensions[-1],)) for one in by_rows.outputs)
    assert "Tested pattern `columns`" in system_text(replace(by_rows, outputs=kept))


def test_clusters_are_told_where_they_can_be_used() -> None:
    assert "clusters of 8 fit" in system_text(LAYERNORM)
    assert "clusters of 8 fit" in system_text(LAYERNORM, emulated_only=True)
    assert "clusters of 8 fit" not in system_text(replace(LAYERNORM, gpu="A100"))


def test_small_products_get_advice_of_their_own() -> None:
    small = system_text(resized(TASKS[Kind.MATMUL], m=512, k=1024, n=768), emulated_only=True)
    assert "24 tiles of 128x128 for 132 SMs" in small
    assert "Tested pattern `split_k`" in small
    assert "Tested pattern `mma_tile`" not in small
    assert "4096^3" not in small
    assert "4096^3" in system_text(TASKS[Kind.MATMUL], emulated_only=True)
    assert "Matrices:" not in system_text(LAYERNORM)


def test_precision_decides_the_advice_for_f32_products() -> None:
    def advice(precision: Precision) -> str:
        return system_text(replace(F32_MATMUL, precision=precision))

    assert "True f32: plain FFMA" in advice(Precision.DTYPE)
    assert "TF32 is allowed" in advice(Precision.TF32)
    assert "Tested pattern `mma_tile`" in advice(Precision.HALF)
    assert "Tested pattern `mma_tile`" not in advice(Precision.DTYPE)
    assert "True f32: plain FFMA" in advice(Precision.STRICT)
    assert "True f32: plain FFMA" in advice(Precision.DEFAULT_F32)


def test_f32_convolutions_are_promised_what_pytorch_does_with_them() -> None:
    def told(task: Task, precision: Precision) -> tuple[str, str]:
        asked = replace(task, precision=precision)
        return task_text(asked), system_text(asked)

    convolution = TASKS[Kind.CONVOLUTION]
    task, system = told(convolution, Precision.DTYPE)
    assert "f32 convolutions may round their operands to TF32" in task
    assert "TF32 is allowed in the convolution" in system
    for exact in (Precision.STRICT, Precision.DEFAULT_F32):
        task, system = told(convolution, exact)
        assert "true f32 for f32 (no TF32, no 16-bit)" in task
        assert "TF32 is too coarse here and will be rejected" in system
    product, _ = told(F32_MATMUL, Precision.DTYPE)
    assert "true f32 for f32 (no TF32, no 16-bit)" in product
    assert "convolution" not in product


def test_every_kind_family_and_stage_has_its_file() -> None:
    assert {path.name for path in (TEMPLATES / "kinds").iterdir()} == {f"{kind.value}.md.j2" for kind in Kind}
    assert {path.name for path in (TEMPLATES / "stages").iterdir()} == {f"{stage.value}.md.j2" for stage in Stage}
    assert len(list((TEMPLATES / "families").iterdir())) == 6


# -- the task --


@pytest.mark.parametrize("task", [*TASKS.values(), F32_MATMUL], ids=lambda task: task.name)
def test_the_lines_a_file_begins_with_parse(task: Task) -> None:
    names = ", ".join(one.name for one in task.inputs) + ", " + ", ".join(one.name for one in task.outputs)
    plan = "\n".join([op_line(task), *out_lines(task), f"//! launch k<<<1, 32>>>({names})", "__global__ void k() {}\n"])
    assert parse(plan).plan.op.name == task.name


def test_out_lines_take_their_sizes_from_the_inputs() -> None:
    assert out_lines(LAYERNORM) == ("//! out     y: x.dtype[x.shape]",)
    assert out_lines(TASKS[Kind.MATMUL]) == ("//! out     y: bf16[x.shape[0], w.shape[0]]",)
    assert out_lines(TASKS[Kind.CONVOLUTION]) == ("//! out     y: f32[x.shape[0], w.shape[0], 56, 56]",)
    assert out_lines(TASKS[Kind.LOSS]) == ("//! out     loss: f32[]",)


def test_the_task_is_told_in_full() -> None:
    task = replace(
        LAYERNORM, words="LayerNorm then GELU", allow_library=True, goal=Goal.LATENCY, precision=Precision.TF32
    )
    text = task_text(task)
    for part in (
        "The request: LayerNorm then GELU",
        "`x`: bf16[rows, cols] = 4096x1024; values: normal(0, 1)",
        "`weight`: bf16[cols] = 1024; values: normal(0, 1); a weight, the same over many calls",
        "`eps`: float, 1e-05 here",
        "`y` (result): bf16[rows, cols] = 4096x1024",
        "rows = 4096, cols = 1024",
        "every size of `rows`, `cols`",
        "TF32",
        "Vendor steps",
        "The floor: 5.5 us, of which 3.5 us are for 16.8 MB",
        "About 8.83 us is the best that is reached where memory alone bounds the time",
        "latency of a single call",
    ):
        assert part in text
    fixed = replace(task, dimensions=tuple(replace(one, varies=False) for one in task.dimensions))
    assert "No size varies" in task_text(fixed)
    assert "in memory n, h, w_in, c from outermost to innermost" in task_text(TASKS[Kind.CONVOLUTION])
    assert "indices 0 to entries - 1" in task_text(TASKS[Kind.GATHER])
    assert "`width` (multiples of 8)" in task_text(TASKS[Kind.GATHER])


def test_a_request_cannot_reach_into_the_templates() -> None:
    text = system_text(replace(LAYERNORM, words="{{ situation }} {% raw %}"))
    assert "{{ situation }} {% raw %}" in text


# -- questions --


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("stage", list(Stage))
def test_a_question_is_whole_and_small(stage: Stage, kind: Kind) -> None:
    text = question_text(situation(stage, TASKS[kind], LONG_KERNEL))
    assert tokens(text) <= 6_000
    assert (LONG_KERNEL.rstrip() in text) == (stage is not Stage.DRAFT)
    assert f"stage: {stage.value}" in text
    assert "\n\n\n\n" not in text


def test_a_draft_starts_from_what_the_person_gave() -> None:
    given = question_text(Situation(LAYERNORM, Stage.DRAFT, 1, parent_text=KERNEL))
    assert KERNEL.rstrip() in given
    assert "edits of the file above" in given
    first = question_text(Situation(LAYERNORM, Stage.DRAFT, 1))
    assert "edits" not in first
    again = question_text(Situation(LAYERNORM, Stage.DRAFT, 6, history=sample_history(1)))
    assert "Draft anew" in again


def test_candidates_of_the_first_draft_are_asked_alike() -> None:
    failed, passed = sample_history(2)
    after_failure = question_text(Situation(LAYERNORM, Stage.DRAFT, 2, candidate=1, history=(failed,)))
    assert "Draft the first version" in after_failure
    assert "take a different one" in after_failure
    other = Situation(LAYERNORM, Stage.DRAFT, 3, 2, passed, KERNEL, history=(failed, passed))
    assert "Draft the first version" in question_text(other)
    assert KERNEL.rstrip() not in question_text(other)
    assert base_of(other) is None


def test_hints_candidates_and_evidence_reach_the_model() -> None:
    asked = replace(situation(Stage.PROFILED), hint="try one warp per row", candidate=1)
    text = question_text(asked)
    assert "A hint from the user: try one warp per row" in text
    assert "this is number 2" in text
    assert EVIDENCE in text


def test_a_kernel_that_cannot_run_here_is_told_what_can() -> None:
    failing = replace(
        attempt(8, Stage.STRUCTURE, PASSED), verdict=Unsupported("tcgen05.mma at line 40 is not emulated")
    )
    text = question_text(replace(situation(Stage.REPAIR_CRASH), failing=failing))
    assert "tcgen05.mma at line 40" in text
    assert "mma.sync with ldmatrix for tcgen05" in text


def test_a_file_that_declines_is_told_to_widen() -> None:
    failing = replace(
        attempt(8, Stage.DRAFT, PASSED), verdict=Rejected(Declined(PASSED.cases[0].case, "need cols % 8 == 0"))
    )
    assert "Widen the `need`" in question_text(replace(situation(Stage.REPAIR_CRASH), failing=failing))


def test_stages_that_need_a_file_say_so() -> None:
    with pytest.raises(ValueError, match="needs a file that passed"):
        question_text(Situation(LAYERNORM, Stage.STRUCTURE, 2))
    with pytest.raises(ValueError, match="needs the attempt to repair"):
        question_text(Situation(LAYERNORM, Stage.REPAIR_WRONG, 2))


def test_a_correction_asks_for_what_can_be_sent() -> None:
    assert "edits" in correction_text("two files.", cut=False, base="x")
    assert "edits" not in correction_text("two files.", cut=False, base=None)
    assert "limit on output" in correction_text("cut.", cut=True, base=None)
    assert "two files.\nSend" in correction_text("two files.", cut=False, base=None)


# -- history --


def test_a_line_of_history_says_what_became_of_a_step() -> None:
    lines = history_text(sample_history(8), 0.01).split("\n")
    assert re.match(r"#1 draft: Step 1.* -> wrong values: the last elements at rows=3, cols=1001$", lines[0])
    assert re.match(r"#2 repair-wrong: .* -> right, 60 us \(modelled\), kept \[.*\]$", lines[1])
    assert re.match(r"#3 structure from #2: .* -> out of bounds: global access outside every tensor$", lines[2])
    facts = " [occupancy 75%, no spills; best WARPS=1 HELD=1]"
    assert lines[3].endswith(f"right, 48 us (modelled), 20 % faster than #2 (60 us): kept{facts}")
    changes = " (resources alone: device memory 48 to 52.8, issue slots 33.6 to 37 us)"  # and not what hardly changed
    assert lines[4].endswith(f"right, 52.8 us (modelled), 10 % slower than #4 (48 us): reverted{changes}{facts}")


def test_the_resources_of_earlier_attempts_are_for_the_profiled_stage() -> None:
    told = "device memory 48, issue slots 33.6, shared memory 4.8 us"
    assert told in history_text(sample_history(8), 0.01, terms=True)
    assert told in question_text(situation(Stage.PROFILED))
    for stage in (Stage.STRUCTURE, Stage.REPAIR_WRONG):
        assert told not in question_text(situation(stage))
    # What the best file itself takes is part of its score, and no profile.
    assert question_text(situation(Stage.STRUCTURE)).count("The others alone: issue slots ") == 1


def test_gains_within_the_noise_are_not_kept() -> None:
    history = (attempt(1, Stage.DRAFT, PASSED, 100.0), attempt(2, Stage.STRUCTURE, PASSED, 99.9, 1))
    said = history_text(history, 0.002).split("\n")[1]
    assert "0.1 % faster than #1 (100 us), below the 0.2 % needed: reverted" in said
    assert "kept" in history_text(history, 0.0005).split("\n")[1]
    measured = [replace(one, measurement=measured_at(one.time_us or 0.0)) for one in history]
    measured[1] = replace(measured[1], measurement=measured_at(99.4))
    said = history_text(tuple(measured), 0.01).split("\n")[1]
    assert "99.4 us, 0.6 % faster than #1 (100 us), below the 1 % needed: reverted" in said
    twice = history_text((history[0], replace(history[0], number=2)), 0.01).split("\n")[1]
    assert "as fast as #1 (100 us): reverted" in twice


def measured_at(time_us: float) -> Measured:
    return Measured("H200", {"n": 5}, Timing("kernel", (time_us,)), (), 30.0)


def test_a_long_history_is_condensed() -> None:
    text = history_text(sample_history(40), 0.01)
    lines = text.split("\n")
    assert len(lines) == 11
    assert lines[0].startswith("#1-#30: 1 wrong values, ")
    assert "10 out of bounds" in lines[0]
    assert "best #28" in lines[0]
    assert lines[-1].startswith("#40 ")
    assert tokens(text) < 800
    assert history_text((), 0.01) == ""


def test_a_duplicate_names_its_twin() -> None:
    assert "seen before: #1" in history_text((attempt(2, Stage.STRUCTURE, Rejected(Duplicate(1))),), 0.01)


def test_why_a_faster_file_was_not_kept_is_said() -> None:
    best = attempt(1, Stage.DRAFT, PASSED, 40.0)
    unseen = attempt(2, Stage.STRUCTURE, replace(PASSED, unseen="too large"), 20.0)
    assert "only provisionally right and #1 is verified" in history_text((best, unseen), 0.01)
    assert "below the 4 % needed" in history_text((best, attempt(2, Stage.STRUCTURE, PASSED, 39.0)), 0.04)


def test_modelled_and_measured_times_are_told_apart() -> None:
    best = attempt(2, Stage.DRAFT, PASSED, 41.2)
    modelled = standing_text(best, 0.002, bound=True)
    assert "Modelled (not measured) for H200" in modelled
    assert "the floor is 3.5 us (2 us for a launch, 1.5 us for bytes or products" in modelled
    assert "1 launch, 4,096 blocks, occupancy 75%, no spills" in modelled
    assert "Bound by device memory: 41.2 us if it were alone, 100% of the time." in modelled
    assert "The others alone: issue slots 28.8, shared memory 4.12 us." in modelled
    assert "less than 41.12 us (0.2 % less)" in modelled
    assert "Bound by" not in standing_text(best, 0.01)
    latency = ModelTerm("latency", 50.0, "0.97 waves of blocks, 3.0 waits of 2.0 loads in each warp")
    assert isinstance(best.measurement, Modelled)
    slow = replace(best.measurement, terms=(latency,), time_us=60.0, registers=168)
    said = standing_text(replace(best, measurement=slow), 0.002, bound=True)
    assert "occupancy 75%, 168 registers a thread, no spills" in said
    assert (
        "Bound by latency (0.97 waves of blocks, 3.0 waits of 2.0 loads in each warp): 50 us if it were alone" in said
    )
    timings = (Timing("eager", (80.0,)), Timing("torch.compile", (44.0, 46.0)))
    measured = measurement_text(Measured("H200", {"n": 5}, Timing("kernel", (40.0,)), timings, 30.0, ("throttled",)))
    assert measured.startswith("Measured on H200 at n=5: 40 us; the floor is 30 us (2 us for a launch, ")
    assert "so 75% of it is reached." in measured
    assert "eager: 80 us. torch.compile: 45 us (+- 1). throttled" in measured
    assert "odelled" not in measured
    assert "No time is known" in standing_text(attempt(2, Stage.DRAFT, PASSED), 0.01)


def test_what_the_tuner_tried_is_told_in_full() -> None:
    said = tune_text(tuned())
    assert said.startswith("Tuner: WARPS=1 HELD=1 is in use. Tried, WARPS/HELD and us: 1/1 7; 1/2 8; 2/1 8; ")
    assert said.count(";") == 11 + 2
    assert said.endswith("8/4 17; 1 did not build or were wrong; 3 were not tried.")
    many = replace(tuned(), tried=tuned().tried * 3)
    assert "; 12 more, the worst 8/4 17; 1 did not build" in tune_text(many)
    other = replace(tuned(), choice=(("WARPS", 2), ("HELD", 1)))
    assert "WARPS=2 HELD=1 is in use (the default is kept unless another is right and clearly faster)" in tune_text(
        other
    )


def test_a_file_at_the_least_traffic_is_not_asked_for_the_impossible() -> None:
    for stage in (Stage.STRUCTURE, Stage.PROFILED):
        asked = situation(stage)
        assert asked.parent is not None
        measurement = asked.parent.measurement
        assert isinstance(measurement, Modelled)
        assert "Little is left" not in question_text(asked)
        near = replace(measurement, reachable_us=measurement.time_us / 1.05)
        text = question_text(replace(asked, parent=replace(asked.parent, measurement=near)))
        assert "Little is left" in text
        assert "this file takes 5 % more" in text
    least = replace(measurement, reachable_us=measurement.time_us + 2.5)
    assert "which is its least" in standing_text(replace(asked.parent, measurement=least), 0.01, bound=True)


# -- what a whole task costs --


@pytest.mark.parametrize("task", [TASKS[Kind.NORMALISATION], TASKS[Kind.ATTENTION]], ids=lambda task: task.name)
def test_twelve_attempts_cost_what_was_planned(task: Task) -> None:
    """Questions of a whole run, with a kernel that grows from 70 to 180 lines; the system text is paid for once."""
    stages = (
        *(Stage.DRAFT, Stage.REPAIR_BUILD, Stage.REPAIR_WRONG),
        *(Stage.STRUCTURE, Stage.REPAIR_CRASH, Stage.STRUCTURE, Stage.STRUCTURE, Stage.REPAIR_WRONG, Stage.STRUCTURE),
        *(Stage.PROFILED, Stage.PROFILED, Stage.PROFILED),
    )
    lines = LONG_KERNEL.split("\n")
    past: list[Attempt] = list(sample_history(12))
    asked = replied = 0
    for number, stage in enumerate(stages, start=1):
        kernel = "\n".join(lines[: 60 + 10 * number])
        asked += tokens(question_text(situation(stage, task, kernel, tuple(past[: max(2, number - 1)]))))
        whole = stage in (Stage.DRAFT, Stage.STRUCTURE)
        replied += 100 + (tokens(kernel) if whole else 300)
    assert asked + tokens(system_text(task)) <= 60_000
    assert replied <= 30_000


def test_profiles_are_all_covered() -> None:
    for profile in PROFILES.values():
        assert profile.name in system_text(replace(LAYERNORM, gpu=profile.name))


def test_what_lint_reads_is_told_without_remarks() -> None:
    passed = next(one for one in sample_history(2) if one.passed)
    grave = found(LintRule.UNCOALESCED, "layernorm<float>", 12, "32 sectors for each request")
    small = found(LintRule.NARROW_LOAD, "layernorm<float>", 13, "4 bytes a lane")
    told = question_text(Situation(LAYERNORM, Stage.STRUCTURE, 3, 0, passed, KERNEL, lint=(small, grave)))
    assert "without running it:\n- line 12: uncoalesced: 32 sectors for each request; let neighbouring lanes" in told
    assert "narrow-load" not in told
    quiet = question_text(Situation(LAYERNORM, Stage.STRUCTURE, 3, 0, passed, KERNEL, lint=(small,)))
    assert "without a run" not in quiet
