"""Control flow: divergence and meeting, calls, tables, exits, printf and assertions."""

from __future__ import annotations

import numpy as np
import pytest
from tests.ptx.cuda_kernels import clean, run

from tilewright.ptx.launching import LaunchOptions
from tilewright.records import FindingKind

SEEDS = (None, 1, 2, 3)


@pytest.mark.parametrize("seed", SEEDS)
def test_nested_divergence_with_early_exits_and_loops_of_different_length(seed: int | None) -> None:
    source = """extern "C" __global__ void k(int* y, int n) {
      int t = threadIdx.x, sum = 0;
      if (t >= n) return;
      for (int i = 0; i < t; ++i) {
        if (i % 3 == 0) { if (i % 2) continue; sum += i; }
        else if (i > 20 && t % 5 == 0) break;
        else { for (int j = 0; j < i % 4; ++j) { if (j == 2) goto out; sum += j * t; } }
        sum ^= i;
      }
      out:
      unsigned together = __activemask();
      y[t] = sum + (together == __ballot_sync(together, 1) ? 0 : 1000000);
    }"""

    def expected(t: int) -> int:
        total = 0
        for i in range(t):
            if i % 3 == 0:
                if i % 2:
                    continue
                total += i
            elif i > 20 and t % 5 == 0:
                break
            else:
                for j in range(i % 4):
                    if j == 2:
                        return total
                    total += j * t
            total ^= i
        return total

    ran = clean(
        source, {"y": np.zeros(64, np.int32), "n": 61}, block=(64,), options=LaunchOptions(seed=seed, workers=1)
    )
    assert list(ran["y"]) == [expected(t) if t < 61 else 0 for t in range(64)]


def test_lanes_meet_again_right_after_a_branch() -> None:
    source = """extern "C" __global__ void k(int* y) {
      int t = threadIdx.x, v = t;
      if (t % 2) { for (int i = 0; i < t; ++i) v += y[i]; } else { if (t % 4) v *= 3; else v -= 1; }
      y[32 + t] = __activemask() == 0xffffffffu;
      y[64 + t] = __shfl_xor_sync(~0u, v, 1);
    }"""
    ran = clean(source, {"y": np.zeros(96, np.int32)})
    assert ran["y"][32:64].all()
    value = [t if t % 2 else (t * 3 if t % 4 else t - 1) for t in range(32)]
    assert list(ran["y"][64:]) == [value[t ^ 1] for t in range(32)]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_lock_between_lanes_of_one_warp_makes_progress(seed: int | None) -> None:
    source = """extern "C" __global__ void k(int* lock, int* sum) {
      while (atomicCAS(lock, 0, 1) != 0) {}
      __threadfence();
      *(volatile int*)sum += threadIdx.x;
      __threadfence();
      atomicExch(lock, 0);
    }"""
    options = LaunchOptions(seed=seed, workers=1, instruction_budget=20_000_000)
    arguments = {"lock": np.zeros(1, np.int32), "sum": np.zeros(1, np.int32)}
    ran = clean(source, arguments, block=(64,), grid=(2,), options=options)
    assert ran["sum"][0] == 2 * sum(range(64))


def test_one_half_of_a_warp_waits_for_the_other() -> None:
    source = """extern "C" __global__ void k(int* y) {
      __shared__ volatile int flag;
      if (threadIdx.x == 0) flag = 0;
      __syncwarp();
      if (threadIdx.x < 16) { while (flag == 0) {} y[threadIdx.x] = 1; }
      else { if (threadIdx.x == 31) { __threadfence_block(); flag = 1; } y[threadIdx.x] = 2; }
    }"""
    ran = run(source, {"y": np.zeros(32, np.int32)})
    assert ran.result.completed
    assert list(ran["y"]) == [1] * 16 + [2] * 16


def test_functions_called_directly_by_recursion_and_through_pointers() -> None:
    source = """
    struct Pair { long long a; float b[3]; };
    __device__ __noinline__ long long fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
    __device__ __noinline__ Pair twist(Pair p, int by) { p.a += by; p.b[by % 3] = by; return p; }
    __device__ __noinline__ int plus(int x) { return x + 1; }
    __device__ __noinline__ int times(int x) { return x * 2; }
    __device__ int (*const table[2])(int) = {plus, times};
    extern "C" __global__ void k(long long* y, float* f, int* g) {
      int t = threadIdx.x;
      y[t] = fib(t % 9);
      Pair p{t, {1, 2, 3}};
      if (t != 7) p = twist(p, t);
      y[32 + t] = p.a;
      for (int i = 0; i < 3; ++i) f[3 * t + i] = p.b[i];
      g[t] = table[t % 2](t) + table[g[t] & 1](5);
    }"""
    choose = np.arange(32, dtype=np.int32) // 3
    arguments = {"y": np.zeros(64, np.int64), "f": np.zeros(96, np.float32), "g": choose}
    ran = clean(source, arguments)
    fib = [0, 1, 1, 2, 3, 5, 8, 13, 21]
    assert list(ran["y"][:32]) == [fib[t % 9] for t in range(32)]
    assert list(ran["y"][32:]) == [t if t == 7 else 2 * t for t in range(32)]
    for t in range(32):
        expected = [1.0, 2.0, 3.0]
        if t != 7:
            expected[t % 3] = t
        assert list(ran["f"][3 * t : 3 * t + 3]) == expected
    functions = (lambda x: x + 1, lambda x: x * 2)
    assert list(ran["g"]) == [functions[t % 2](t) + functions[(t // 3) & 1](5) for t in range(32)]


def test_recursion_without_end_is_stopped() -> None:
    source = """__device__ __noinline__ int down(int* p, int n) { int held = p[n & 7];
      return n < 0 ? 0 : held + down(p, n + 1) * 3; }
    extern "C" __global__ void k(int* p) { p[0] = down(p, 0); }"""
    ran = run(source, {"p": np.zeros(8, np.int32)}, block=(1,))
    assert not ran.result.completed
    assert ran.kinds <= {FindingKind.STACK, FindingKind.OUT_OF_BOUNDS_LOCAL}
    assert FindingKind.STACK in ran.kinds


def test_a_call_to_nothing_is_a_finding() -> None:
    source = """typedef int (*F)(int);
    extern "C" __global__ void k(unsigned long long* p, int* y) { y[0] = ((F)p[0])(3); }"""
    ran = run(source, {"p": np.full(1, 12345, np.uint64), "y": np.zeros(1, np.int32)}, block=(1,))
    assert not ran.result.completed
    finding = ran.only(FindingKind.BAD_CALL)
    assert "0x3039" in finding.where


def test_a_branch_table() -> None:
    source = """extern "C" __global__ void k(int* y) {
      int t = threadIdx.x, r;
      asm volatile("{ .reg .u32 i; and.b32 i, %1, 3;"
          "T: .branchtargets A, B, C, D;"
          "brx.idx i, T;"
          "A: mov.u32 %0, 10; bra.uni E;"
          "B: mov.u32 %0, 20; bra.uni E;"
          "C: mov.u32 %0, 30; bra.uni E;"
          "D: mov.u32 %0, 40;"
          "E: }" : "=r"(r) : "r"(t));
      y[t] = r + (__activemask() == ~0u ? 0 : 1000);
    }"""
    ran = clean(source, {"y": np.zeros(32, np.int32)})
    assert list(ran["y"]) == [10 * (1 + t % 4) for t in range(32)]


def test_printf() -> None:
    source = r"""
    extern "C" __global__ void k(const char* unused) {
      if (threadIdx.x == 2) printf("%d|%5u|%-4x|%lld|%.3f|%g|%s|%c|%%|%p\n",
        -7, 42u, 255, 1234567890123ll, 3.14159, 1e-9, "text", 'z',
        (void*)16);
      if (threadIdx.x >= 30) printf("thread %d of %*d\n", threadIdx.x, 4, 32);
    }"""
    ran = clean(source, {"unused": np.zeros(8, np.uint8)})
    assert ran.result.printed == (
        "-7|   42|ff  |1234567890123|3.142|1e-09|text|z|%|0x10\nthread 30 of   32\nthread 31 of   32\n"
    )


def test_hostile_formats_are_bounded() -> None:
    source = r"""
    extern "C" __global__ void k(const char* text) { printf("%s\n", text + 100000); printf(text, 1);
      printf("%999999999d%n|%10000s", 1, 2); }"""
    text = np.frombuffer(b"%d %d %s %s" + b"A" * 5000, np.uint8)
    ran = run(source, {"text": text}, block=(1,))
    assert ran.result.completed
    assert len(ran.result.printed) < 20000


def test_assertions_and_traps() -> None:
    source = """
    extern "C" __global__ void k(int* y, int how) {
      if (how == 0) assert(threadIdx.x < 5);
      if (how == 1 && threadIdx.x == 9) __trap();
      y[threadIdx.x] = 1;
    }"""
    ran = run(source, {"y": np.zeros(32, np.int32), "how": 0})
    assert not ran.result.completed
    finding = ran.only(FindingKind.ASSERTION)
    assert finding.thread.thread == (5, 0, 0)
    assert "assertion `threadIdx.x < 5` failed" in ran.result.printed
    assert finding.line is not None
    ran = run(source, {"y": np.zeros(32, np.int32), "how": 1})
    assert ran.only(FindingKind.TRAP).thread.thread == (9, 0, 0)


def test_the_budget_ends_an_endless_loop() -> None:
    source = """extern "C" __global__ void k(volatile int* y) { while (y[0] == 0) {} y[1] = 1; }"""
    options = LaunchOptions(workers=1, instruction_budget=3_000_000)
    ran = run(source, {"y": np.zeros(2, np.int32)}, options=options)
    assert not ran.result.completed
    finding = ran.only(FindingKind.BUDGET)
    assert finding.line == 1
    assert ran.result.thread_instructions < 8_000_000


def test_registers_of_a_loop_keep_their_values_where_a_guard_skips_the_write() -> None:
    source = """extern "C" __global__ void k(const int* x, int* y, int n) {
      int t = threadIdx.x, last = -1;
      for (int i = 0; i < n; ++i) { int v = x[i]; if (v % (t + 1) == 0) last = v; }
      y[t] = last;
    }"""
    x = np.arange(1, 50, dtype=np.int32)
    ran = clean(source, {"x": x, "y": np.zeros(32, np.int32), "n": len(x)})
    assert list(ran["y"]) == [max((v for v in range(1, 50) if v % (t + 1) == 0), default=-1) for t in range(32)]
