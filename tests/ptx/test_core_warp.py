"""Between threads: shuffles, votes, barriers, atomics, asynchronous copies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.ptx.cuda_kernels import In, clean, program_of, run

from tilewright.ptx.launching import LaunchOptions
from tilewright.records import ALL_CHECKS, Check, FindingKind

# -- shuffles, votes, matches --


def test_shuffles_in_every_mode_and_width() -> None:
    source = """extern "C" __global__ void k(int* y, int width) {
      int t = threadIdx.x, v = 100 + t;
      y[t] = __shfl_up_sync(~0u, v, 3, width); y[32 + t] = __shfl_down_sync(~0u, v, 3, width);
      y[64 + t] = __shfl_xor_sync(~0u, v, 5, width); y[96 + t] = __shfl_sync(~0u, v, t * 7, width);
    }"""
    for width in (32, 16, 8, 4):
        ran = clean(source, {"y": np.zeros(128, np.int32), "width": width})
        lanes = range(32)
        segment = [t // width * width for t in lanes]
        up = [100 + (t - 3 if t - 3 >= segment[t] else t) for t in lanes]
        down = [100 + (t + 3 if t + 3 < segment[t] + width else t) for t in lanes]
        xor = [100 + (t ^ 5 if t ^ 5 < segment[t] + width else t) for t in lanes]
        index = [100 + segment[t] + t * 7 % width for t in lanes]
        assert list(ran["y"]) == [*up, *down, *xor, *index]


def test_votes_matches_and_reductions_in_groups() -> None:
    source = """extern "C" __global__ void k(const int* x, unsigned* y) {
      int t = threadIdx.x, v = x[t];
      unsigned peers = __match_any_sync(~0u, v);
      y[t] = peers;
      y[32 + t] = __reduce_add_sync(peers, t);
      y[64 + t] = __reduce_min_sync(peers, -t);
      y[96 + t] = __ballot_sync(peers, t % 3 == 0);
      int same; y[128 + t] = __match_all_sync(~0u, v > 100, &same) + same;
      y[160 + t] = __all_sync(peers, v > 1) + 2 * __any_sync(peers, t == 5);
    }"""
    x = np.random.default_rng(1).integers(0, 4, 32).astype(np.int32)
    ran = clean(source, {"x": In(x), "y": np.zeros(192, np.uint32)})
    for t in range(32):
        group = [u for u in range(32) if x[u] == x[t]]
        assert ran["y"][t] == sum(1 << u for u in group)
        assert ran["y"][32 + t] == sum(group)
        assert ran["y"][64 + t].astype(np.int32) == -max(group)
        assert ran["y"][96 + t] == sum(1 << u for u in group if u % 3 == 0)
        assert ran["y"][128 + t] == 0  # all ones, and one more
        assert ran["y"][160 + t] == int(x[t] > 1) + 2 * int(5 in group)


def test_a_shuffle_waits_for_lanes_on_another_path() -> None:
    source = """extern "C" __global__ void k(int* y) {
      int t = threadIdx.x, v = t;
      if (t & 1) for (int i = 0; i < t; ++i) v += i * i; else v = -v;
      v = __shfl_xor_sync(~0u, v, 1);
      y[t] = v;
    }"""
    for seed in range(5):
        ran = clean(source, {"y": np.zeros(32, np.int32)}, options=LaunchOptions(seed=seed, workers=1))
        value = [t + sum(i * i for i in range(t)) if t & 1 else -t for t in range(32)]
        assert list(ran["y"]) == [value[t ^ 1] for t in range(32)]


def test_a_mask_that_names_lanes_which_never_come() -> None:
    source = """extern "C" __global__ void k(int* y) {
      int t = threadIdx.x;
      if (t < 16) y[t] = __shfl_xor_sync(~0u, t, 1);
      __syncthreads();
    }"""
    ran = run(source, {"y": np.zeros(32, np.int32)}, block=(64,))
    finding = ran.only(FindingKind.SHUFFLE_MASK)
    assert finding.detail == "lanes 0xffff0000 of the mask never came"
    assert finding.line == 3


def test_a_thread_outside_its_own_mask_and_a_read_of_a_lane_that_takes_no_part() -> None:
    source = """extern "C" __global__ void k(int* y) { y[threadIdx.x] = __shfl_xor_sync(0xffffu, threadIdx.x, 1); }"""
    assert "not in its own mask" in run(source, {"y": np.zeros(32, np.int32)}).only(FindingKind.SHUFFLE_MASK).detail
    source = """extern "C" __global__ void k(int* y) { y[threadIdx.x] = __shfl_down_sync(~0u, threadIdx.x, 16); }"""
    finding = run(source, {"y": np.zeros(32, np.int32)}, block=(24,)).only(FindingKind.SHUFFLE_MASK)
    assert "reads lane 24" in finding.detail
    assert not run(source, {"y": np.zeros(32, np.int32)}, block=(24,), checks=()).result.findings


# -- barriers --


def test_named_barriers_with_counts_pass_work_between_warps() -> None:
    source = """extern "C" __global__ void k(int* y, int rounds) {
      __shared__ int box[32];
      int warp = threadIdx.x / 32, lane = threadIdx.x % 32, sum = 0;
      for (int r = 0; r < rounds; ++r) {
        if (warp == 0) {
          asm volatile("bar.sync 2, 64;" ::: "memory");   // empty
          box[lane] = r * 32 + lane;
          asm volatile("bar.arrive 1, 64;" ::: "memory"); // full
        } else {
          asm volatile("bar.arrive 2, 64;" ::: "memory");
          asm volatile("bar.sync 1, 64;" ::: "memory");
          sum += box[31 - lane];
        }
      }
      if (warp == 1) y[lane] = sum;
    }"""
    for seed in (None, 1, 2, 3):
        arguments = {"y": np.zeros(32, np.int32), "rounds": 5}
        ran = clean(source, arguments, block=(64,), options=LaunchOptions(seed=seed, workers=1))
        assert list(ran["y"]) == [sum(r * 32 + 31 - lane for r in range(5)) for lane in range(32)]


def test_barrier_reductions() -> None:
    source = """extern "C" __global__ void k(int* y) {
      int t = threadIdx.x;
      y[t] = __syncthreads_count(t % 3 == 0) * 4 + (__syncthreads_and(t < 70) != 0) * 2
        + (__syncthreads_or(t == 69) != 0);
    }"""
    ran = clean(source, {"y": np.zeros(70, np.int32)}, block=(70,))
    assert set(ran["y"]) == {24 * 4 + 2 + 1}


def test_a_barrier_some_threads_never_reach() -> None:
    source = """extern "C" __global__ void k(int* y) {
      if (threadIdx.x < 40) { __syncthreads(); y[threadIdx.x] = 1; }
    }"""
    ran = run(source, {"y": np.zeros(64, np.int32)}, block=(64,))
    finding = ran.only(FindingKind.BARRIER_DIVERGENCE)
    assert ran.result.completed
    assert finding.detail == "thread (40, 0, 0) ended without reaching it"


def test_two_barriers_that_are_not_the_same() -> None:
    source = """extern "C" __global__ void k(int* y) {
      if (threadIdx.x < 32) { __syncthreads(); y[0] = 1; } else { y[1] = 2; __syncthreads(); y[2] = y[0]; }
    }"""
    ran = run(source, {"y": np.zeros(64, np.int32)}, block=(64,))
    assert FindingKind.BARRIER_DIVERGENCE in ran.kinds


def test_a_deadlock_says_who_waits() -> None:
    source = """extern "C" __global__ void k(int* y) {
      if (threadIdx.x < 32) asm volatile("bar.sync 1, 64;"); else asm volatile("bar.sync 2, 64;");
      y[threadIdx.x] = 1;
    }"""
    ran = run(source, {"y": np.zeros(64, np.int32)}, block=(64,))
    finding = ran.only(FindingKind.DEADLOCK)
    assert not ran.result.completed
    assert "warp 0 (all lanes) waits at a barrier 1 at line 2" in finding.detail
    assert "warp 1 (all lanes) waits at a barrier 2 at line 2, where 32 of 64 threads have come" in finding.detail


def test_a_barrier_has_one_count() -> None:
    source = """extern "C" __global__ void k(int* y) {
      if (threadIdx.x < 32) asm volatile("bar.arrive 1, 96;");
      else asm volatile("bar.sync 1, 64;");
      y[threadIdx.x] = 1;
    }"""
    finding = run(source, {"y": np.zeros(64, np.int32)}, block=(64,)).only(FindingKind.BARRIER_DIVERGENCE)
    assert finding.detail == "thread (0, 0, 0) came there with another number of threads to wait for at line 2"


# -- atomics --


@pytest.mark.parametrize("space", ["global", "shared"])
def test_atomics_of_every_operation(space: str) -> None:
    source = """extern "C" __global__ void k(int* y, unsigned long long* z, float* f, double* d, const int* x) {
      __shared__ int si[10]; __shared__ unsigned long long sz[4]; __shared__ float sf; __shared__ double sd;
      int t = threadIdx.x; bool shared = SHARED;
      if (t < 10) si[t] = y[t]; if (t < 4) sz[t] = z[t]; if (t == 0) sf = *f, sd = *d;
      __syncthreads();
      int* p = shared ? si : y; unsigned long long* q = shared ? sz : z; int v = x[t];
      atomicAdd(p, v); atomicMin(p + 1, v); atomicMax(p + 2, v); atomicAnd(p + 3, v); atomicOr(p + 4, v);
        atomicXor(p + 5, v);
      atomicInc((unsigned*)p + 6, 20); atomicDec((unsigned*)p + 7, 20); atomicSub(p + 8, v);
      int old = p[9], seen; do { seen = old; old = atomicCAS(p + 9, seen, seen * 3 + 1); } while (old != seen);
      atomicAdd(q, (unsigned long long)v << 20); atomicMax((long long*)q + 1, (long long)v);
        atomicMin(q + 2, (unsigned long long)v);
      atomicXor(q + 3, (unsigned long long)v * 0x100000001ull);
      atomicAdd(shared ? &sf : f, 0.5f); atomicAdd(shared ? &sd : d, 0.25);
      __syncthreads();
      if (shared && t < 10) y[t] = si[t]; if (shared && t < 4) z[t] = sz[t]; if (shared && t == 0) *f = sf, *d = sd;
    }""".replace("SHARED", "true" if space == "shared" else "false")
    x = np.random.default_rng(2).integers(-1000, 1000, 64).astype(np.int32)
    y = np.array([7, 7, 7, -1, 0, 0, 18, 3, 0, 1], np.int32)
    z = np.array([0, 2**63, 2**64 - 1, 0], np.uint64)
    arguments: dict[str, Any] = {"y": y, "z": z, "f": np.zeros(1, np.float32), "d": np.ones(1), "x": In(x)}
    ran = run(source, arguments, block=(64,))
    assert not ran.result.findings
    inc, dec, cas = 18, 3, np.int32(1)
    with np.errstate(over="ignore"):
        for _ in range(64):
            inc = 0 if inc >= 20 else inc + 1
            dec = 20 if dec == 0 or dec > 20 else dec - 1
            cas = np.int32(cas * np.int32(3) + np.int32(1))
    expected = [7 + x.sum(), min(7, x.min()), max(7, x.max()), np.bitwise_and.reduce(x), np.bitwise_or.reduce(x)]
    expected += [np.bitwise_xor.reduce(x), inc, dec, -x.sum(), cas]
    assert list(ran["y"]) == expected
    wide = x.astype(np.int64).astype(np.uint64)
    assert ran["z"][0] == (wide << np.uint64(20)).sum()
    assert ran["z"][1].astype(np.int64) == x.max()
    assert ran["z"][2] == wide.min()
    assert ran["z"][3] == np.bitwise_xor.reduce(wide * np.uint64(0x100000001))
    assert ran["f"][0] == 32.0
    assert ran["d"][0] == 17.0


def test_packed_half_atomics() -> None:
    source = """#include <cuda_fp16.h>
    #include <cuda_bf16.h>
    extern "C" __global__ void k(__half2* y, __nv_bfloat162* z, __half* h) {
      atomicAdd(y, __floats2half2_rn(1.0f, 0.5f)); atomicAdd(z, __floats2bfloat162_rn(2.0f, 0.25f));
        atomicAdd(h, __float2half(0.25f));
    }"""
    arguments = {"y": np.zeros(2, np.float16), "z": np.zeros(2, np.uint16), "h": np.zeros(2, np.float16)}
    ran = clean(program_of(source, "sm_90"), arguments)  # native there; a loop of compare and swap before
    assert list(ran["y"]) == [32.0, 16.0]
    assert list((ran["z"].astype(np.uint32) << 16).view(np.float32)) == [64.0, 8.0]
    assert ran["h"][0] == 8.0


# -- cp.async --

COPY = """
__device__ void copy16(void* to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
    :: "r"((unsigned)__cvta_generic_to_shared(to)), "l"(from), "r"(bytes));
}
__device__ void copy4(void* to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"((unsigned)__cvta_generic_to_shared(to)), "l"(from));
}
"""


def test_copies_arrive_when_their_group_is_waited_for() -> None:
    source = (
        COPY
        + """extern "C" __global__ void k(const float4* x, float4* y, int bytes) {
      __shared__ float4 tile[3][32];
      int t = threadIdx.x;
      for (int s = 0; s < 3; ++s) { copy16(&tile[s][t], x + 32 * s + t, s == 2 ? bytes : 16);
        asm volatile("cp.async.commit_group;"); }
      asm volatile("cp.async.wait_group 2;"); y[t] = tile[0][t];
      asm volatile("cp.async.wait_group 1;"); y[32 + t] = tile[1][t];
      asm volatile("cp.async.wait_all;"); y[64 + t] = tile[2][t];
    }"""
    )
    x = np.random.default_rng(3).standard_normal(384).astype(np.float32)
    ran = clean(source, {"x": In(x), "y": np.zeros(384, np.float32), "bytes": 8})
    expected = x.copy().reshape(96, 4)
    expected[64:, 2:] = 0
    assert (ran["y"].reshape(96, 4) == expected).all()


def test_reading_a_copy_in_flight_gives_poison_and_a_finding() -> None:
    source = (
        COPY
        + """extern "C" __global__ void k(const float* x, float* y) {
      __shared__ float tile[32];
      copy4(&tile[threadIdx.x], x + threadIdx.x);
      asm volatile("cp.async.commit_group;");
      y[threadIdx.x] = tile[threadIdx.x];
      asm volatile("cp.async.wait_all;");
    }"""
    )
    x = np.ones(32, np.float32)
    for checks in (ALL_CHECKS, (Check.UNINITIALISED,)):
        ran = run(source, {"x": In(x), "y": np.zeros(32, np.float32)}, checks=checks)
        finding = ran.only(FindingKind.ASYNC_NOT_WAITED)
        assert finding.line == 13
        assert not (ran["y"] == 1).any()


def test_a_copy_nobody_waits_for() -> None:
    source = (
        COPY
        + """extern "C" __global__ void k(const float* x) { __shared__ float t[32];
          copy4(&t[threadIdx.x], x + threadIdx.x); }"""
    )
    run(source, {"x": In(np.ones(32, np.float32))}).only(FindingKind.ASYNC_NOT_CONSUMED)


def test_a_copy_from_beyond_the_end() -> None:
    source = (
        COPY
        + """extern "C" __global__ void k(const float4* x, float4* y, int bytes) {
      __shared__ float4 tile[32];
      copy16(&tile[threadIdx.x], x + threadIdx.x, threadIdx.x < 20 ? 16 : bytes);
      asm volatile("cp.async.wait_all;"); y[threadIdx.x] = tile[threadIdx.x];
    }"""
    )
    x = np.ones(80, np.float32)
    clean(source, {"x": In(x), "y": np.zeros(128, np.float32), "bytes": 0})
    finding = run(source, {"x": In(x), "y": np.zeros(128, np.float32), "bytes": 4}).only(
        FindingKind.OUT_OF_BOUNDS_GLOBAL
    )
    assert finding.count == 12
