"""A race detector that runs out of memory says so, names what it no longer watches, and invents nothing."""

from __future__ import annotations

import numpy as np
from tests.ptx.cuda_kernels import Fresh, run

from tilewright.ptx.launching import LaunchOptions
from tilewright.records import ALL_CHECKS, Check, FindingKind

GLOBAL = """extern "C" __global__ void k(unsigned char* y) {
  y[(blockIdx.x * 32 + threadIdx.x) * 1024ull] = threadIdx.x;
  if (threadIdx.x == 0) y[gridDim.x * 32 * 1024ull - 1024] = blockIdx.x;  // of the last thread
}"""
SHARED = """extern "C" __global__ void k(int* y) {
  __shared__ unsigned char s[32768];
  for (int i = threadIdx.x; i < 32768; i += 32) s[i] = i;
  __syncthreads();
  y[threadIdx.x] = s[threadIdx.x * 1000];
}"""
FLAGS = """extern "C" __global__ void k(int* y, int* flag, int rounds) {
  if (blockIdx.x == 0) { y[0] = 1; return; }
  for (int i = 0; i < rounds; ++i) { __threadfence(); atomicAdd(flag, 1); }
  y[1] = y[0];
}"""


def said(source: str, arguments: dict[str, object], blocks: int, race_bytes: int) -> tuple[set[FindingKind], str]:
    options = LaunchOptions(workers=1, race_bytes=race_bytes)
    ran = run(source, arguments, grid=(blocks,), options=options)  # type: ignore[arg-type]
    return ran.kinds, "; ".join(ran.result.incomplete)


def test_global_memory() -> None:
    y = {"y": Fresh(np.zeros(1024 * 32 * 8, np.uint8))}
    assert said(GLOBAL, y, 8, 1 << 30) == ({FindingKind.RACE_GLOBAL}, "")
    kinds, sentence = said(GLOBAL, y, 8, 1 << 20)
    assert kinds == set(), "the places where it would be seen are no longer watched"
    assert sentence == (
        "races in global memory: more accesses than the detector has memory for; a race may have been missed"
    )


def test_shared_memory() -> None:
    y = {"y": np.zeros(32, np.int32)}
    assert said(SHARED, y, 1, 1 << 30) == (set(), "")
    kinds, sentence = said(SHARED, y, 1, 1 << 18)
    assert kinds == set()
    assert sentence.startswith("races in shared memory: more accesses than")


def test_what_orders() -> None:
    arguments = {"y": np.zeros(2, np.int32), "flag": np.zeros(1, np.int32), "rounds": 8}
    assert said(FLAGS, arguments, 2, 1 << 30) == ({FindingKind.RACE_GLOBAL}, "")
    for rounds, race_bytes in ((8, 1 << 17), (500, 1 << 30)):  # too little memory, too much for one thread to know
        kinds, sentence = said(FLAGS, {**arguments, "rounds": rounds}, 2, race_bytes)
        assert kinds == set()
        assert sentence.startswith("races: more barriers, fences and atomics than")


def test_nothing_is_said_where_races_are_not_looked_for() -> None:
    options = LaunchOptions(workers=1, race_bytes=1 << 16, checks=tuple(set(ALL_CHECKS) - {Check.RACES}))
    ran = run(SHARED, {"y": np.zeros(32, np.int32)}, options=options)
    assert (ran.result.incomplete, ran.kinds) == ((), set())


def test_several_os_threads_say_it_too() -> None:
    y = {"y": Fresh(np.zeros(1024 * 32 * 8, np.uint8))}
    ran = run(GLOBAL, y, grid=(8,), options=LaunchOptions(workers=2, race_bytes=1 << 20))
    assert len(ran.result.incomplete) == 1
