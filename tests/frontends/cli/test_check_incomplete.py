"""`tilewright check` says what its checkers could not see to the end, and says nothing where they could."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.frontends.in_process import Done, tilewright

# Bytes a kilobyte apart: each takes the race detector 32 KiB, and a GiB is all it has.
SOURCE = """//! op      touch(x) -> y
//! out     y: u8[x.numel]
//! scratch far: u8[40 * 1048576]
//! launch  scatter<<<BLOCKS, 32>>>(x, far)
//! launch  gather<<<1, x.numel>>>(far, y)
__global__ void scatter(const unsigned char* x, unsigned char* far) {
  far[(blockIdx.x * 32 + threadIdx.x) * 1024] = x[threadIdx.x];
}
__global__ void gather(const unsigned char* far, unsigned char* y) { y[threadIdx.x] = far[threadIdx.x * 1024]; }
"""


CALL = ("--shape", "x=32:u8", "--schedules", "1")


def check(folder: Path, blocks: int, *more: str) -> Done:
    (folder / "touch.cu").write_text(SOURCE.replace("BLOCKS", str(blocks)))
    return tilewright(folder / "home", "check", "touch.cu", *CALL, *more, folder=folder)


@pytest.mark.slow
@pytest.mark.parametrize(("blocks", "complete"), [(1, True), (1280, False)])
def test_in_words_and_in_json(tmp_path: Path, blocks: int, complete: bool) -> None:
    sentence = "scatter: races in global memory: more accesses than the detector has memory for; a race may have been"
    told = check(tmp_path, blocks)
    assert told.returncode == 0, told.stdout + told.stderr
    flat = " ".join(told.stdout.split())
    assert (f"not checked to the end: {sentence} missed" in flat) is not complete
    report = json.loads(check(tmp_path, blocks, "--json").stdout)
    assert report["incomplete"] == ([] if complete else [f"{sentence} missed"])
    assert report["outcome"] == "clean"
