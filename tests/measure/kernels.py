"""Kernel files and tasks of the tests: the same operation written well and written badly."""

from __future__ import annotations

from tilewright.kernel_file import KernelFile, parse
from tilewright.records import Dimension, DType, NumberInput, Task, TaskOutput, TensorInput

F32 = DType.F32


def scale_task(rows: int = 4096, cols: int = 4096) -> Task:
    """y = 2 x."""
    return _task("scale", "def scale(x):\n    return x * 2\n", rows, cols, ("rows", "cols"))


def row_sum_task(rows: int, cols: int) -> Task:
    return _task("row_sum", "def row_sum(x):\n    return x.sum(-1)\n", rows, cols, ("rows",))


def transpose_task(rows: int = 4096, cols: int = 4096) -> Task:
    return _task("flip", "def flip(x):\n    return x.t().contiguous()\n", rows, cols, ("cols", "rows"))


def _task(name: str, source: str, rows: int, cols: int, result: tuple[str, ...]) -> Task:
    inputs: tuple[TensorInput | NumberInput, ...] = (TensorInput("x", F32, ("rows", "cols")),)
    outputs = (TaskOutput("y", F32, result),)
    return Task(name, source, name, inputs, outputs, (Dimension("rows", rows), Dimension("cols", cols)))


def file(text: str) -> KernelFile:
    return parse(text, "kernel.cu")


def scale(body: str, elements_per_thread: int, threads: int = 256, more: str = "") -> KernelFile:
    """A pointwise file: `body` works on x, y, n and the thread's number i."""
    return file(
        f"""//! op      scale(x) -> y
//! out     y: x.dtype[x.shape]
//! need    x.dtype == f32
{more}//! launch  scale<<<ceil_div(x.numel, {threads * elements_per_thread}), {threads}>>>(x, y, x.numel)
__global__ void scale(const float* __restrict__ x, float* __restrict__ y, long long n) {{
  const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  {body}
}}
"""
    )


# Right with 256 threads only.
FIXED_STRIDE = file(
    """//! op      row_sum(x) -> y
//! let     rows = x.shape[0], cols = x.shape[1]
//! out     y: f32[rows]
//! tune    THREADS = 256 | 128 | 64
//! launch  row_sum<<<rows, THREADS>>>(x, y, cols)
__global__ void row_sum(const float* __restrict__ x, float* __restrict__ y, int cols) {
  __shared__ float partial[THREADS / 32];
  float sum = 0;
  for (int i = threadIdx.x; i < cols; i += 256) sum += x[blockIdx.x * (long long)cols + i];
  for (int offset = 16; offset; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    sum = 0;
    for (int i = 0; i < THREADS / 32; ++i) sum += partial[i];
    y[blockIdx.x] = sum;
  }
}
"""
)

SCALAR = scale("if (i < n) y[i] = 2 * x[i];", 1)
VECTOR = scale(
    """if (4 * i < n) {
    float4 v = reinterpret_cast<const float4*>(x)[i];
    reinterpret_cast<float4*>(y)[i] = make_float4(2 * v.x, 2 * v.y, 2 * v.z, 2 * v.w);
  }""",
    4,
)
# The same with a tail that no round size takes.
VECTOR_WITH_TAIL = scale(
    """if (4 * i + 3 < n) {
    float4 v = reinterpret_cast<const float4*>(x)[i];
    reinterpret_cast<float4*>(y)[i] = make_float4(2 * v.x, 2 * v.y, 2 * v.z, 2 * v.w);
  } else {
    for (long long k = 4 * i; k < n; ++k) y[k] = 2 * x[k];
  }""",
    4,
)
# Neighbouring threads are 32 elements apart: every lane needs a sector of its own.
STRIDED = scale(
    """const long long base = i / 32 * 1024, lane = i % 32;
  for (int k = 0; k < 32; ++k) if (base + lane * 32 + k < n) y[base + lane * 32 + k] = 2 * x[base + lane * 32 + k];""",
    32,
)
# Whole sectors, each of a line of its own: two lanes of a row of 128 bytes, and the next request its next sector.
SECTOR_BY_SECTOR = scale(
    """const long long row = i / 32 * 512 + i % 32 / 2 * 32 + i % 2 * 4;
  for (int k = 0; k < 4; ++k) if (row + 8 * k + 3 < n) {
    float4 v = reinterpret_cast<const float4*>(x + row + 8 * k)[0];
    reinterpret_cast<float4*>(y + row + 8 * k)[0] = make_float4(2 * v.x, 2 * v.y, 2 * v.z, 2 * v.w);
  }""",
    16,
)
# The same after a useless pass over the input.
TWO_PASSES = scale(
    """float4 v = reinterpret_cast<const float4*>(x)[i];
  float4 w = reinterpret_cast<const float4*>(x)[(i + n / 8) % (n / 4)];
  if (w.x == 12345.0f) v.x = 0;
  reinterpret_cast<float4*>(y)[i] = make_float4(2 * v.x, 2 * v.y, 2 * v.z, 2 * v.w);""",
    4,
)
# Through scratch memory, in two launches.
TWO_LAUNCHES = file(
    """//! op      scale(x) -> y
//! out     y: x.dtype[x.shape]
//! scratch t: x.dtype[x.shape]
//! launch  copy<<<ceil_div(x.numel, 1024), 256>>>(x, t, x.numel)
//! launch  copy<<<ceil_div(x.numel, 1024), 256>>>(t, y, x.numel)
__global__ void copy(const float* __restrict__ x, float* __restrict__ y, long long n) {
  const long long i = blockIdx.x * 256ll + threadIdx.x;
  if (4 * i < n) {
    float4 v = reinterpret_cast<const float4*>(x)[i];
    reinterpret_cast<float4*>(y)[i] = make_float4(2 * v.x, 2 * v.y, 2 * v.z, 2 * v.w);
  }
}
"""
)
# Enough shared memory that only one small block fits on a multiprocessor.
CROWDED = scale(
    """extern __shared__ float held[];
  if (4 * i < n) {
    float4 v = reinterpret_cast<const float4*>(x)[i];
    if (v.x == 12345.0f) held[threadIdx.x] = v.y;
    reinterpret_cast<float4*>(y)[i] = make_float4(2 * v.x, 2 * v.y, 2 * v.z, 2 * v.w);
  }""",
    4,
)
CROWDED = file(CROWDED.text.replace(", 256>>>", ", 256, 200000>>>"))


def row_sum(blocks_per_row: int) -> KernelFile:
    """Sums of rows; several blocks of one row add their parts up in an output that starts at zero."""
    return file(
        f"""//! op      row_sum(x) -> y
//! out     y: x.dtype[x.shape[0]] zeroed
//! let     cols = x.shape[1]
//! const   PARTS = {blocks_per_row}
//! launch  row_sum<<<dim3(PARTS, x.shape[0]), 256>>>(x, y, cols)
__global__ void row_sum(const float* __restrict__ x, float* y, int cols) {{
  const float4* row = reinterpret_cast<const float4*>(x + blockIdx.y * (long long)cols);
  float sum = 0;
  for (int c = blockIdx.x * 256 + threadIdx.x; c < cols / 4; c += PARTS * 256) {{
    const float4 v = row[c];
    sum += (v.x + v.y) + (v.z + v.w);
  }}
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
  if (threadIdx.x % 32 == 0) atomicAdd(&y[blockIdx.y], sum);
}}
"""
    )


def transpose(pitch: int) -> KernelFile:
    """By way of a tile in shared memory, whose rows are `pitch` elements apart: 32 makes columns collide."""
    return file(
        f"""//! op      flip(x) -> y
//! out     y: x.dtype[x.shape[1], x.shape[0]]
//! let     rows = x.shape[0], cols = x.shape[1]
//! need    rows % 32 == 0 and cols % 32 == 0
//! launch  flip<<<dim3(cols / 32, rows / 32), dim3(32, 8)>>>(x, y, rows, cols)
__global__ void flip(const float* __restrict__ x, float* __restrict__ y, int rows, int cols) {{
  __shared__ float tile[32 * {pitch}];
  const int column = blockIdx.x * 32 + threadIdx.x, row = blockIdx.y * 32;
  for (int k = threadIdx.y; k < 32; k += 8) tile[k * {pitch} + threadIdx.x] = x[(row + k) * (long long)cols + column];
  __syncthreads();
  for (int k = threadIdx.y; k < 32; k += 8)
    y[(blockIdx.x * 32 + k) * (long long)rows + row + threadIdx.x] = tile[threadIdx.x * {pitch} + k];
}}
"""
    )


# Each thread reads along a row and writes down a column.
NAIVE_TRANSPOSE = file(
    """//! op      flip(x) -> y
//! out     y: x.dtype[x.shape[1], x.shape[0]]
//! let     rows = x.shape[0], cols = x.shape[1]
//! launch  flip<<<dim3(ceil_div(cols, 256), rows), 256>>>(x, y, rows, cols)
__global__ void flip(const float* __restrict__ x, float* __restrict__ y, int rows, int cols) {
  const int column = blockIdx.x * 256 + threadIdx.x;
  if (column < cols) y[column * (long long)rows + blockIdx.y] = x[blockIdx.y * (long long)cols + column];
}
"""
)
# Blocks of several sizes. With 256 wide threads the first elements are wrong.
TUNED = file(
    """//! op      scale(x) -> y
//! out     y: x.dtype[x.shape]
//! need    x.dtype == f32
//! tune    THREADS = 32 | 64 | 128 | 256
//! tune    WIDE = false | true
//! need    x.numel % 4 == 0 or not WIDE
//! const   EACH = 4 if WIDE else 1
//! launch  scale<<<ceil_div(x.numel, THREADS * EACH), THREADS>>>(x, y, x.numel)
__global__ void scale(const float* __restrict__ x, float* __restrict__ y, long long n) {
  const long long i = blockIdx.x * (long long)THREADS + threadIdx.x;
  if (THREADS == 256 && WIDE && i == 0) { y[0] = 1; return; }
  if constexpr (WIDE) {
    if (4 * i >= n) return;
    const float4 v = reinterpret_cast<const float4*>(x)[i];
    reinterpret_cast<float4*>(y)[i] = make_float4(2 * v.x, 2 * v.y, 2 * v.z, 2 * v.w);
  } else {
    if (i < n) y[i] = 2 * x[i];
  }
}
"""
)
