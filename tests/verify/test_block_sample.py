"""Kernels that are wrong at the task's own sizes alone, and what is said where that cannot be told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from tests.verify import kernels, tasks

from tilewright.records import (
    CaseStatus,
    Crashed,
    Dimension,
    FindingKind,
    Passed,
    Rejected,
    Task,
    WrittenPart,
    WrongValues,
)
from tilewright.verify import Referee, block_sample
from tilewright.verify.block_trial import not_reached
from tilewright.verify.independence import IndependenceRequest, find_independent

Make = Callable[[Task], Referee]

LARGE_DOUBLE = replace(tasks.DOUBLE, dimensions=(Dimension("n", 1_500_000),))
LARGE_MEAN = replace(tasks.MEAN, dimensions=(Dimension("rows", 16384), Dimension("cols", 128)))

# Two launches with a buffer between them: what some blocks make of it depends on what others left there.
BY_TWO = """\
//! op      mean(samples) -> out
//! let     rows = samples.shape[0], cols = samples.shape[1]
//! out     out: f32[rows]
//! scratch sums: f32[rows]
//! launch  add<<<rows, 32>>>(samples, sums, rows, cols)
//! launch  divide<<<ceil_div(rows, 128), 128>>>(sums, out, rows, cols)
__global__ void add(const float* x, float* sums, int rows, int cols) {
  float sum = 0.f;
  for (int again = 0; again < 8; ++again)
    for (int i = threadIdx.x; i < cols; i += 32) sum += 0.125f * x[(size_t)blockIdx.x * cols + i];
  for (int offset = 16; offset; offset /= 2) sum += __shfl_down_sync(~0u, sum, offset);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}
__global__ void divide(const float* sums, float* out, int rows, int cols) {
  int row = blockIdx.x * 128 + threadIdx.x;
  if (row >= rows) return;
  if ((long long)rows * cols > 60000000)
    out[row] = sums[row] / cols;
  else
    out[row] = sums[row] * (1.f / cols);
}
"""

# The same, where the second launch gets the buffer through a map alone.
BY_MAP = (
    BY_TWO[: BY_TWO.index("__global__ void divide")]
    .replace(
        "//! launch  divide",
        "//! need    device.cc >= 90\n//! map     parts = tiled(sums, box=[128])\n//! launch  divide",
    )
    .replace("(sums, out, rows, cols)", "(parts, out, rows, cols)")
    + """\
#include <cuda/barrier>
__global__ void divide(const __grid_constant__ CUtensorMap parts, float* out, int rows, int cols) {
  __shared__ __align__(128) float held[128];
  __shared__ __align__(8) unsigned long long barrier;
  const unsigned bar = __cvta_generic_to_shared(&barrier), data = __cvta_generic_to_shared(held);
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\\nfence.mbarrier_init.release.cluster;" ::"r"(bar));
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 512;" ::"r"(bar) : "memory");
    asm volatile(
        "cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2}], [%3];" ::
        "r"(data), "l"(&parts), "r"(blockIdx.x * 128), "r"(bar)
        : "memory");
  }
  __syncthreads();
  asm volatile(
      "{\\n.reg .pred done;\\nwait:\\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], 0;\\n@!done bra wait;\\n}" ::
      "r"(bar) : "memory");
  const int row = blockIdx.x * 128 + threadIdx.x;
  if (row < rows) out[row] = held[threadIdx.x] / cols;
}
"""
)


def rejected(referee: Make, task: Task, text: str) -> Crashed | WrongValues:
    verdict = referee(task).judge(text)
    assert isinstance(verdict, Rejected), verdict
    assert isinstance(verdict.evidence, Crashed | WrongValues)
    return verdict.evidence


def test_wrong_beyond_a_size(referee: Make) -> None:
    text = kernels.DOUBLE.replace("+ 1.f", "+ (n > 1400000 ? 1.01f : 1.f)").replace(
        "+ 1;", "+ (n > 1400000 ? 1.01f : 1.f);"
    )
    assert text != kernels.DOUBLE
    evidence = rejected(referee, LARGE_DOUBLE, text)
    assert isinstance(evidence, WrongValues)
    assert evidence.case.sizes == {"n": 1_500_000}
    assert evidence.outputs[0].first[0].expected != evidence.outputs[0].first[0].got


def test_stripes_that_nobody_writes(referee: Make) -> None:
    """Half of the elements at the own size, and every one at sizes that fit the grid once."""
    honest = kernels.MEAN_BY_WARP.replace(
        "run<<<rows, 32>>>(samples, out, cols)", "run<<<min(rows, 2048), 32>>>(samples, out, rows, cols)"
    )
    honest = honest.replace("float* out, int cols)", "float* out, int rows, int cols)").replace("blockIdx.x", "row")
    honest = honest.replace(
        "  float sum", "  for (int row = blockIdx.x; row < rows; row += gridDim.x) {\n  float sum"
    ).replace("/ cols;\n}", "/ cols;\n}}")
    assert isinstance(referee(LARGE_MEAN).judge(honest), Passed)
    evidence = rejected(referee, LARGE_MEAN, honest.replace("row += gridDim.x", "row += 5 * gridDim.x / 4"))
    assert isinstance(evidence, Crashed)
    assert evidence.findings[0].kind is FindingKind.OUTPUT_NOT_WRITTEN


def test_one_wrong_row_of_many(referee: Make) -> None:
    """Its inputs are those of other rows, so its results must be theirs."""
    text = kernels.MEAN_BY_WARP.replace("sum / cols", "sum / cols + (blockIdx.x == 11003 && cols == 128) * 1e-2f")
    evidence = rejected(
        referee, replace(tasks.MEAN, dimensions=(Dimension("rows", 65536), Dimension("cols", 128))), text
    )
    assert isinstance(evidence, WrongValues)
    assert [one.index for one in evidence.outputs[0].first] == [(11003,)]


def test_wrong_in_far_blocks_alone(referee: Make) -> None:
    evidence = rejected(
        referee, tasks.MATMUL, kernels.MATMUL.replace("sum;", "sum + (row > 900 && column > 900) * 0.1f;")
    )
    assert isinstance(evidence, WrongValues)
    assert evidence.case.sizes == tasks.MATMUL.sizes
    assert evidence.outputs[0].first[0].index[0] > 900


def test_what_other_blocks_leave_behind_a_map_is_not_judged_from_a_few(
    referee: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_sample, "_ONLY_WHOLE", 0)
    huge = replace(tasks.MEAN, dimensions=(Dimension("rows", 131072), Dimension("cols", 128)))
    verdict = referee(huge).judge(BY_MAP)
    assert isinstance(verdict, Passed), verdict
    assert any("no result judged" in one for one in (*verdict.unjudged, *verdict.notes))


@pytest.mark.slow
def test_what_was_judged_nowhere_is_named(referee: Make) -> None:
    huge = replace(tasks.MEAN, dimensions=(Dimension("rows", 65536), Dimension("cols", 1024)))
    verdict = referee(huge).judge(BY_TWO)
    assert isinstance(verdict, Passed)
    assert verdict.is_provisional
    assert (18, "it never ran") in [(one.line, one.why) for one in verdict.uncovered]
    assert {one.line for one in verdict.uncovered} <= {17, 18}
    honest = referee(huge).judge(BY_TWO.replace("(long long)rows * cols > 60000000", "rows % 2 == 0"))
    assert isinstance(honest, Passed)
    assert not honest.is_provisional, honest.unjudged


def test_scalars_of_the_own_call(referee: Make) -> None:
    """What it does with them at these sizes alone: the usual ones do not show a number that is written in."""
    rows = "when rows * x.shape[1] < 100000"
    launch = next(line for line in kernels.LAYERNORM.split("\n") if line.startswith("//! launch"))
    careless = launch.replace("eps", "1e-05")
    assert careless != launch
    other = rows.replace("<", ">=")
    text = kernels.LAYERNORM.replace(launch, f"{launch} {rows}\n{careless} {other}")
    evidence = rejected(referee, tasks.LAYERNORM, text)
    assert isinstance(evidence, WrongValues)
    assert evidence.case.sizes == tasks.LAYERNORM.sizes
    assert evidence.case.values.startswith("other numbers")


@pytest.mark.slow
def test_a_task_whose_sizes_are_all_fixed(referee: Make) -> None:
    """There is no smaller call: what can be run of this one is judged, with every kind of values."""
    dimensions = tuple(replace(one, varies=False) for one in LARGE_MEAN.dimensions)
    task = replace(LARGE_MEAN, dimensions=dimensions)
    verdict = referee(task).judge(kernels.MEAN_BY_WARP)
    assert isinstance(verdict, Passed)
    assert verdict.is_provisional
    assert "no smaller call" in verdict.unjudged[-1]
    careless = kernels.MEAN_BY_WARP.replace("= sum / cols", "= sum / cols * (fabsf(sum) > 1e5f ? 1.01f : 1.f)")
    assert careless != kernels.MEAN_BY_WARP
    assert isinstance(rejected(referee, task, careless), WrongValues)


def test_places_that_no_judged_block_reached() -> None:
    huge = replace(tasks.DOUBLE, dimensions=(Dimension("n", 2 << 30),))
    below, beyond = (WrittenPart("out", ((0, last),), b"", b"") for last in (2**30 - 1, 2**31 - 1))
    assert "2,147,483,648 bytes" in not_reached(huge, huge.sizes, (replace(below, indices=((0, 5),)),), judged=True)
    assert "4,294,967,296 bytes" in not_reached(huge, huge.sizes, (below,), judged=True)
    assert not not_reached(huge, huge.sizes, (beyond,), judged=True)
    assert not_reached(huge, huge.sizes, (beyond,), judged=False)
    assert not_reached(huge, {"n": 2**28}, (beyond,), judged=True)
    assert not not_reached(LARGE_DOUBLE, LARGE_DOUBLE.sizes, (), judged=False)


def test_sampled_calls_are_said(referee: Make) -> None:
    verdict = referee(tasks.MATMUL).judge(kernels.MATMUL)
    assert isinstance(verdict, Passed)
    assert not verdict.is_provisional
    assert [one.case.sizes for one in verdict.cases if one.status is CaseStatus.SAMPLED] == [tasks.MATMUL.sizes]


@pytest.mark.parametrize(
    ("task", "function", "names"),
    [
        (tasks.MATMUL, lambda a, b: a @ b, ("m", "n")),
        (tasks.SOFTMAX, lambda logits: torch.softmax(logits, -1), ("rows",)),
        (tasks.SOFTMAX, lambda logits: logits - logits.mean(), ()),
        (tasks.SOFTMAX, lambda logits: logits.flip(0), ("cols",)),
        (tasks.MEAN, lambda samples: samples.mean(-1), ("rows",)),
        (tasks.TOTAL, lambda terms: terms.sum().reshape(1), ()),
    ],
)
def test_independent_dimensions(task: Task, function: Callable[..., torch.Tensor], names: tuple[str, ...]) -> None:
    sizes = dict.fromkeys(task.sizes, 5)
    assert find_independent(function, IndependenceRequest(task, sizes)).names == names
