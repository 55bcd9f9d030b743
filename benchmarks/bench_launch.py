"""What a call costs, and how long an edit takes to reach its first result. Needs a GPU.

    python benchmarks/bench_launch.py [--out launch.json] [--no-inline]

Calls: microseconds of host time for a repeated call on a small tensor, through the compiled launcher and in pure
Python, beside torch's own operators. Edits: seconds from a changed source text to a checked result, beside the same
kernel through torch.utils.cpp_extension.load_inline. Each launcher is measured in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import tilewright
from recording import write_result
from tilewright.devices.cuda import driver_version, gpu_profile, launcher_available
from tilewright.devices.cuda.launcher import PURE_PYTHON_VARIABLE

CALLS = 2000
REPEATS = 15
GOAL_RATIO = 1.5  # of torch's silu, through the compiled launcher
GOAL_PYTHON_US = 25.0
GOAL_EDIT_RATIO = 50.0

SILU = """\
//! op      silu(x) -> y
//! out     y: x.dtype[x.shape]
//! need    x.dtype == f32
//! let     n = x.numel
//! launch  silu<<<ceil_div(n, 256), 256>>>(x, y, n)
__global__ void silu(const float* __restrict__ x, float* __restrict__ y, long long n) {
  long long i = blockIdx.x * 256ll + threadIdx.x;
  if (i < n) y[i] = x[i] / (1.f + __expf(-x[i]));
}
"""

ADD = """\
//! op      add(x, y, alpha: float = 1.0) -> z
//! out     z: x.dtype[x.shape]
//! need    x.dtype == f32 and y.dtype == f32 and y.numel == x.numel
//! let     n = x.numel
//! launch  add<<<ceil_div(n, 256), 256>>>(x, y, z, n, alpha)
__global__ void add(const float* x, const float* y, float* z, long long n, float alpha) {
  long long i = blockIdx.x * 256ll + threadIdx.x;
  if (i < n) z[i] = x[i] + alpha * y[i];
}
"""

INLINE_CUDA = """\
#include <c10/cuda/CUDAStream.h>
__global__ void silu_kernel(const float* __restrict__ x, float* __restrict__ y, long long n) {
  long long i = blockIdx.x * 256ll + threadIdx.x;
  if (i < n) y[i] = FACTOR * x[i] / (1.f + __expf(-x[i]));
}
torch::Tensor silu(torch::Tensor x) {
  auto y = torch::empty_like(x);
  long long n = x.numel();
  auto stream = c10::cuda::getCurrentCUDAStream();
  silu_kernel<<<(n + 255) / 256, 256, 0, stream>>>(x.data_ptr<float>(), y.data_ptr<float>(), n);
  return y;
}
"""


def cost_us(call: Callable[[], object]) -> float:
    """Host time of one call: the least over repeats, since all else that runs here only adds to it."""
    for _ in range(200):
        call()
    torch.cuda.synchronize()
    least = float("inf")
    for _ in range(REPEATS):
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        least = min(least, (time.perf_counter() - start) / CALLS)
        torch.cuda.synchronize()
    return 1e6 * least


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def measure_calls(folder: Path) -> dict[str, float]:
    x, y = torch.randn(64, 64, device="cuda"), torch.randn(64, 64, device="cuda")
    silu = tilewright.load(write(folder, "silu.cu", SILU))
    add = tilewright.load(write(folder, "add.cu", ADD))
    torch.testing.assert_close(silu(x), torch.nn.functional.silu(x), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(add(x, y, 0.5), torch.add(x, y, alpha=0.5))
    return {
        "torch silu": cost_us(lambda: torch.nn.functional.silu(x)),
        "torch add": cost_us(lambda: torch.add(x, y, alpha=0.5)),
        "torch empty_like": cost_us(lambda: torch.empty_like(x)),
        "silu": cost_us(lambda: silu(x)),
        "add": cost_us(lambda: add(x, y, 0.5)),
        "add by keyword": cost_us(lambda: add(x, y, alpha=0.5)),
    }


def measure_calls_apart(pure_python: bool) -> dict[str, float]:
    environment = {**os.environ, PURE_PYTHON_VARIABLE: "1" if pure_python else "0"}
    command = [sys.executable, __file__, "--calls-only"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise SystemExit(f"the measurement of calls failed:\n{done.stdout}{done.stderr}")
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


def measure_edits(folder: Path, edits: int = 7) -> list[float]:
    """Seconds from a fresh text to a checked result, one after another in one process."""
    x = torch.randn(1 << 16, device="cuda")
    expected = torch.nn.functional.silu(x)
    torch.cuda.synchronize()
    seconds = []
    for number in range(edits):
        factor = 1.0 + time.time_ns() % 997 + number
        text = SILU.replace("y[i] = x[i]", f"y[i] = {factor!r}f * x[i]")
        start = time.perf_counter()
        result = tilewright.load(write(folder, f"edit{number}.cu", text))(x)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
        torch.testing.assert_close(result, factor * expected, rtol=1e-3, atol=1e-3)
    return seconds


def measure_inline(folder: Path, edits: int = 2) -> list[float]:
    """The same through torch's load_inline: one source file, one kernel, only this GPU."""
    from torch.utils.cpp_extension import load_inline

    major, minor = torch.cuda.get_device_capability()
    os.environ.setdefault("TORCH_CUDA_ARCH_LIST", f"{major}.{minor}")
    x = torch.randn(1 << 16, device="cuda")
    expected = torch.nn.functional.silu(x)
    seconds = []
    for number in range(edits):
        factor = 1.0 + time.time_ns() % 997 + number
        name = f"inline_silu_{time.time_ns()}"
        build = folder / name
        build.mkdir()
        start = time.perf_counter()
        module = load_inline(  # type: ignore[no-untyped-call]
            name=name,
            cpp_sources="torch::Tensor silu(torch::Tensor x);",
            cuda_sources=INLINE_CUDA.replace("FACTOR", f"{factor!r}f"),
            functions=["silu"],
            build_directory=str(build),
        )
        result = module.silu(x)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
        torch.testing.assert_close(result, factor * expected, rtol=1e-3, atol=1e-3)
    return seconds


def versions() -> dict[str, str]:
    from cuda.bindings import __version__ as bindings

    from tilewright.toolchain import find_toolkit

    return {
        "tilewright": tilewright.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda-bindings": bindings,
        "compiler": find_toolkit().compiler,
        "driver CUDA": "{}.{}".format(*driver_version()),
    }


def table(title: str, rows: list[tuple[str, str, str]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    print(title)
    for row in rows:
        print(f"  {row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]}")


def report_calls(compiled: dict[str, float] | None, python: dict[str, float]) -> None:
    base = (compiled or python)["torch silu"]
    rows = [(name, f"{python[name]:.2f} us", "") for name in ("torch silu", "torch add", "torch empty_like")]
    for kind, measured in (("compiled", compiled), ("pure Python", python)):
        if measured is None:
            command = "pip install -e . (with a C compiler)"
            rows.append((f"{kind} launcher", "not built", f"{command} builds it"))
            continue
        goal = f"goal {GOAL_RATIO}x torch silu" if kind == "compiled" else f"goal {GOAL_PYTHON_US} us"
        rows += [
            (f"{name}, {kind}", f"{measured[name]:.2f} us", f"{measured[name] / base:.2f}x torch silu; {goal}")
            for name in ("silu", "add", "add by keyword")
        ]
    table("host time of a repeated call", rows)


def report_edits(edits: list[float], inline: list[float] | None, problem: str | None) -> None:
    median = statistics.median(edits[1:])
    rows = [
        ("first in a process", f"{edits[0]:.3f} s", "loads the compiler"),
        ("each further edit", f"{median:.3f} s", f"median of {len(edits) - 1}"),
    ]
    if inline is None:
        rows.append(("load_inline", "not measured", problem or ""))
    else:
        ratio = statistics.median(inline) / median
        note = f"{ratio:.0f}x ours; goal {GOAL_EDIT_RATIO:.0f}x"
        rows.append(("load_inline", f"{statistics.median(inline):.1f} s", note))
    table("from an edited source to its first result", rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="also write the numbers to this JSON file")
    parser.add_argument("--no-inline", action="store_true", help="skip load_inline, which takes minutes")
    parser.add_argument("--calls-only", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a CUDA device, and torch sees none")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.calls_only:
            print(json.dumps(measure_calls(folder)))
            return
        compiled = measure_calls_apart(pure_python=False) if launcher_available() else None
        python = measure_calls_apart(pure_python=True)
        report_calls(compiled, python)
        edits = measure_edits(folder)
        inline, problem = inline_or_reason(folder, options.no_inline)
        report_edits(edits, inline, problem)
    if options.out is not None:
        record: dict[str, Any] = {
            "gpu": gpu_profile(0).name,
            "versions": versions(),
            "call_us": {"compiled": compiled, "python": python},
            "edit_seconds": edits,
            "inline_seconds": inline,
            "inline_problem": problem,
        }
        write_result(options.out, record)


def inline_or_reason(folder: Path, skip: bool) -> tuple[list[float] | None, str | None]:
    """Torch's way, or why it cannot be measured here: it needs nvcc, ninja and a host compiler."""
    if skip:
        return None, "skipped"
    try:
        return measure_inline(folder), None
    except (RuntimeError, OSError, ImportError) as error:
        return None, str(error).splitlines()[0]


if __name__ == "__main__":
    main()
