"""Programs and launches: what a launch must be, what survives between launches, the library's own checks."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from tests.ptx.cuda_kernels import QUICK, In, clean, program_of, ptx_of, run

from tilewright.ptx import native
from tilewright.ptx.global_memory import GlobalMemory
from tilewright.ptx.launching import LaunchRequest
from tilewright.ptx.program import load_program
from tilewright.ptx.syntax import PtxError

SOURCE = """extern "C" __global__ void __launch_bounds__(256) k(int* y, int n) { __shared__ int s[100];
  s[threadIdx.x % 100] = n; y[threadIdx.x] = s[0]; }"""


@pytest.mark.parametrize(
    ("grid", "block", "smem", "parameters", "why"),
    [
        ((0, 1, 1), (32, 1, 1), 0, 12, "grid"),
        ((1, 70000, 1), (32, 1, 1), 0, 12, "grid"),
        ((1, 1, 1), (32, 1, 65), 0, 12, "block"),
        ((1, 1, 1), (1024, 2, 1), 0, 12, "2048 threads per block"),
        ((1, 1, 1), (512, 1, 1), 0, 12, "built for 256 threads"),
        ((1, 1, 1), (32, 1, 1), 1 << 20, 12, "bytes of shared memory"),
        ((1, 1, 1), (32, 1, 1), -4, 12, "bytes of shared memory"),
        ((1, 1, 1), (32, 1, 1), 0, 8, "12 bytes of parameters, 8 were given"),
        ((2**31 - 1, 2, 1), (32, 1, 1), 0, 12, "at most"),
    ],
)
def test_a_launch_no_gpu_would_take_is_refused(
    grid: tuple[int, int, int], block: tuple[int, int, int], smem: int, parameters: int, why: str
) -> None:
    request = LaunchRequest("k", grid, block, smem, bytes(parameters), options=QUICK)
    with pytest.raises(PtxError, match=why):
        program_of(SOURCE).launch(GlobalMemory(), request)


def test_empty_parameters_and_memory() -> None:
    clean("""extern "C" __global__ void k() {}""", {})


def test_many_programs_and_launches_share_a_memory() -> None:
    first = program_of("""__device__ int held = 3; extern "C" __global__ void k(int* y) { y[0] += held++; }""")
    second = program_of("""__device__ int held = 30; extern "C" __global__ void k(int* y) { y[0] += held++; }""")
    memory = GlobalMemory()
    y = memory.add("y", 4, element_bytes=4)
    request = LaunchRequest("k", (1, 1, 1), (1, 1, 1), 0, struct.pack("<Q", y), options=QUICK)
    for _ in range(3):
        assert not first.launch(memory, request).findings
        assert not second.launch(memory, request).findings
    assert memory.bytes("y").view(np.int32)[0] == 3 + 4 + 5 + 30 + 31 + 32


def test_the_baseline_and_the_wider_code_agree() -> None:
    source = """#include <cuda_fp16.h>
    extern "C" __global__ void k(const float* x, float* y, const int* i, int* j) {
      int t = threadIdx.x; float a = x[t], b = x[t ^ 1];
      y[t] = fmaf(a, b, a) / (b + 3.0f) + sqrtf(fabsf(a)) + __expf(b) + __half2float(__float2half(a));
      j[t] = i[t] * i[t ^ 3] + __popc(i[t]) + __clz(i[t]) + (i[t] > 4 ? __brev(i[t]) : i[t] / 7);
    }"""
    rng = np.random.default_rng(0)
    x, i = rng.standard_normal(64).astype(np.float32), rng.integers(-1000, 1000, 64).astype(np.int32)
    results = []
    for which in (0, 1):
        native.core().tw_choose_width(which)
        try:
            arguments = {"x": In(x), "y": np.zeros(64, np.float32), "i": In(i), "j": np.zeros(64, np.int32)}
            ran = run(load_program(ptx_of(source)), arguments, block=(64,))
        finally:
            native.core().tw_choose_width(0)
        results.append((ran["y"].tobytes(), ran["j"].tobytes()))
    assert results[0] == results[1]


def test_a_missing_core_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(native, "__file__", str(tmp_path / "native.py"))
    with pytest.raises(native.CoreMissing, match="C compiler"):
        native.core.__wrapped__()
