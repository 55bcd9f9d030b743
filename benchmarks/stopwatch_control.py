"""Whether the stopwatch can be believed: a kernel beside itself, and beside itself with 3 % more to do. Needs a GPU.

    python benchmarks/stopwatch_control.py [-o result.json] [--repeats 10] [--seconds 240]

Every report is one of `Stopwatch.measure`. For each operation the kernel and its slower twin are measured in turn, the
order changing from pair to pair. Counted are: by how much the kernel differs from itself within a report (its control)
and from one report to the next; how often the twin was told to be slower, by the rule that decides what a run keeps
(`is_beyond_noise`); how often a kernel was told to be faster than itself, which is always wrong. Last, a convolution of
PyTorch's own at either promise of precision, timed as baselines are. What no time is left for is left out.
"""

from __future__ import annotations

import argparse
import itertools
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from recording import write_result
from tilewright.devices.child_device import CudaDevice, EmulatedDevice
from tilewright.kernel_file import KernelFile, parse
from tilewright.measure import Stopwatch
from tilewright.measure.baselines import TIME_BASELINES, BaselineAnswer, BaselineRequest
from tilewright.records import (
    MEASURED_NOISE,
    Dimension,
    DType,
    Measured,
    Precision,
    Task,
    TaskOutput,
    TensorInput,
    is_beyond_noise,
)
from tilewright.reference import Reference, ReferenceLimits

SLOWER = 0.03
_CONVOLUTION = "import torch\n\ndef convolution(x, w):\n    return torch.nn.functional.conv2d(x, w, padding=1)\n"


@dataclass(frozen=True)
class Pair:
    """An operation, a kernel for it, and the same kernel with 3 % more work."""

    name: str
    task: Task
    kernel: KernelFile
    slower: KernelFile


def scale_task(rows: int, cols: int = 4096) -> Task:
    inputs, outputs = (TensorInput("x", DType.F32, ("rows", "cols")),), (TaskOutput("y", DType.F32, ("rows", "cols")),)
    dimensions = Dimension("rows", rows), Dimension("cols", cols)
    return Task("scale", "def scale(x):\n    return x * 2\n", "scale", inputs, outputs, dimensions)


def moving(more: float) -> KernelFile:
    """y = 2 x, four elements a thread; the blocks beyond the last do the first elements again."""
    return parse(
        f"""//! op      scale(x) -> y
//! out     y: f32[x.shape]
//! const   BLOCKS = ceil_div(x.numel, 1024)
//! launch  scale<<<BLOCKS + ceil_div(BLOCKS * {round(100 * more)}, 100), 256>>>(x, y, x.numel)
__global__ void scale(const float* __restrict__ x, float* __restrict__ y, long long n) {{
  long long i = 4 * (blockIdx.x * 256ll + threadIdx.x);
  if (i >= n) i -= n;
  if (i + 3 < n) {{
    float4 v = *reinterpret_cast<const float4*>(x + i);
    *reinterpret_cast<float4*>(y + i) = make_float4(2 * v.x, 2 * v.y, 2 * v.z, 2 * v.w);
  }}
}}
""",
        "moving.cu",
    )


def computing(more: float) -> KernelFile:
    """y = 2 x after a chain of multiplications that changes nothing the compiler could know, nor how long it is."""
    steps = round(500 * (1.0 + more))
    return parse(
        f"""//! op      scale(x) -> y
//! out     y: f32[x.shape]
//! launch  scale<<<ceil_div(x.numel, 256), 256>>>(x, y, x.numel, {steps})
__global__ void scale(const float* __restrict__ x, float* __restrict__ y, long long n, int steps) {{
  const long long i = blockIdx.x * 256ll + threadIdx.x;
  if (i >= n) return;
  float value = x[i], factor = n < 0 ? value : 1.0f;
  #pragma unroll 8
  for (int step = 0; step < steps; ++step) value = fmaf(value, factor, n < 0 ? 1.0f : 0.0f);
  y[i] = 2 * value;
}}
""",
        "computing.cu",
    )


PAIRS = (
    Pair("memory, 512 MB", scale_task(16384), moving(0.0), moving(SLOWER)),
    Pair("arithmetic", scale_task(512), computing(0.0), computing(SLOWER)),
)


def compared(pair: Pair, gpu: CudaDevice, repeats: int, end: float) -> dict[str, Any]:
    """The pair measured again and again, as long as there is time."""
    task = pair.task
    kernels: list[Measured] = []
    twins: list[Measured] = []
    with (
        EmulatedDevice(task.profile) as emulator,
        Reference(task.reference, task.function) as reference,
        Stopwatch(task, reference, emulator=emulator, gpu=gpu, baselines=("eager",), say=print) as stopwatch,
    ):
        for repeat in range(repeats):
            began = time.monotonic()
            order = [(pair.kernel, kernels), (pair.slower, twins)]
            for file, kept in order if repeat % 2 == 0 else reversed(order):
                made = stopwatch.measure(file)
                assert isinstance(made, Measured)
                assert not made.answered_otherwise, made.answered_otherwise
                kept.append(made)
            if time.monotonic() + (time.monotonic() - began) > end:
                break
    return row_of(pair, kernels, twins)


def row_of(pair: Pair, kernels: list[Measured], twins: list[Measured]) -> dict[str, Any]:
    reports = [*kernels, *twins]
    against_next = list(itertools.pairwise(kernels))
    intervals = [one.kernel.interval_us for one in kernels]
    pairs = list(zip(kernels, twins, strict=True))
    return {
        "case": pair.name,
        "pairs": len(pairs),
        "slower_seen": sum(is_beyond_noise(fast, slow, MEASURED_NOISE) for fast, slow in pairs),
        "slower_by": [round(slow.time_us / fast.time_us - 1.0, 4) for fast, slow in pairs],
        "false_alarms": sum(
            is_beyond_noise(one, other, MEASURED_NOISE) or is_beyond_noise(other, one, MEASURED_NOISE)
            for one, other in against_next
        ),
        "within_a_report": [round(one.control_error, 4) for one in reports],
        "between_reports": [round(abs(one.time_us / other.time_us - 1.0), 4) for one, other in against_next],
        "kernel_us": [round(one.time_us, 3) for one in kernels],
        "interval_us": [[round(one.low, 3), round(one.high, 3)] for one in intervals],
        "eager_us": [round(one.baselines[0].median_us, 3) for one in kernels if one.baselines],
        "conditions": str(reports[0].conditions),
        "notes": sorted({note for one in reports for note in one.notes}),
    }


def convolution_at_either_promise() -> dict[str, float]:
    """Microseconds of PyTorch's own, by promise and contender."""
    inputs = (TensorInput("x", DType.F32, ("b", "c", "h", "w_")), TensorInput("w", DType.F32, ("o", "c", "k", "k")))
    sizes = {"b": 32, "c": 128, "h": 56, "w_": 56, "o": 128, "k": 3}
    dimensions = tuple(Dimension(name, size) for name, size in sizes.items())
    output = (TaskOutput("y", DType.F32, ("b", "o", "h", "w_")),)
    task = Task("convolution", _CONVOLUTION, "convolution", inputs, output, dimensions)
    found = {}
    with Reference(task.reference, task.function, limits=ReferenceLimits.on_gpu()) as reference:
        for precision in (Precision.DTYPE, Precision.STRICT):
            request = BaselineRequest(replace(task, precision=precision), 15, ("eager", "library"))
            answer: BaselineAnswer = reference.call(TIME_BASELINES, request, BaselineAnswer, 60.0)
            assert not answer.failures, answer.failures
            found |= {f"{precision.value}, {one.name}": round(one.median_us, 2) for one in answer.timings}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--out", type=Path)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=240.0)
    arguments = parser.parse_args()
    began = time.monotonic()
    with CudaDevice() as gpu:
        result: dict[str, Any] = {"gpu": gpu.profile.name, "rows": []}
        for number, pair in enumerate(PAIRS):
            left = arguments.seconds - (time.monotonic() - began)
            share = left / (len(PAIRS) - number)
            result["rows"].append(compared(pair, gpu, arguments.repeats, time.monotonic() + share))
            print({name: value for name, value in result["rows"][-1].items() if name != "notes"}, flush=True)
            if arguments.out:
                write_result(arguments.out, {"seconds": round(time.monotonic() - began, 1), **result})
    if time.monotonic() - began < arguments.seconds:
        result["convolution_us"] = convolution_at_either_promise()
        print(result["convolution_us"], flush=True)
    if arguments.out:
        write_result(arguments.out, {"seconds": round(time.monotonic() - began, 1), **result})


if __name__ == "__main__":
    main()
