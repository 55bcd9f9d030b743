"""What must be read, and kernels that at the task's own sizes read or write too little to have done the work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from tests.verify import kernels, tasks

from tilewright.records import (
    Crashed,
    Dimension,
    DType,
    FindingKind,
    Impossible,
    Passed,
    Rejected,
    Task,
    TaskOutput,
    TensorInput,
    Verdict,
    from_json,
    to_json,
)
from tilewright.verify import Referee
from tilewright.verify.minimum_work import NeededRequest, find_needed

Make = Callable[[Task], Referee]

LARGE = replace(tasks.MEAN, dimensions=(Dimension("rows", 8192), Dimension("cols", 1024)))
BY_BLOCK = kernels.MEAN_BY_WARP
assert "run<<<rows, 32>>>" in BY_BLOCK
assert "blockIdx.x" in BY_BLOCK
NO_LAUNCH = BY_BLOCK.replace("cols)\n", "cols) when rows * cols < 4000000\n", 1)
FEW_BLOCKS = BY_BLOCK.replace("run<<<rows, 32>>>", "run<<<min(rows, 16384 if cols < 1000 else 1024), 32>>>")


def needed(function: Callable[..., torch.Tensor], *sizes: tuple[int, int]) -> tuple[str, ...]:
    inputs = (TensorInput("x", DType.F32, ("rows", "cols")), TensorInput("z", DType.F32, ("rows", "cols")))
    dimensions = (Dimension("rows", 8), Dimension("cols", 8))
    task = Task("f", "", "f", inputs, (TaskOutput("y", DType.F32, ("rows", "cols")),), dimensions)
    asked = tuple({"rows": rows, "cols": cols} for rows, cols in sizes)
    return find_needed(function, NeededRequest(task, ("x", "z"), asked)).names


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (lambda x, z: x + z, ("x", "z")),
        (lambda x, z: torch.relu(x) * z.sum(), ("x", "z")),
        (lambda x, z: x.max(-1, keepdim=True).values + torch.minimum(x, z), ("x", "z")),
        (lambda x, z: torch.softmax(x, -1), ("x",)),
        (lambda x, z: x + z[0], ("x",)),
        (lambda x, z: x[:, :64] + z.mean(), ("z",)),  # all of x is read at few columns
        (lambda x, z: torch.where(torch.arange(x.shape[-1]) % 2 == 0, x, z), ()),
        (lambda x, z: torch.tril(x) + z, ("z",)),
        (lambda x, z: x + z + torch.rand(()), ()),
    ],
)
def test_needed_is_what_changes_a_result_wherever_it_is_changed(
    function: Callable[..., torch.Tensor], names: tuple[str, ...]
) -> None:
    assert needed(function, (5, 7), (5, 300)) == names


def test_the_tasks_own_inputs(referee: Make) -> None:
    assert referee(LARGE).needed_inputs == ("samples",)
    assert referee(tasks.MATMUL).needed_inputs == ("a", "b")
    assert referee(tasks.ROWS).needed_inputs == ()  # which rows of the table is for the index to say


def refused(verdict: Verdict) -> Impossible:
    assert isinstance(verdict, Rejected)
    assert isinstance(verdict.evidence, Impossible)
    assert verdict.cases  # every case was right
    assert from_json(Verdict, to_json(verdict)) == verdict
    return verdict.evidence


def test_no_launch_at_the_tasks_own_sizes(referee: Make) -> None:
    evidence = refused(referee(LARGE).judge(NO_LAUNCH))
    assert "no step of the plan is given out" in evidence.message
    assert (evidence.found, evidence.least) == (0.0, 8192 * 4)


def test_rows_that_no_block_writes(referee: Make) -> None:
    verdict = referee(LARGE).judge(FEW_BLOCKS)
    assert isinstance(verdict, Rejected)
    assert isinstance(verdict.evidence, Crashed)
    assert verdict.evidence.findings[0].kind is FindingKind.OUTPUT_NOT_WRITTEN
    assert "7,168 of 8,192 elements of out (87.5 %) are never written" in verdict.evidence.message


def test_too_little_is_read(referee: Make) -> None:
    """A part of each row, where there are many."""
    text = kernels.MEAN.replace("i < cols", "i < (rows * cols > 4000000 ? cols / 4 : cols)")
    assert text != kernels.MEAN
    evidence = refused(referee(LARGE).judge(text))
    assert evidence.message.startswith("samples must be read whole: of its 8,388,608 elements all blocks read 25 %")
    assert (evidence.found, evidence.least, evidence.unit) == (1 << 21, 1 << 23, "elements")


@pytest.mark.parametrize("text", [kernels.MEAN, BY_BLOCK])
def test_honest_ones_pass(referee: Make, text: str) -> None:
    assert isinstance(referee(LARGE).judge(text), Passed)


BY_BULK_COPIES = """\
//! op      double(v) -> out
//! out     out: f32[v.shape]
//! let     n = v.numel
//! launch  run<<<ceil_div(n, 1024), 1024>>>(v, out, n)
__global__ void run(const float* v, float* out, int n) {
  __shared__ __align__(16) float held[1024];
  const int first = blockIdx.x * 1024, here = min(1024, n - first);
  if (threadIdx.x < here) held[threadIdx.x] = 2.f * v[first + threadIdx.x] + 1.f;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  const int whole = here / 4 * 4;
  if (threadIdx.x >= whole && threadIdx.x < here) out[first + threadIdx.x] = held[threadIdx.x];
  if (threadIdx.x == 0 && whole > 0) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
                 ::"l"(out + first), "r"((unsigned)__cvta_generic_to_shared(held)), "r"(whole * 4) : "memory");
    asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;" ::: "memory");
  }
}
"""


def test_bulk_copies_out_of_shared_memory_are_written(referee: Make) -> None:
    sizes = tuple(replace(one, size=1 << 24) for one in tasks.DOUBLE.dimensions[:1])
    task = replace(tasks.DOUBLE, dimensions=(*sizes, *tasks.DOUBLE.dimensions[1:]))
    verdict = referee(task).judge(BY_BULK_COPIES)
    assert isinstance(verdict, Passed), verdict
