"""Blocks and warps in turn: cooperative launches, blocks that wait for blocks, seeds, several OS threads, samples."""

from __future__ import annotations

import numpy as np
import pytest
from tests.ptx.cuda_kernels import Fresh, In, clean, run

from tilewright.ptx.launching import LaunchOptions
from tilewright.records import FindingKind

GRID_SYNC = """#include <cooperative_groups.h>
extern "C" __global__ void k(const int* x, int* part, int* y, int n) {
  auto grid = cooperative_groups::this_grid();
  int total = gridDim.x * blockDim.x, t = blockIdx.x * blockDim.x + threadIdx.x, sum = 0;
  for (int i = t; i < n; i += total) sum += x[i];
  part[t] = sum;
  grid.sync();
  if (t < 64) { int s = 0; for (int i = t; i < total; i += 64) s += part[i]; y[t] = s; }
  grid.sync();
  if (t == 0) { int s = 0; for (int i = 0; i < 64; ++i) s += y[i]; y[64] = s; }
}"""


@pytest.mark.parametrize(("workers", "seed"), [(1, None), (2, None), (1, 5), (2, 6)])
def test_a_cooperative_launch_meets_at_the_grid_barrier(workers: int, seed: int | None) -> None:
    x = np.arange(5000, dtype=np.int32)
    arguments = {"x": In(x), "part": Fresh(np.zeros(40 * 96, np.int32)), "y": np.zeros(65, np.int32), "n": len(x)}
    options = LaunchOptions(workers=workers, seed=seed, instruction_budget=500_000_000)
    ran = clean(GRID_SYNC, arguments, grid=(40,), block=(96,), cooperative=True, options=options)
    assert ran["y"][64] == x.sum()


def test_a_grid_barrier_without_a_cooperative_launch_traps() -> None:
    arguments = {"x": In(np.zeros(4, np.int32)), "part": np.zeros(32, np.int32), "y": np.zeros(65, np.int32), "n": 4}
    ran = run(GRID_SYNC, arguments, grid=(1,), block=(32,))
    assert FindingKind.TRAP in ran.kinds


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("order", ["forwards", "backwards"])
def test_blocks_that_wait_for_others_are_set_aside(workers: int, order: str) -> None:
    """A chain through the grid: every block waits for the next one, or for the one before."""
    source = """extern "C" __global__ void k(int* flag, int* value, int step) {
      int b = blockIdx.x, from = b + step;
      if (threadIdx.x == 0) {
        int carried = 0;
        if (from >= 0 && from < (int)gridDim.x) {
          while (((volatile int*)flag)[from] == 0) {}
          __threadfence();
          carried = value[from];
        }
        value[b] = carried + b;
        __threadfence();
        ((volatile int*)flag)[b] = 1;
      }
    }"""
    arguments = {
        "flag": np.zeros(50, np.int32),
        "value": np.zeros(50, np.int32),
        "step": 1 if order == "backwards" else -1,
    }
    options = LaunchOptions(workers=workers, instruction_budget=500_000_000)
    ran = run(source, arguments, grid=(50,), options=options)
    # Blocks start in order, so only waiting for a later one is more than the hardware promises; with several OS threads
    # nobody can tell which it was.
    assert ran.kinds == ({FindingKind.LATER_BLOCK} if order == "backwards" and workers == 1 else set())
    expected = np.cumsum(np.arange(50)[::-1])[::-1] if order == "backwards" else np.cumsum(np.arange(50))
    assert (ran["value"] == expected).all()


def test_one_seed_gives_one_schedule_and_others_differ() -> None:
    source = """extern "C" __global__ void k(int* order, int* next) {
      if (threadIdx.x % 32 == 0) order[atomicAdd(next, 1)] = blockIdx.x * 8 + threadIdx.x / 32;
    }"""

    def order(seed: int | None) -> list[int]:
        arguments = {"order": np.zeros(64, np.int32), "next": np.zeros(1, np.int32)}
        ran = clean(source, arguments, grid=(8,), block=(256,), options=LaunchOptions(seed=seed, workers=1))
        return list(ran["order"])

    assert order(None) == list(range(64))
    assert order(1) == order(1)
    assert order(1) != order(2) != order(None)
    assert sorted(order(7)) == list(range(64))


def test_two_workers_give_what_one_gives() -> None:
    source = """extern "C" __global__ void k(const float* x, float* y, int* bins, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x;
      if (i < n) { y[i] = x[i] * 2.0f + 1.0f; atomicAdd(&bins[i % 13], 1); }
    }"""
    x = np.random.default_rng(0).standard_normal(20000).astype(np.float32)
    results = []
    for workers in (1, 2, 4):
        arguments = {"x": In(x), "y": Fresh(x), "bins": np.zeros(13, np.int32), "n": len(x)}
        ran = clean(source, arguments, grid=(157,), block=(128,), options=LaunchOptions(workers=workers))
        assert ran.result.counts is not None
        results.append((ran["y"].tobytes(), ran["bins"].tobytes(), ran.result.thread_instructions, ran.result.counts))
    assert results[0] == results[1] == results[2]
    assert results[0][3].blocks == 157


def test_sampled_blocks_run_alone() -> None:
    source = """extern "C" __global__ void k(int* y) { y[blockIdx.x + gridDim.x * blockIdx.y] = 1 + blockIdx.x; }"""
    options = LaunchOptions(workers=1, blocks=(3, 0, 7))
    ran = clean(source, {"y": np.zeros(12, np.int32)}, grid=(4, 3), block=(1,), options=options)
    assert list(ran["y"]) == [1, 0, 0, 4, 0, 0, 0, 4, 0, 0, 0, 0]
    assert ran.result.counts is not None
    assert (ran.result.counts.blocks, ran.result.counts.grid_blocks) == (3, 12)


def test_special_registers() -> None:
    source = """extern "C" __global__ void k(unsigned* y) {
      unsigned t = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z), lane, le, gt, warp;
        long long a = clock64();
      asm volatile("mov.u32 %0, %%laneid; mov.u32 %1, %%lanemask_le; mov.u32 %2, %%lanemask_gt; mov.u32 %3, %%warpid;"
        : "=r"(lane), "=r"(le), "=r"(gt), "=r"(warp));
      unsigned* p = y + 8 * t;
      p[0] = threadIdx.x; p[1] = threadIdx.y; p[2] = threadIdx.z; p[3] = lane; p[4] = le; p[5] = gt;
        p[6] = warp < 64; p[7] = clock64() > a;
    }"""
    ran = clean(source, {"y": np.zeros(8 * 90, np.uint32)}, block=(5, 6, 3))
    for t, row in enumerate(ran["y"].reshape(90, 8)):
        lane = t % 32
        below = (1 << (lane + 1)) - 1
        assert list(row) == [t % 5, t // 5 % 6, t // 30, lane, below, 0xFFFFFFFF - below, 1, 1]


def test_a_block_that_waits_for_ever_is_stopped_with_who_waits() -> None:
    source = """extern "C" __global__ void k(volatile int* flag, int* y) {
      if (threadIdx.x == 0) while (flag[0] == 0) {}
      __syncthreads();
      y[threadIdx.x] = 1;
    }"""
    options = LaunchOptions(workers=1, instruction_budget=2_000_000, checks=())
    ran = run(source, {"flag": np.zeros(1, np.int32), "y": np.zeros(64, np.int32)}, block=(64,), options=options)
    assert not ran.result.completed
    assert "waits at a barrier 0 at line 3" in ran.only(FindingKind.BUDGET).detail


def test_many_blocks_are_between_their_first_and_last_step() -> None:
    source = """extern "C" __global__ void k(int* begun, int* most) {
      if (threadIdx.x == 0) {
        int others = atomicAdd(begun, 1);
        atomicMax(most, others);
      }
      __syncthreads();
      if (threadIdx.x == 0) atomicSub(begun, 1);
    }"""

    def most(*, many: bool) -> int:
        options = LaunchOptions(workers=1, seed=5, many=many)
        arguments = {name: np.zeros(1, np.int32) for name in ("begun", "most")}
        return int(clean(source, arguments, grid=(600,), block=(64,), options=options)["most"][0])

    assert most(many=False) < 64
    assert most(many=True) > 100
