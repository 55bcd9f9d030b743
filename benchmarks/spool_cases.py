"""The jobs of `gpu_spool_abuse`: small kernel files, their inputs, and what each must compute, in numpy.

Also `make_job`, which turns a kernel file and inputs into a job. Nothing here runs a job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilewright.records import (
    Content,
    Data,
    DType,
    FaultKind,
    GpuProfile,
    InputTensor,
    Integers,
    Job,
    Limits,
    Normal,
    PackedLaunch,
    TensorSpec,
    Uniform,
)

Array = np.ndarray[Any, Any]
KERNELS: dict[str, str] = {
    "axpy": """
//! op      axpy(x, y, a: float) -> z
//! out     z: f32[x.shape]
//! need    x.dtype == f32 and y.dtype == f32 and x.shape == y.shape
//! let     n = x.numel
//! launch  axpy<<<ceil_div(n, 256), 256>>>(x, y, z, a, n)
__global__ void axpy(const float* x, const float* y, float* z, float a, long long n) {
  long long i = blockIdx.x * 256ll + threadIdx.x;
  if (i < n) z[i] = a * x[i] + y[i];
}
""",
    "center": """
//! op      center(x, eps: float) -> y
//! out     y: f32[x.shape]
//! need    x.dtype == f32 and x.ndim == 2
//! let     cols = x.shape[1]
//! launch  center<<<x.shape[0], 128>>>(x, y, cols, eps)
__device__ float block_sum(float value, float* shared) {
  for (int step = 16; step; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  value = shared[0] + shared[1] + shared[2] + shared[3];
  __syncthreads();
  return value;
}
__global__ void center(const float* x, float* y, int cols, float eps) {
  __shared__ float shared[4];
  const float* row = x + (long long)blockIdx.x * cols;
  float sum = 0.f, squares = 0.f;
  for (int c = threadIdx.x; c < cols; c += 128) sum += row[c];
  const float mean = block_sum(sum, shared) / cols;
  for (int c = threadIdx.x; c < cols; c += 128) squares += (row[c] - mean) * (row[c] - mean);
  const float scale = rsqrtf(block_sum(squares, shared) / cols + eps);
  for (int c = threadIdx.x; c < cols; c += 128) y[(long long)blockIdx.x * cols + c] = (row[c] - mean) * scale;
}
""",
    "transpose": """
//! op      transpose(x) -> y
//! need    x.ndim == 2 and x.dtype == i32
//! let     rows = x.shape[0], cols = x.shape[1]
//! out     y: x.dtype[cols, rows]
//! launch  transpose<<<dim3(ceil_div(cols, 32), ceil_div(rows, 32)), dim3(32, 8)>>>(x, y, rows, cols)
__global__ void transpose(const int* x, int* y, int rows, int cols) {
  __shared__ int tile[32][33];
  for (int k = threadIdx.y; k < 32; k += 8) {
    int r = blockIdx.y * 32 + k, c = blockIdx.x * 32 + threadIdx.x;
    if (r < rows && c < cols) tile[k][threadIdx.x] = x[(long long)r * cols + c];
  }
  __syncthreads();
  for (int k = threadIdx.y; k < 32; k += 8) {
    int r = blockIdx.y * 32 + threadIdx.x, c = blockIdx.x * 32 + k;
    if (r < rows && c < cols) y[(long long)c * rows + r] = tile[threadIdx.x][k];
  }
}
""",
    "square": """
//! op      square(x) -> y
//! out     y: x.dtype[x.shape]
//! need    x.dtype in [f16, bf16]
//! const   T = x.dtype
//! let     n = x.numel
//! launch  square<<<ceil_div(n, 256), 256>>>(x, y, n)
__global__ void square(const T* x, T* y, long long n) {
  long long i = blockIdx.x * 256ll + threadIdx.x;
  if (i < n) { float v = float(x[i]); y[i] = T(v * v + 0.5f); }
}
""",
    "total": """
//! op      total(x) -> y
//! out     y: f32[1]
//! need    x.dtype == f32 and x.numel > 0
//! let     n = x.numel, blocks = min(ceil_div(n, 1024), 264)
//! scratch part: f32[blocks]
//! scratch ticket: i32[1] counter
//! launch  total<<<blocks, 256>>>(x, part, ticket, y, n)
__global__ void total(const float* x, float* part, int* ticket, float* y, long long n) {
  __shared__ float shared[256];
  __shared__ bool last;
  float sum = 0.f;
  for (long long i = blockIdx.x * 256ll + threadIdx.x; i < n; i += gridDim.x * 256ll) sum += x[i];
  for (int round = 0; round < 2; ++round) {
    shared[threadIdx.x] = sum;
    __syncthreads();
    for (int half = 128; half; half /= 2) {
      if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
      __syncthreads();
    }
    if (round == 1) break;
    if (threadIdx.x == 0) {
      part[blockIdx.x] = shared[0];
      __threadfence();
      last = atomicAdd(ticket, 1) == (int)gridDim.x - 1;
    }
    __syncthreads();
    if (!last) return;
    __threadfence();
    sum = 0.f;
    for (int i = threadIdx.x; i < (int)gridDim.x; i += 256) sum += ((volatile float*)part)[i];
    __syncthreads();
  }
  if (threadIdx.x == 0) { y[0] = shared[0]; ticket[0] = 0; }
}
""",
    "histogram": """
//! op      histogram(x) -> counts
//! out     counts: i64[64]
//! need    x.dtype == u8
//! let     n = x.numel
//! scratch bins: i32[64] zeroed
//! launch  count<<<min(ceil_div(n, 256), 1024), 256>>>(x, bins, n)
//! launch  widen<<<1, 64>>>(bins, counts)
__global__ void count(const unsigned char* x, int* bins, long long n) {
  for (long long i = blockIdx.x * 256ll + threadIdx.x; i < n; i += gridDim.x * 256ll) atomicAdd(bins + x[i] % 64, 1);
}
__global__ void widen(const int* bins, long long* counts) { counts[threadIdx.x] = bins[threadIdx.x]; }
""",
    "columns": """
//! op      columns(x, sum!)
//! accept  x: strided
//! need    x.ndim == 2 and x.dtype == f32 and sum.dtype == f32 and sum.shape == [x.shape[1]]
//! launch  columns<<<ceil_div(x.shape[1], 128), 128>>>(x, sum, x.shape, x.stride)
__global__ void columns(const float* x, float* sum, int rows, int cols, long long row, long long col) {
  int c = blockIdx.x * 128 + threadIdx.x;
  if (c >= cols) return;
  float total = sum[c];
  for (int r = 0; r < rows; ++r) total += x[r * row + c * col];
  sum[c] = total;
}
""",
    "patient": """
//! op      patient(x, a: int, c: int, times: int) -> y
//! out     y: i32[x.shape]
//! need    x.dtype == i32 and x.numel <= 256
//! launch  patient<<<1, x.numel>>>(x, y, a, c, times)
__global__ void patient(const int* x, int* y, int a, int c, long long times) {
  unsigned value = x[threadIdx.x];
  for (long long i = 0; i < times; ++i) value = value * a + c;
  y[threadIdx.x] = value;
}
""",
    "hang": """
//! op      hang(x) -> y
//! out     y: f32[x.shape]
//! need    x.dtype == f32 and x.numel > 0
//! launch  never_ends<<<1, 32>>>(x, y)
__global__ void never_ends(const float* x, float* y) {
  while (*(const volatile float*)x >= 0.f) y[threadIdx.x % 2] += 1.f;
}
""",
    "wild": """
//! op      wild(x) -> y
//! out     y: f32[x.shape]
//! need    x.dtype == f32 and x.numel > 0
//! launch  writes_wildly<<<4, 64>>>(x, y)
__global__ void writes_wildly(const float* x, float* y) { y[(long long)(x[0] + 1.f) << 38] = 1.f; }
""",
    "greedy": """
//! op      greedy(x) -> y
//! out     y: f32[x.shape]
//! need    x.dtype == f32 and x.numel == 64
//! launch  wants_too_much<<<1, 64, 1024>>>(x, y)
__global__ void wants_too_much(const float* x, float* y) {
  extern __shared__ float room[];
  room[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = room[63 - threadIdx.x];
}
""",
}

# -- what each must compute, in numpy --


def as_float32(raw: bytes, dtype: DType) -> Array:
    """Elements of a float type as f32; numpy has no bf16, which is the upper half of an f32."""
    if dtype is DType.BF16:
        return (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(raw, {DType.F16: np.float16, DType.F32: np.float32}[dtype]).astype(np.float32)


def array_of(raw: bytes, spec: TensorSpec) -> Array:
    """A tensor's bytes, in storage order, as an array of its shape."""
    plain = {DType.I64: np.int64, DType.I32: np.int32, DType.U8: np.uint8}
    flat = np.frombuffer(raw, plain[spec.dtype]) if spec.dtype in plain else as_float32(raw, spec.dtype)
    steps = [flat.itemsize * step for step in spec.stride]
    return np.lib.stride_tricks.as_strided(flat, spec.shape, steps)


def _center(x: Array, eps: float) -> Array:
    wide = x.astype(np.float64)
    return (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + eps)


def _patient(x: Array, a: int, c: int, times: int) -> Array:
    """The generator's closed form by repeated squaring: one step is (a, c), two are (a*a, a*c + c)."""
    factor, addend = 1, 0
    while times:
        if times & 1:
            factor, addend = factor * a % 2**32, (addend * a + c) % 2**32
        a, c = a * a % 2**32, (a * c + c) % 2**32
        times >>= 1
    return ((x.astype(np.int64) % 2**32 * factor + addend) % 2**32).astype(np.uint32).view(np.int32)


REFERENCES: dict[str, Callable[..., Array]] = {
    "axpy": lambda x, y, a: np.float32(a) * x + y,
    "center": _center,
    "transpose": lambda x: x.T,
    "square": lambda x: x * x + np.float32(0.5),
    "total": lambda x: x.astype(np.float64).sum(keepdims=True).reshape(1),
    "histogram": lambda x: np.bincount(x.reshape(-1) % 64, minlength=64),
    "columns": lambda x, sum: sum + x.astype(np.float64).sum(0),
    "patient": _patient,
}
# Largest error as a fraction of the largest element: half-precision results are rounded once more by the kernel.
TOLERANCE = {"center": 1e-5, "total": 1e-5, "columns": 1e-5, "axpy": 1e-6}
HALF_TOLERANCE = {DType.F16: 1e-3, DType.BF16: 8e-3}


@dataclass(frozen=True)
class Case:
    """One job: a kernel, its inputs and scalars. `bad` is the fault it must end with."""

    id: str
    kernel: str
    tensors: Mapping[str, tuple[TensorSpec, Content]]
    scalars: Mapping[str, int | float]
    seconds: float = 60.0
    bad: FaultKind | None = None


def tensor(
    dtype: DType, shape: tuple[int, ...], seed: int, low: int = -50, high: int = 50
) -> tuple[TensorSpec, Content]:
    """An input whose content travels with the job, so that the answer can be computed beforehand."""
    drawn = np.random.default_rng(seed).integers(low, high, shape)
    if dtype in (DType.I32, DType.U8):
        raw = drawn.astype({DType.I32: np.int32, DType.U8: np.uint8}[dtype]).tobytes()
    else:
        values = (drawn / np.float32(16)).astype(np.float32)  # exact in every float type used here
        raw = (
            (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
            if dtype is DType.BF16
            else (values.astype(np.float16) if dtype is DType.F16 else values).tobytes()
        )
    return TensorSpec.contiguous(dtype, shape), Data(raw)


def seeded(dtype: DType, shape: tuple[int, ...], content: Content) -> tuple[TensorSpec, Content]:
    """An input made on the device from a seed; it comes back with the answer, which is computed from it."""
    return TensorSpec.contiguous(dtype, shape), content


def good_cases() -> list[Case]:
    cases: list[Case] = []

    def add(kernel: str, tensors: dict[str, tuple[TensorSpec, Content]], **scalars: int | float) -> None:
        cases.append(Case(f"{len(cases):02d}-{kernel}", kernel, tensors, scalars))

    f32, i32 = DType.F32, DType.I32
    for index, shape in enumerate(((1,), (1000,), (33, 77), (2048, 513))):
        add("axpy", {"x": tensor(f32, shape, index), "y": tensor(f32, shape, index + 50)}, a=1.5 - index)
    for index, shape in enumerate(((1, 7), (64, 128), (300, 1000), (17, 5000))):
        add("center", {"x": tensor(f32, shape, 10 + index)}, eps=1e-5)
    for index, shape in enumerate(((1, 1), (33, 65), (1000, 31), (512, 768))):
        add("transpose", {"x": tensor(i32, shape, 20 + index)})
    for index, dtype in enumerate((DType.F16, DType.BF16, DType.F16, DType.BF16)):
        add("square", {"x": tensor(dtype, (777 * (index + 1),), 30 + index)})
    for index, size in enumerate((1, 1023, 500_001)):
        add("total", {"x": tensor(f32, (size,), 40 + index)})
    add("total", {"x": seeded(f32, (1_000_003,), Uniform(7, 0.0, 2.0))})
    for index, size in enumerate((255, 400_000)):
        add("histogram", {"x": tensor(DType.U8, (size,), 60 + index, 0, 200)})
    add("histogram", {"x": seeded(DType.U8, (1 << 20,), Integers(8, 0, 256))})
    gapped = TensorSpec(f32, (90, 33), (1, 100))
    add("columns", {"x": tensor(f32, (64, 300), 70), "sum": tensor(f32, (300,), 71)})
    add("columns", {"x": (gapped, tensor(f32, (gapped.extent,), 72)[1]), "sum": tensor(f32, (33,), 73)})
    add("axpy", {"x": seeded(f32, (4097,), Normal(5)), "y": seeded(f32, (4097,), Normal(6, 3.0, 0.5))}, a=0.25)
    return cases


def all_cases() -> list[Case]:
    """27 good jobs, the slow one that the runner is killed under among them, and three bad ones in the middle."""
    x = tensor(DType.F32, (64,), 1, 0, 50)
    cases = good_cases()
    patient = Case(
        "26-patient", "patient", {"x": tensor(DType.I32, (64,), 80)}, {"a": 1664525, "c": 1013904223, "times": 2**30}
    )
    cases.insert(17, patient)
    cases.insert(8, Case("bad-hang", "hang", {"x": x}, {}, 3.0, FaultKind.TIME))
    cases.insert(13, Case("bad-wild", "wild", {"x": x}, {}, 60.0, FaultKind.ILLEGAL_ACCESS))
    cases.insert(22, Case("bad-greedy", "greedy", {"x": x}, {}, 60.0, FaultKind.LAUNCH_REFUSED))
    return cases


# -- from a kernel file to a job --


def make_job(
    job_id: str,
    text: str,
    tensors: Mapping[str, tuple[TensorSpec, Content]],
    scalars: Mapping[str, int | float],
    gpu: GpuProfile,
    *,
    limits: Limits | None = None,
    timed_runs: int = 0,
) -> Job:
    """A kernel file at these inputs as a job: evaluated, built, bound. All tensors and results come back."""
    from tilewright.kernel_file import parse
    from tilewright.toolchain import BuiltPlan, build_plan

    file = parse(text.lstrip("\n"), f"{job_id}.cu")
    specs = {name: spec for name, (spec, _) in tensors.items()}
    built = build_plan(file, {**specs, **scalars}, gpu, isolated=False)
    if not isinstance(built, BuiltPlan):
        raise SystemExit(f"{job_id}: {built}")
    inputs = tuple(InputTensor(name, spec, content) for name, (spec, content) in tensors.items())
    returns = (*file.plan.op.results, *tensors)
    job = built.job(job_id, inputs, returns=returns, limits=limits or Limits(seconds=60.0, device_bytes=1 << 30))
    return replace(job, timed_runs=timed_runs)


def with_shared_memory(job: Job, size_bytes: int) -> Job:
    """The job with more dynamic shared memory than its plan was allowed: the driver must be the one to refuse."""
    steps = tuple(
        replace(s, dynamic_smem_bytes=size_bytes) if isinstance(s, PackedLaunch) else s for s in job.plan.steps
    )
    return replace(job, plan=replace(job.plan, steps=steps))
