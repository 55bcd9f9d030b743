"""What a verdict takes on a GPU at the sizes people use: seconds, device memory, elements judged.

    python benchmarks/full_size_verdicts.py [-o result.json] [NAME...]

Seven operations at the sizes that KernelBench v0.1 gives them, each with a plain kernel. Every one is judged
twice: the first verdict starts processes and finds out how to cut the call, the second is what an attempt takes.
Memory is what the GPU says it has in use while a verdict is made, less what it has with every process up and idle. Then
one through a spool's worker, and a whole run of the ReLU: three attempts of the playbook, measured beside PyTorch.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tilewright
from recording import write_result
from tilewright.devices.child_device import CudaDevice, EmulatedDevice
from tilewright.devices.cuda.driver import gpu_profile
from tilewright.devices.spool import SpoolDevice
from tilewright.records import (
    CaseStatus,
    Dimension,
    DType,
    Passed,
    SizeFormula,
    Task,
    TaskOutput,
    TensorInput,
    UniformValues,
    to_json,
)
from tilewright.reference import Reference, ReferenceLimits
from tilewright.reference.spooled import SpoolReference
from tilewright.verify import Referee

SOURCE = """\
import torch
import torch.nn.functional as F

def relu(x):
    return torch.relu(x)

def softmax(x):
    return torch.softmax(x, dim=1)

def layernorm(x, weight, bias):
    return F.layer_norm(x, x.shape[1:], weight, bias)

def rmsnorm(x):
    return x / torch.sqrt(torch.mean(x ** 2, dim=1, keepdim=True) + 1e-5)

def sum_over(x):
    return torch.sum(x, dim=1, keepdim=True)

def matmul(a, b):
    return a @ b

def conv(x, weight):
    return F.conv2d(x, weight)
"""

RELU = """\
//! op      relu(x) -> y
//! out     y: f32[x.shape]
//! let     n = x.numel
//! launch  run<<<min(ceil_div(n, 256), device.sms * 16), 256>>>(x, y, n)
__global__ void run(const float* x, float* y, long long n) {
  for (long long i = blockIdx.x * 256ll + threadIdx.x; i < n; i += gridDim.x * 256ll) y[i] = x[i] < 0.f ? 0.f : x[i];
}
"""
BLOCK_SUM = """\
__device__ float whole(float value, bool maximum) {
  __shared__ float part[32];
  for (int offset = 16; offset; offset /= 2) {
    float other = __shfl_xor_sync(~0u, value, offset);
    value = maximum ? fmaxf(value, other) : value + other;
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = value;
  __syncthreads();
  value = part[0];
  for (int warp = 1; warp < THREADS / 32; ++warp) value = maximum ? fmaxf(value, part[warp]) : value + part[warp];
  return value;
}
"""
SOFTMAX = (
    """\
//! op      softmax(x) -> y
//! let     rows = x.shape[0], cols = x.shape[1]
//! out     y: f32[rows, cols]
//! const   THREADS = 1024
//! launch  run<<<rows, THREADS>>>(x, y, cols)
"""
    + BLOCK_SUM
    + """\
__global__ void run(const float* x, float* y, int cols) {
  x += (size_t)blockIdx.x * cols, y += (size_t)blockIdx.x * cols;
  float largest = -INFINITY, sum = 0.f;
  for (int i = threadIdx.x; i < cols; i += THREADS) largest = fmaxf(largest, x[i]);
  largest = whole(largest, true);
  for (int i = threadIdx.x; i < cols; i += THREADS) sum += expf(x[i] - largest);
  sum = whole(sum, false);
  for (int i = threadIdx.x; i < cols; i += THREADS) y[i] = expf(x[i] - largest) / sum;
}
"""
)
LAYERNORM = (
    """\
//! op      layernorm(x, weight, bias) -> y
//! let     rows = x.shape[0], cols = x.shape[1] * x.shape[2] * x.shape[3]
//! out     y: f32[x.shape]
//! const   THREADS = 1024
//! launch  run<<<rows, THREADS>>>(x, weight, bias, y, cols)
"""
    + BLOCK_SUM
    + """\
__global__ void run(const float* x, const float* weight, const float* bias, float* y, int cols) {
  x += (size_t)blockIdx.x * cols, y += (size_t)blockIdx.x * cols;
  float sum = 0.f, squares = 0.f;
  for (int i = threadIdx.x; i < cols; i += THREADS) sum += x[i];
  float mean = whole(sum, false) / cols;
  for (int i = threadIdx.x; i < cols; i += THREADS) squares += (x[i] - mean) * (x[i] - mean);
  float scale = rsqrtf(whole(squares, false) / cols + 1e-5f);
  for (int i = threadIdx.x; i < cols; i += THREADS) y[i] = (x[i] - mean) * scale * weight[i] + bias[i];
}
"""
)
RMSNORM = """\
//! op      rmsnorm(x) -> y
//! let     batch = x.shape[0], features = x.shape[1], pixels = x.shape[2] * x.shape[3]
//! out     y: f32[x.shape]
//! launch  run<<<dim3(ceil_div(pixels, 256), batch), 256>>>(x, y, features, pixels)
__global__ void run(const float* x, float* y, int features, int pixels) {
  int pixel = blockIdx.x * 256 + threadIdx.x;
  if (pixel >= pixels) return;
  size_t at = (size_t)blockIdx.y * features * pixels + pixel;
  float squares = 0.f;
  for (int i = 0; i < features; ++i) squares += x[at + (size_t)i * pixels] * x[at + (size_t)i * pixels];
  float size = sqrtf(squares / features + 1e-5f);
  for (int i = 0; i < features; ++i) y[at + (size_t)i * pixels] = x[at + (size_t)i * pixels] / size;
}
"""
SUM = """\
//! op      sum_over(x) -> y
//! let     batch = x.shape[0], rows = x.shape[1], cols = x.shape[2]
//! out     y: f32[batch, 1, cols]
//! launch  run<<<dim3(ceil_div(cols, 32), batch), dim3(32, 8)>>>(x, y, rows, cols)
__global__ void run(const float* x, float* y, int rows, int cols) {
  __shared__ float part[8][32];
  int column = blockIdx.x * 32 + threadIdx.x;
  x += (size_t)blockIdx.y * rows * cols;
  float sum = 0.f;
  for (int row = threadIdx.y; row < rows; row += 8) sum += column < cols ? x[(size_t)row * cols + column] : 0.f;
  part[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y || column >= cols) return;
  for (int i = 1; i < 8; ++i) sum += part[i][threadIdx.x];
  y[(size_t)blockIdx.y * cols + column] = sum;
}
"""
MATMUL = """\
//! op      matmul(a, b) -> c
//! let     M = a.shape[0], K = a.shape[1], N = b.shape[1]
//! out     c: f32[M, N]
//! launch  run<<<dim3(ceil_div(N, 64), ceil_div(M, 64)), 256>>>(a, b, c, M, N, K)
__global__ void run(const float* a, const float* b, float* c, int M, int N, int K) {
  __shared__ float left[16][65], right[16][64];
  int row = blockIdx.y * 64, column = blockIdx.x * 64, x = threadIdx.x % 16, y = threadIdx.x / 16;
  float sums[4][4] = {};
  for (int first = 0; first < K; first += 16) {
    for (int i = threadIdx.x; i < 1024; i += 256) {
      int r = row + i / 16, k = first + i % 16, j = first + i / 64, s = column + i % 64;
      left[i % 16][i / 16] = r < M && k < K ? a[(size_t)r * K + k] : 0.f;
      right[i / 64][i % 64] = j < K && s < N ? b[(size_t)j * N + s] : 0.f;
    }
    __syncthreads();
    for (int k = 0; k < 16; ++k)
      for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 4; ++j) sums[i][j] += left[k][4 * y + i] * right[k][x + 16 * j];
    __syncthreads();
  }
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 4; ++j) {
      int r = row + 4 * y + i, s = column + x + 16 * j;
      if (r < M && s < N) c[(size_t)r * N + s] = sums[i][j];
    }
}
"""
CONV = """\
//! op      conv(x, weight) -> y
//! let     batch = x.shape[0], channels = x.shape[1], height = x.shape[2], width = x.shape[3]
//! let     made = weight.shape[0], R = weight.shape[2], S = weight.shape[3]
//! out     y: f32[batch, made, height - R + 1, width - S + 1]
//! launch  run<<<dim3(ceil_div((height - R + 1) * (width - S + 1), 128), ceil_div(made, 8), batch), 128>>>(
//!             x, weight, y, channels, height, width, made, R, S)
__global__ void run(const float* x, const float* weight, float* y, int channels, int height, int width, int made,
                    int R, int S) {
  int rows = height - R + 1, cols = width - S + 1, at = blockIdx.x * 128 + threadIdx.x, first = blockIdx.y * 8;
  if (at >= rows * cols) return;
  int row = at / cols, column = at % cols;
  float sums[8] = {};
  for (int c = 0; c < channels; ++c)
    for (int r = 0; r < R; ++r)
      for (int s = 0; s < S; ++s) {
        float value = x[(((size_t)blockIdx.z * channels + c) * height + row + r) * width + column + s];
        for (int i = 0; i < 8; ++i)
          if (first + i < made) sums[i] += value * weight[(((size_t)(first + i) * channels + c) * R + r) * S + s];
      }
  for (int i = 0; i < 8; ++i)
    if (first + i < made) y[((size_t)blockIdx.z * made + first + i) * rows * cols + at] = sums[i];
}
"""


def task(name: str, inputs: dict[str, str], output: tuple[str, str], sizes: dict[str, int], *, fixed: str = "") -> Task:
    """Inputs and the output as names of dimensions; what holds positive numbers in KernelBench does so here."""
    tensors = tuple(
        TensorInput(one, DType.F32, tuple(names.split()), UniformValues(0.0, 1.0), parameter=one in ("weight", "bias"))
        for one, names in inputs.items()
    )
    shape = tuple(int(one) if one.isdigit() else one for one in output[1].split())
    least = 3 if name == "conv" else 1
    dimensions = [
        Dimension(one, size, one not in fixed.split(), at_least=least if one in ("height", "width") else 1)
        for one, size in sizes.items()
    ]
    if name == "conv":
        for made, given in (("out_height", "height"), ("out_width", "width")):
            dimensions.append(Dimension(made, sizes[given] - 2, formula=SizeFormula.parse(f"{given} - 2")))
    return Task(name, SOURCE, name, tensors, (TaskOutput(output[0], DType.F32, shape),), tuple(dimensions))


FEATURES = "features height width"
CASES: dict[str, tuple[Task, str]] = {
    "relu": (task("relu", {"x": "rows cols"}, ("y", "rows cols"), {"rows": 4096, "cols": 393216}), RELU),
    "softmax": (task("softmax", {"x": "rows cols"}, ("y", "rows cols"), {"rows": 4096, "cols": 393216}), SOFTMAX),
    "layernorm": (
        task(
            "layernorm",
            {"x": "batch " + FEATURES, "weight": FEATURES, "bias": FEATURES},
            ("y", "batch features height width"),
            {"batch": 16, "features": 64, "height": 256, "width": 256},
        ),
        LAYERNORM,
    ),
    "rmsnorm": (
        task(
            "rmsnorm",
            {"x": "batch features height width"},
            ("y", "batch features height width"),
            {"batch": 112, "features": 64, "height": 512, "width": 512},
        ),
        RMSNORM,
    ),
    "sum_over": (
        task("sum_over", {"x": "batch rows cols"}, ("y", "batch 1 cols"), {"batch": 128, "rows": 4096, "cols": 4095}),
        SUM,
    ),
    "matmul": (
        task("matmul", {"a": "m k", "b": "k n"}, ("c", "m n"), {"m": 4096, "k": 4096, "n": 4096}),
        MATMUL,
    ),
    "conv": (
        task(
            "conv",
            {"x": "batch channels height width", "weight": "made channels r s"},
            ("y", "batch made out_height out_width"),
            {"batch": 16, "channels": 16, "height": 1024, "width": 1024, "made": 128, "r": 3, "s": 3},
            fixed="r s",
        ),
        CONV,
    ),
}


@dataclass
class Peak:
    """The most device memory in use, in MiB, as the driver's own tool counts it."""

    now: int = 0
    most: int = 0


@contextmanager
def memory_watched() -> Iterator[Peak]:
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--loop-ms=20"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    peak = Peak()

    def listen() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            found = re.search(r"\d+", line)
            if found:
                peak.now = int(found[0])
                peak.most = max(peak.most, peak.now)

    threading.Thread(target=listen, daemon=True).start()
    try:
        yield peak
    finally:
        process.kill()
        process.wait()


def row_of(name: str, peak: Peak) -> dict[str, Any]:
    wanted, text = CASES[name]
    own = sum(one.storage_bytes for one in (*wanted.specs().values(), *wanted.output_specs().values()))
    seconds, times, mib = [], [], []
    with (
        CudaDevice(0) as gpu,
        Reference(wanted.reference, wanted.function, limits=ReferenceLimits.on_gpu()) as reference,
        EmulatedDevice(wanted.profile) as emulator,
        Referee(wanted, reference, emulator=emulator, gpu=gpu) as referee,
    ):
        idle = 0
        for number in range(2):
            peak.most = 0
            began = time.monotonic()
            verdict = referee.judge(text)
            seconds.append(round(time.monotonic() - began, 2))
            times.append(str(referee.times))
            mib.append(peak.most)
            assert isinstance(verdict, Passed), to_json(verdict)
            if not number:
                time.sleep(0.3)
                idle = peak.now  # the runner still lends the last result
                idle -= sum(one.storage_bytes for one in wanted.output_specs().values()) >> 20
    at_own = [one for one in verdict.cases if one.case.sizes == wanted.sizes and one.status is CaseStatus.RIGHT]
    elements = sum(one.numel for one in wanted.output_specs().values())
    return {
        "case": name,
        "size": " ".join(f"{one}={size}" for one, size in wanted.sizes.items()),
        "seconds": seconds,
        "where": times[-1],
        "cases": len(verdict.cases),
        "full_size_cases": {one.case.values: round(one.seconds, 2) for one in at_own},
        "elements_judged": elements * len(at_own),
        "task_mib": own >> 20,
        "peak_mib": max(mib) - idle,
        "idle_mib": idle,
        "peak_over_task": round((max(mib) - idle) / (own >> 20), 2),
        "error_ratio": round(verdict.error_ratio, 3),
        "notes": verdict.notes,
    }


def through_a_spool(name: str) -> dict[str, Any]:
    """The same by way of a worker: a second verdict, when the worker has what it needs."""
    wanted, text = CASES[name]
    with tempfile.TemporaryDirectory() as folder:
        worker = subprocess.Popen([sys.executable, "-m", "tilewright.worker", folder], stderr=subprocess.DEVNULL)
        try:
            with (
                SpoolDevice(folder) as gpu,
                Reference(wanted.reference, wanted.function) as here,
                SpoolReference(folder, wanted.reference, wanted.function, gpu=gpu.profile) as there,
                EmulatedDevice(wanted.profile) as emulator,
                Referee(wanted, here, emulator=emulator, gpu=gpu, gpu_reference=there) as referee,
            ):
                seconds = []
                for _ in range(2):
                    began = time.monotonic()
                    verdict = referee.judge(text)
                    seconds.append(round(time.monotonic() - began, 2))
                    assert isinstance(verdict, Passed), to_json(verdict)
        finally:
            worker.terminate()
            worker.wait()
    at_own = {one.case.values: round(one.seconds, 2) for one in verdict.cases if one.case.sizes == wanted.sizes}
    return {"case": name, "seconds": seconds, "full_size_cases": at_own}


def whole_run() -> dict[str, Any]:
    """`make` of the ReLU with three attempts, from nothing to a kernel file."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "relu.py"
        source.write_text("import torch\n\n\ndef relu(x):\n    return torch.relu(x)\n")
        began = time.monotonic()
        made = tilewright.make(
            f"{source}:relu",
            shapes={"x": "4096x393216:f32"},
            author="playbook",
            attempts=3,
            enough=2.0,  # more than there is: else the first kernel at the speed of a copy ends the run
            yes=True,
            fresh=True,
        )
        seconds = round(time.monotonic() - began, 1)
    assert made.run is not None
    return {"seconds": seconds, "attempts": len(made.run.attempts), "kernel": str(made)}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("names", nargs="*", default=[*CASES, "spool", "make"])
    arguments.add_argument("-o", "--output", type=Path)
    given = arguments.parse_args()
    result: dict[str, Any] = {"gpu": gpu_profile(0).name, "rows": [], "troubles": {}}
    with memory_watched() as peak:
        for name in given.names:
            try:
                if name in CASES:
                    made = row_of(name, peak)
                    result["rows"].append(made)
                else:
                    made = result[name] = through_a_spool("softmax") if name == "spool" else whole_run()
                print(made, flush=True)
            except Exception as error:  # one that fails must not cost the others
                result["troubles"][name] = f"{type(error).__name__}: {error}"[:3000]
                print(f"{name}: {result['troubles'][name]}", flush=True)
    if given.output:
        write_result(given.output, result)


if __name__ == "__main__":
    main()
