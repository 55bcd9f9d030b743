"""Counters: executions, lanes, sectors and passes, for accesses whose numbers are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from tests.ptx.cuda_kernels import QUICK, In, Ran, clean, run

from tilewright.records import Check, InstructionRecord


def counted(ran: Ran, opcode: str) -> InstructionRecord:
    assert ran.result.counts is not None
    (found,) = (
        count for count in ran.result.counts.instructions if count.ptx_text.startswith(opcode) and count.requests
    )
    return found


def load(index: str, kind: str = "float", elements: int = 4096) -> InstructionRecord:
    source = (
        f"""extern "C" __global__ void k(const {kind}* x, {kind}* y) {{ int t = threadIdx.x; y[t] = x[{index}]; }}"""
    )
    size = {"float": 4, "float4": 16, "double": 8, "short": 2}[kind]
    ran = clean(source, {"x": In(np.zeros(elements * size, np.uint8)), "y": np.zeros(64 * size, np.uint8)}, block=(64,))
    return counted(ran, "ld.global")


def test_sectors_of_global_loads() -> None:
    coalesced = load("t")
    assert (coalesced.executions, coalesced.active_lanes, coalesced.requests) == (2, 64, 2)
    assert (coalesced.sectors, coalesced.ideal_sectors, coalesced.bytes) == (8, 8, 256)
    strided = load("t * 8")
    assert (strided.sectors, strided.ideal_sectors) == (64, 8)
    shifted = load("t + 1")
    assert (shifted.sectors, shifted.ideal_sectors) == (10, 8)
    same = load("0")
    assert (same.sectors, same.ideal_sectors) == (2, 2)
    backwards = load("63 - t")
    assert (backwards.sectors, backwards.ideal_sectors) == (8, 8)
    scattered = load("(t * 37) % 64 * 16")
    assert (scattered.sectors, scattered.ideal_sectors) == (64, 8)
    wide = load("t", "float4")
    assert (wide.sectors, wide.ideal_sectors, wide.bytes) == (32, 32, 1024)
    narrow = load("t", "short")
    assert (narrow.sectors, narrow.ideal_sectors) == (4, 4)


def test_lines_of_global_loads() -> None:
    assert load("t").lines == 2
    assert load("t + 1").lines == 4
    assert load("t * 8").lines == 16
    assert load("63 - t").lines == 2
    assert load("t", "float4").lines == 8
    assert load("t % 2 + t / 2 * 16", "float4").lines == 32  # two lanes a row, a sector of each line
    assert load("(t * 37) % 64 * 32").lines == 64


def shared(index: str, kind: str = "float") -> InstructionRecord:
    source = f"""extern "C" __global__ void k({kind}* y) {{
      __shared__ {kind} s[2048]; int t = threadIdx.x;
      for (int i = t; i < 2048; i += 32) s[i] = y[t];
      __syncthreads(); y[t] = s[{index}];
    }}"""
    size = {"float": 4, "float4": 16, "double": 8}[kind]
    return counted(clean(source, {"y": np.zeros(32 * size, np.uint8)}, block=(32,)), "ld.shared")


def test_passes_of_shared_loads() -> None:
    assert (shared("t").passes, shared("t").ideal_passes) == (1, 1)
    assert shared("0").passes == 1
    assert shared("t * 2").passes == 2
    assert shared("t * 32").passes == 32
    assert shared("t * 33").passes == 1
    assert shared("(t % 4) * 32").passes == 4
    assert (shared("t", "double").passes, shared("t", "double").ideal_passes) == (2, 2)
    assert (shared("t", "float4").passes, shared("t", "float4").ideal_passes) == (4, 4)


def test_a_guarded_instruction_counts_its_lanes_and_one_lowered_to_several_counts_once() -> None:
    source = """extern "C" __global__ void k(int* y, int n) {
      int t = threadIdx.x;
      if (t < n) y[t] = 1;
      unsigned r; asm volatile("set.lt.u32.s32 %0, %1, 7;" : "=r"(r) : "r"(t)); y[32 + t] = r;
    }"""
    ran = clean(source, {"y": np.zeros(64, np.int32), "n": 5})
    assert ran.result.counts is not None
    by_text = {count.ptx_text.split(" ")[0]: count for count in ran.result.counts.instructions}
    assert by_text["set.lt.u32.s32"].executions == 1
    stores = [count for count in ran.result.counts.instructions if count.ptx_text.startswith("st.global")]
    assert sorted(count.active_lanes for count in stores) == [5, 32]
    assert list(ran["y"][32:]) == [-1] * 7 + [0] * 25


def test_touches_say_which_lane_of_the_first_warp_touches_which_bytes() -> None:
    source = """extern "C" __global__ void k(const float* x, int* y, int n) {
      int t = blockIdx.x * blockDim.x + threadIdx.x;
      if (t < n) y[t] = 1;
      atomicAdd(y + 64 + t % 2, (int)x[t * 3]);
      if (threadIdx.x >= 32) y[200] = 7;  // not by the first warp
    }"""
    arguments = {"x": In(np.zeros(1000, np.float32)), "y": np.zeros(256, np.int32), "n": 5}
    ran = run(source, arguments, grid=(2,), block=(64,), checks=(Check.TOUCHES,))
    store, load, both = ran.result.touches
    assert (load.tensor, load.bytes, load.reads, load.writes) == ("x", 4, True, False)
    assert load.offsets == tuple((lane, 12 * lane) for lane in range(32))
    assert (store.tensor, store.reads, store.writes) == ("y", False, True)
    assert store.offsets == tuple((lane, 4 * lane) for lane in range(5))
    assert (both.reads, both.writes) == (True, True)
    second = run(
        source, arguments, grid=(2,), block=(64,), checks=(Check.TOUCHES,), options=replace(QUICK, blocks=(1,))
    )
    assert [one.offsets[0] for one in second.result.touches] == [(0, 12 * 64), (0, 4 * 64)]
    assert not run(source, arguments, grid=(2,), block=(64,)).result.touches


def test_sectors_that_a_block_read_shortly_before_are_not_new() -> None:
    source = """extern "C" __global__ void k(const float* x, float* y, int away) {
      int t = threadIdx.x; float v = __ldcg(x + t);
      for (int i = 0; i < 3; ++i) v += x[t + i * away]; y[blockIdx.x * 64 + t] = v; }"""

    def new(away: int) -> tuple[int, int]:
        x, y = In(np.zeros(4096 * 4, np.uint8)), np.zeros(128 * 4, np.uint8)
        ran = clean(source, {"x": x, "y": y, "away": np.int32(away)}, grid=(2,), block=(64,))
        assert ran.result.counts is not None
        loads = [one for one in ran.result.counts.instructions if one.ptx_text.startswith("ld.global") and one.requests]
        return sum(one.sectors for one in loads), sum(one.new_sectors for one in loads)

    assert new(64) == (2 * 8 * 4, 2 * 8 * 3)  # what the first load read; each of two blocks begins anew
    assert new(0) == (2 * 8 * 4, 2 * 8)
    assert new(32) == (2 * 8 * 4, 2 * 16)  # the next warp's
