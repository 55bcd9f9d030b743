"""Coverage: which lines ran, which way conditions went, how often warps went round loops."""

from __future__ import annotations

import numpy as np
import pytest
from tests.ptx.cuda_kernels import In, clean

from tilewright.records import Check, Seen
from tilewright.records.emulation import LOOP, CoverageRecord

KERNEL = """extern "C" __global__ void k(const int* trips, float* y, int far, int pick) {
  int t = threadIdx.x;
  float sum = 0.0f;
  #pragma unroll 1
  for (int i = 0; i < trips[blockIdx.x]; i++)
    sum += __sinf(sum + i);
  if (t > far)
    sum = __cosf(sum) * y[t + 32];
  y[t] = pick > 3 ? sum : sum + 1.0f;
}
"""
NESTED = """extern "C" __global__ void k(const int* trips, float* y) {
  int t = threadIdx.x;
  float sum = 0.0f;
  #pragma unroll 1
  for (int i = 0; i < trips[0]; i++) {
    #pragma unroll 1
    for (int j = t % 2; j < trips[1 + i]; j++) {
      if (j % 3 == t % 3) continue;
      sum += __sinf(sum + j);
    }
  }
  y[t] = sum;
}
"""


def coverage(source: str, grid: int = 1, **arguments: In | np.ndarray | int) -> CoverageRecord:
    ran = clean(source, arguments, grid=(grid,), checks=(Check.COVERAGE,))
    assert ran.result.coverage is not None
    return ran.result.coverage


def seen(record: CoverageRecord, line: int, what: str) -> Seen:
    """Of all instructions of a kind at a line."""
    found = [one.seen for one in record.sites if one.lines[:1] == (line,) and one.what == what]
    assert found, (line, what)
    return Seen(int(np.bitwise_or.reduce(np.frombuffer(bytes.fromhex("".join(found)), np.uint8))))


def trips(*counts: int) -> Seen:
    record = coverage(
        KERNEL, len(counts), trips=In(np.array(counts, np.int32)), y=np.zeros(64, np.float32), far=0, pick=0
    )
    return seen(record, 5, LOOP) & ~Seen.RAN


def test_trips_of_a_loop() -> None:
    assert trips(0) == Seen(0)
    assert trips(1) == Seen.ONE_TRIP
    assert trips(2) == Seen.TWO_TRIPS
    assert trips(3) == trips(8) == Seen.SEVERAL_TRIPS
    assert trips(9) == trips(100) == Seen.MANY_TRIPS
    assert trips(1, 0, 40) == Seen.ONE_TRIP | Seen.MANY_TRIPS


def test_trips_of_loops_in_loops() -> None:
    """Each time a warp comes to the inner loop counts alone, whichever of its lanes stay longer or go round alone."""
    record = coverage(NESTED, trips=In(np.array([4, 2, 1, 30, 5], np.int32)), y=np.zeros(32, np.float32))
    inner = seen(record, 7, LOOP) & ~Seen.RAN
    assert inner == Seen.ONE_TRIP | Seen.TWO_TRIPS | Seen.SEVERAL_TRIPS | Seen.MANY_TRIPS
    assert seen(record, 5, LOOP) & ~Seen.RAN == Seen.SEVERAL_TRIPS


@pytest.mark.parametrize(("far", "ran"), [(-1, True), (15, True), (31, False)])
def test_lines_behind_a_condition(far: int, ran: bool) -> None:
    record = coverage(KERNEL, trips=In(np.array([1], np.int32)), y=np.zeros(64, np.float32), far=far, pick=0)
    assert (seen(record, 8, "cos") & Seen.RAN == Seen.RAN) is ran
    assert seen(record, 6, "sin") == Seen.RAN


def test_ways_of_a_selection() -> None:
    def chosen(pick: int) -> Seen:
        record = coverage(KERNEL, trips=In(np.array([1], np.int32)), y=np.zeros(64, np.float32), far=31, pick=pick)
        return seen(record, 9, "selp") & ~Seen.RAN

    assert {chosen(3), chosen(4)} == {Seen.FIRST, Seen.SECOND}


def test_programs_are_told_apart() -> None:
    arguments = {"trips": In(np.array([1], np.int32)), "y": np.zeros(64, np.float32), "far": 0, "pick": 0}
    same = coverage(KERNEL, **arguments)
    assert same.program == coverage(KERNEL, **{**arguments, "far": 31}).program
    assert same.program != coverage(KERNEL.replace("pick > 3", "pick > 4"), **arguments).program
