"""What rules must not say: kernels that look like a fault or a cost, and are none."""

from __future__ import annotations

from tests.lint.test_rules import findings_of

from tilewright.records import LintRule


def rules_of(source: str, *shapes: str) -> set[LintRule]:
    return {finding.rule for finding in findings_of(source, list(shapes))}


WARPS_LEAVE = """\
//! op      row_sum(x) -> y
//! out     y: f32[x.shape[0]]
//! need    x.dtype == f32 and x.ndim == 2
//! launch  row_sum<<<x.shape[0], 128>>>(x, y, x.shape[1])
__global__ void row_sum(const float* x, float* y, int cols) {
  __shared__ float part[4];
  if (threadIdx.x >= LEAVE) return;
  part[threadIdx.x / 32] = x[(long long)blockIdx.x * cols];
  __syncthreads();
  if (threadIdx.x == 0) y[blockIdx.x] = part[0] + part[1];
}
"""


def test_whole_warps_may_leave_before_a_barrier_and_parts_may_not() -> None:
    assert rules_of(WARPS_LEAVE.replace("LEAVE", "64")) == set()
    assert rules_of(WARPS_LEAVE.replace("LEAVE", "48")) == {LintRule.DIVERGENT_BARRIER}


RARE_WAY = """\
//! op      mended(x) -> y
//! out     y: x.dtype[x.shape]
//! need    x.dtype == f32 and x.ndim == 2
//! launch  mended<<<ceil_div(x.shape[0], 128), 128>>>(x, y, x.shape[0], x.shape[1])
__global__ void mended(const float* __restrict__ x, float* __restrict__ y, int rows, int cols) {
  int row = blockIdx.x * 128 + threadIdx.x;
  if (row >= rows) return;
  CONDITION
  for (int c = 0; c < cols; ++c) y[(long long)row * cols + c] = 0.0f;
}
"""


def test_a_way_that_data_decide_about_is_not_called_uncoalesced() -> None:
    assert rules_of(RARE_WAY.replace("CONDITION", "if (!isnan(x[row])) return;")) == set()
    assert rules_of(RARE_WAY.replace("CONDITION", "")) == {LintRule.UNCOALESCED}


MAXIMUM = """\
//! op      clipped(x) -> y
//! out     y: x.dtype[x.shape]
//! need    x.dtype == f32
//! launch  clipped<<<ceil_div(x.numel, 256), 256>>>(x, y, x.numel)
__global__ void clipped(const float* x, float* y, long long n) {
  long long i = blockIdx.x * 256LL + threadIdx.x;
  if (i < n) y[i] = VALUE;
}
"""


def test_a_maximum_beside_the_value_itself_drops_no_nan() -> None:
    assert rules_of(MAXIMUM.replace("VALUE", "x[i] - fmaxf(x[i], 0.0f)")) == set()
    assert rules_of(MAXIMUM.replace("VALUE", "x[i] != x[i] ? x[i] : fmaxf(x[i], 0.0f)")) == set()


def test_the_table_inside_a_sine_is_no_array_of_the_kernel() -> None:
    assert rules_of(MAXIMUM.replace("VALUE", "sinf(x[i])")) == set()
