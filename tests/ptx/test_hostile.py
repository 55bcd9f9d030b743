"""Hostile kernels and damaged PTX: a clear error or a finding, never harm to the process.

Damaged programs run in a child of their own, so that a crash is seen as one.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.ptx.cuda_kernels import In, ptx_of, run

from tilewright.ptx.launching import LaunchOptions
from tilewright.ptx.program import load_program
from tilewright.ptx.syntax import PtxError
from tilewright.records import FindingKind

ROOT = Path(__file__).parents[2]
SMALL = LaunchOptions(workers=1, instruction_budget=2_000_000)

VARIED = """#include <cuda_fp16.h>
__device__ __noinline__ int deep(int n, int* p) { return n <= 0 ? p[0] : deep(n - 1, p) + p[n & 3]; }
extern "C" __global__ void k(const float* x, float* y, int* z, int n) {
  __shared__ float tile[64]; __shared__ int bins[8]; extern __shared__ float more[];
  int t = threadIdx.x, held[8];
  for (int i = 0; i < 8; ++i) held[i] = z[(t + i) & 31];
  if (t < 8) bins[t] = 0;
  tile[t] = x[t] * 2.0f; more[t] = tile[t];
  __syncthreads();
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;"
    :: "r"((unsigned)__cvta_generic_to_shared(more + t)), "l"(x + t));
  asm volatile("cp.async.commit_group; cp.async.wait_group 0;");
  atomicAdd(&bins[held[t & 7] & 7], 1);
  float v = tile[63 - t] + __shfl_xor_sync(~0u, x[t], 3) + __half2float(__float2half(x[t]));
  if (__ballot_sync(~0u, v > 0) & 1) v = v / (x[t] + 3.0f);
  switch (t & 3) { case 0: v += 1; break; case 1: v *= 2; break; case 2: v = sqrtf(fabsf(v)); break; default: v -= 4; }
  __syncthreads();
  y[t] = v + more[t] + held[(t * n) & 7]; z[t] = deep(t & 3, z + 32) + bins[t & 7];
}"""


def test_the_varied_kernel_runs() -> None:
    rng = np.random.default_rng(0)
    arguments = {"x": In(rng.standard_normal(64).astype(np.float32)), "y": np.zeros(64, np.float32)}
    arguments |= {"z": np.ones(64, np.int32), "n": 3}
    ran = run(VARIED, arguments, block=(64,), smem=256, options=SMALL)
    assert ran.result.completed
    assert ran.kinds <= {FindingKind.RACE_GLOBAL}  # z is read by neighbours while it is written


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_damaged_ptx_never_harms_the_process(seed: int, tmp_path: Path) -> None:
    """Numbers, registers, types and whole lines of valid PTX changed at random, parsed and run in a child."""
    (tmp_path / "varied.ptx").write_text(ptx_of(VARIED))
    child = ROOT / "tests" / "ptx" / "damage_child.py"
    command = [sys.executable, str(child), str(tmp_path / "varied.ptx"), str(seed), "60"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    tally = dict(item.split("=") for item in done.stdout.split())
    assert sum(map(int, tally.values())) == 60
    assert int(tally["ran"]) > 0
    assert int(tally["refused"]) > 0


def test_gigabytes_of_shared_or_local_memory_are_refused() -> None:
    text = ".version 8.7\n.target sm_80\n.address_size 64\n"
    shared = (
        text + ".visible .entry k() { .shared .align 4 .b8 big[3000000000]; .reg .b32 %r<2>; mov.u32 %r1, big; ret; }"
    )
    with pytest.raises(PtxError, match="shared memory"):
        load_program(shared).prepare("k")
    local = (
        text + ".visible .entry k() { .local .align 4 .b8 big[3000000000]; .reg .b64 %r<2>; mov.u64 %r1, big; ret; }"
    )
    with pytest.raises(PtxError, match="local memory"):
        load_program(local).prepare("k")


def test_very_many_registers_are_refused() -> None:
    text = ".version 8.7\n.target sm_80\n.address_size 64\n.visible .entry k() { .reg .b64 %r<17000>;\n"
    text += "".join(f"mov.u64 %r{i}, {i};\n" for i in range(17000))
    text += "L: bra M;\nM:\n" + "".join(f"add.u64 %r{i}, %r{i}, 1;\n" for i in range(17000)) + "ret; }"
    with pytest.raises(PtxError, match="registers per warp"):
        load_program(text).prepare("k")


def test_a_grid_of_two_billion_blocks_ends_by_its_budget() -> None:
    source = """extern "C" __global__ void k(int* y) { atomicAdd(y, 1); }"""
    ran = run(source, {"y": np.zeros(1, np.int32)}, grid=(2**31 - 1,), block=(32,), options=SMALL)
    assert not ran.result.completed
    assert ran.only(FindingKind.BUDGET)


def test_deep_divergent_recursion_is_stopped() -> None:
    source = """__device__ __noinline__ int f(volatile int* p, int n) {
      if (p[0] + n > 100000) return 0;
      int a = (n ^ threadIdx.x) & 1 ? f(p, n + 1) : f(p, n + 2);
      return a + p[1];
    }
    extern "C" __global__ void k(int* y) { y[threadIdx.x] = f(y + 32, 0); }"""
    ran = run(source, {"y": np.zeros(64, np.int32)}, options=LaunchOptions(workers=1, instruction_budget=50_000_000))
    assert not ran.result.completed
    assert FindingKind.STACK in ran.kinds


def test_a_barrier_number_out_of_range() -> None:
    source = (
        """extern "C" __global__ void k(int* y) { int b = y[0]; asm volatile("bar.sync %0;" :: "r"(b)); y[1] = 1; }"""
    )
    ran = run(source, {"y": np.full(2, 77, np.int32)})
    assert "barrier 77 does not exist" in ran.only(FindingKind.BARRIER_DIVERGENCE).detail
