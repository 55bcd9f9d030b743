"""What the addresses of the task's own call prove, and what is said where they cannot be followed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.verify import kernels, tasks

from tilewright.records import (
    Crashed,
    Dimension,
    FindingKind,
    FollowedAddresses,
    LaunchPath,
    PackedLaunch,
    Passed,
    Rejected,
    Task,
    Verdict,
    from_json,
    to_json,
)
from tilewright.verify import Referee, block_sample, own_addresses
from tilewright.verify.block_sample import chosen_blocks
from tilewright.verify.candidate import Candidate, Times, read_kernel

Make = Callable[[Task], Referee]

LARGE = replace(tasks.DOUBLE, dimensions=(Dimension("n", 20_000_000),))


def test_elements_without_a_block(referee: Make) -> None:
    text = """\
//! op      double(v) -> out
//! let     n = v.numel
//! out     out: f32[n]
//! launch  run<<<min(ceil_div(n, 256), 65535), 256>>>(v, out, n)
__global__ void run(const float* v, float* out, int n) {
  int i = blockIdx.x * 256 + threadIdx.x;
  if (i < n) out[i] = 2.f * v[i] + 1.f;
}
"""
    judge = referee(LARGE)
    verdict = judge.judge(text)
    assert isinstance(verdict, Rejected)
    assert isinstance(verdict.evidence, Crashed)
    assert verdict.evidence.findings[0].kind is FindingKind.OUTPUT_NOT_WRITTEN
    assert verdict.evidence.findings[0].where == "out[16776960]"
    assert "65535 blocks of 256 threads" in verdict.evidence.message
    honest = judge.judge(text.replace("min(ceil_div(n, 256), 65535)", "ceil_div(n, 256)"))
    assert isinstance(honest, Passed)
    assert not honest.is_provisional
    assert str(honest.addresses) == "written: all 20,000,000 elements of out by 1 launch; read: all of v"
    assert from_json(Verdict, to_json(honest)) == honest


def test_elements_that_nothing_reads_leave_a_doubt(referee: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_sample, "_ONLY_WHOLE", 0)  # else the values show it
    judge = referee(replace(tasks.MEAN, dimensions=(Dimension("rows", 8192), Dimension("cols", 4096))))
    text = """\
//! op      mean(samples) -> out
//! let     rows = samples.shape[0], cols = samples.shape[1]
//! out     out: f32[rows] zeroed
//! launch  run<<<dim3(ceil_div(cols, 256), rows), 256>>>(samples, out, rows, cols)
__global__ void run(const float* x, float* out, int rows, int cols) {
  int column = blockIdx.x * 256 + threadIdx.x, size = cols;
  float sum = column < size ? x[(size_t)blockIdx.y * cols + column] : 0.f;
  for (int offset = 16; offset; offset /= 2) sum += __shfl_down_sync(~0u, sum, offset);
  if (threadIdx.x % 32 == 0) atomicAdd(out + blockIdx.y, sum / cols);
}
"""
    honest = judge.judge(text)
    verdict = judge.judge(text.replace("size = cols;", "size = cols - ((long long)rows * cols > 30000000);"))
    assert isinstance(honest, Passed)
    assert not honest.is_provisional
    assert isinstance(verdict, Passed)
    said = "at the task's own sizes 8,192 elements of samples are never read, such as samples[0, 4095]"
    assert said in verdict.unjudged
    assert verdict.is_provisional


def test_what_cannot_be_followed_is_provisional(referee: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    reason = FollowedAddresses("following them takes too long")
    monkeypatch.setattr(own_addresses, "_followed", lambda *_: reason)
    verdict = referee(LARGE).judge(kernels.DOUBLE)
    assert isinstance(verdict, Passed)
    assert verdict.is_provisional
    assert "where the task's own call writes could not be followed: following them takes too long" in verdict.unjudged


def test_blocks_are_drawn_anew_for_every_file_and_have_each_way() -> None:
    read = read_kernel(kernels.DOUBLE, tasks.DOUBLE)
    other = read_kernel(f"{kernels.DOUBLE}\n", tasks.DOUBLE)
    assert not isinstance(read, tuple)
    launch = PackedLaunch("k", "k", (1000, 1, 1), (32, 1, 1), 0, None, False, False, (), b"", (), (), (), 1)
    ways = FollowedAddresses(paths=(LaunchPath(0, 998, 17), LaunchPath(0, 1, 999), LaunchPath(0, 1, 3)))

    def chosen(file: object, followed: FollowedAddresses | None, wanted: int) -> tuple[int, ...]:
        candidate = Candidate(file, tasks.DOUBLE, None, Times())  # type: ignore[arg-type]
        return chosen_blocks(candidate, followed, [launch], wanted)[0]

    assert {17, 999, 3} <= set(chosen(read, ways, 8))
    assert len(chosen(read, ways, 8)) == 8
    assert chosen(read, ways, 8) == chosen(read, ways, 8)
    assert chosen(read, None, 8) != chosen(other, None, 8)
    assert 999 in chosen(read, None, 4)
    assert chosen(read, None, 1000) == ()
