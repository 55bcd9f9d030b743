"""Kernels that lean on an order, on what memory held, or on one form of the call; and honest ones that look like it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from tests.verify import kernels, tasks
from tests.verify.corpus.entries import task_of

from tilewright.records import (
    BadPlan,
    Crashed,
    FindingKind,
    Layout,
    Passed,
    Rejected,
    Task,
    TensorInput,
    Unstable,
    WrongValues,
    from_json,
    to_json,
)
from tilewright.records.verdict import Case
from tilewright.verify import Referee
from tilewright.verify.case_sizes import has_own_size
from tilewright.verify.cases import plan_cases
from tilewright.verify.scheduled import several_of_each

Make = Callable[[Task], Referee]

OPTIONAL = replace(
    tasks.LAYERNORM,
    inputs=tuple(
        replace(one, optional=True) if isinstance(one, TensorInput) and one.name != "x" else one
        for one in tasks.LAYERNORM.inputs
    ),
)
NORM = kernels.LAYERNORM.replace("weight, bias, eps: float", "weight?, bias?, eps: float").replace(
    "* weight[i] + bias[i]", "* (weight ? weight[i] : 1.f) + (bias ? bias[i] : 0.f)"
)
STRIDED = """\
//! op      softmax(logits) -> out
//! let     rows = logits.shape[0], cols = logits.shape[1]
//! accept  logits: strided, unaligned
//! out     out: f32[rows, cols]
//! launch  run<<<rows, 32>>>(logits, out, cols, logits.stride[0], logits.stride[1])
__global__ void run(const float* x, float* out, int cols, long long row, long long step) {
  x += blockIdx.x * row, out += (size_t)blockIdx.x * cols;
  float top = -INFINITY, sum = 0.f;
  for (int i = threadIdx.x; i < cols; i += 32) top = fmaxf(top, x[i * step]);
  for (int offset = 16; offset; offset /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, offset));
  for (int i = threadIdx.x; i < cols; i += 32) sum += expf(x[i * step] - top);
  for (int offset = 16; offset; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
  for (int i = threadIdx.x; i < cols; i += 32) out[i] = expf(x[i * step] - top) / sum;
}
"""
LAST_BY_NUMBER = kernels.TOTAL_BY_ATOMICS.replace("out: f32[1] zeroed", "out: f32[1]\n//! scratch sum: f32[1] zeroed")
LAST_BY_NUMBER = LAST_BY_NUMBER.replace("(terms, out, n)", "(terms, sum, out, n)").replace(
    "float* out", "float* all, float* out"
)
LAST_BY_NUMBER = LAST_BY_NUMBER.replace(
    "if (threadIdx.x % 32 == 0) atomicAdd(out, sum);",
    """if (threadIdx.x % 32 == 0) atomicAdd(all, sum);
  __syncthreads();
  if (threadIdx.x == 0 && blockIdx.x == gridDim.x - 1) *out = atomicAdd(all, 0.f);""",
)
GRID_BARRIER = """\
//! op      softmax(logits) -> out
//! let     rows = logits.shape[0], cols = logits.shape[1]
//! out     out: f32[rows, cols]
//! scratch came: i32[1] zeroed
//! launch  run<<<rows, 256>>>(logits, out, came, cols){}
__global__ void run(const float* x, float* out, int* came, int cols) {{
  if (threadIdx.x == 0) {{
    atomicAdd(came, 1);
    while (atomicAdd(came, 0) < gridDim.x) {{}}
  }}
  __syncthreads();
  for (int i = threadIdx.x; i < cols; i += 256) out[(size_t)blockIdx.x * cols + i] = x[i];
}}
"""


@dataclass(frozen=True)
class Bad:
    task: Task
    text: str
    evidence: type
    said: str  # in the case or the finding


BY_FOURS = kernels.DOUBLE_BY_FOURS.replace("//! let", "//! accept  v: unaligned\n//! let").replace(
    "for (int k = i; k < i + 4 && k < n; ++k) out[k] = (i + 4 <= n) ? 2.f * v[k] + 1.f : 0.f;",
    """if (i + 4 > n) { for (int k = i; k < n; ++k) out[k] = 2.f * v[k] + 1.f; return; }
  float4 q = *(const float4*)(v + i);
  out[i] = 2.f * q.x + 1.f, out[i + 1] = 2.f * q.y + 1.f;
  out[i + 2] = 2.f * q.z + 1.f, out[i + 3] = 2.f * q.w + 1.f;""",
)
WITHOUT_BIAS = NORM.replace("bias ? bias[i]", "bias ? 0.f")
WITHOUT_STEP = STRIDED.replace("x[i * step] - top) / sum", "x[i] - top) / sum")
DENSE_ROWS = STRIDED.replace("blockIdx.x * row,", "blockIdx.x * cols,")
WRONG = {
    "the last block by its number": Bad(tasks.TOTAL, LAST_BY_NUMBER, Unstable, ""),
    "a variable that nothing set": Bad(
        tasks.MEAN, kernels.MEAN.replace("float sum = 0.f", "float sum"), WrongValues, ""
    ),
    "a barrier over the grid": Bad(tasks.SOFTMAX, GRID_BARRIER.format(""), Crashed, FindingKind.LATER_BLOCK.value),
    "a cooperative grid too large": Bad(tasks.SOFTMAX, GRID_BARRIER.format(" cooperative"), BadPlan, "co-resident"),
    "an optional tensor left out": Bad(OPTIONAL, WITHOUT_BIAS, WrongValues, "with bias"),
    "a stride left out": Bad(tasks.SOFTMAX, WITHOUT_STEP, Crashed, "every other"),
    "rows taken to be dense": Bad(tasks.SOFTMAX, DENSE_ROWS, Crashed, "logits: "),
    "more alignment than promised": Bad(tasks.DOUBLE, BY_FOURS, Crashed, FindingKind.MISALIGNED.value),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_kernels_are_seen(name: str, referee: Make) -> None:
    bad = WRONG[name]
    verdict = referee(bad.task).judge(bad.text)
    assert isinstance(verdict, Rejected), verdict
    assert type(verdict.evidence) is bad.evidence, verdict.evidence
    assert bad.said in str(verdict.evidence) or bad.said in str(getattr(verdict.evidence, "case", "")), verdict.evidence


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "text"),
    [(OPTIONAL, NORM), (tasks.SOFTMAX, STRIDED)],
    ids=["optional tensors", "strides"],
)
def test_honest_kernels_pass(task: Task, text: str, referee: Make) -> None:
    verdict = referee(task).judge(text)
    assert isinstance(verdict, Passed), verdict
    formed = [one.case for one in verdict.cases if one.case.given or one.case.layouts]
    assert len(formed) >= 6


def test_a_case_says_its_form_and_is_stored_with_it() -> None:
    case = Case({"n": 3}, 1, given=("bias",), layouts=(("x", Layout.ODD),))
    assert str(case) == "n=3, with bias, x: rows at odd places, seed 1"
    assert from_json(Case, to_json(case)) == case
    assert from_json(Case, {"sizes": {"n": 3}, "seed": 1, "values": "task"}) == Case({"n": 3}, 1)


@pytest.mark.slow
def test_where_a_gpu_does_the_rest_every_dimension_is_emulated_larger_than_one() -> None:
    task = task_of("attention")
    cases = plan_cases(task)
    chosen = [cases[number] for number in several_of_each(task, cases)]
    assert len(chosen) < len(cases) / 2
    for one in task.dimensions:
        assert any(case.sizes[one.name] > 1 for case in chosen), one.name
    assert not any(has_own_size(task, case) for case in chosen)


def test_where_a_gpu_does_the_rest_a_loop_over_what_a_block_takes_turns_twice_in_the_emulator() -> None:
    task = task_of("cumsum")
    cases = plan_cases(task)
    chosen = [cases[number] for number in several_of_each(task, cases)]
    assert max(case.sizes["cols"] for case in chosen) > 256
    assert max(case.sizes["rows"] for case in chosen) > 64
