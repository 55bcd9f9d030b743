"""`tilewright bench` as a person meets it, without a GPU; times on one are in the part that needs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tests.frontends.cli.test_audit import BROKEN, REFERENCE, RIGHT
from tests.frontends.in_process import tilewright

from tilewright.frontends.report.audit import BenchReport, BenchRow, bench_report
from tilewright.frontends.report.rendering import plain_text
from tilewright.records import Timing, from_json

# A warp for each row: the same op, faster.
WARPS = """\
//! op      row_sums(x) -> y
//! out     y: f32[x.shape[0]]
//! need    x.dtype == f32 and x.ndim == 2
//! launch  row_sums<<<ceil_div(x.shape[0], 8), 256>>>(x, y, x.shape[0], x.shape[1])
__global__ void row_sums(const float* x, float* y, int rows, int cols) {
  int row = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  float sum = 0.0f;
  for (int k = lane; k < cols; k += 32) sum += x[row * (long long)cols + k];
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
  if (lane == 0) y[row] = sum;
}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in (("right.cu", RIGHT), ("broken.cu", BROKEN), ("warps.cu", WARPS), ("reference.py", REFERENCE)):
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["right.cu", "--against", "eager"], "give --reference"),
        (["right.cu", "--against", "missing.cu"], "a kernel file that is there"),
        (["right.cu", "--against", "right.cu"], "two files are called right.cu"),
    ],
)
def test_bad_input_is_one_sentence(folder: Path, arguments: list[str], said: str) -> None:
    done = tilewright(folder, "bench", *arguments, folder=folder)
    assert done.returncode == 2
    assert said in done.stderr


def test_the_report_shows_who_is_wrong() -> None:
    kernel = BenchRow("k.cu", 10.0, timing=Timing("k.cu", (9.0, 10.0, 11.0)))
    rows = (kernel, BenchRow("<b>.cu", 5.0, 0.5, judged="wrong"), BenchRow("torch.compile", None))
    report = BenchReport("k.cu", "op", "H200", "here", True, {"x": "f32[8]"}, False, 4.0, rows, ("<b>.cu",))
    text = plain_text(bench_report(report))
    assert "5.00 us, 0.50x as long" in text
    assert "wrong" in text
    assert report.exit_status == 1


@pytest.mark.slow
def test_modelled_beside_eager_and_another_kernel(folder: Path) -> None:
    arguments = ("--reference", "reference.py:row_sums", "--shape", "x=32768x64", "--json")
    asked = ("bench", "right.cu", "--against", "eager,compile,warps.cu", *arguments)
    done = tilewright(folder, *asked, folder=folder)
    assert done.returncode == 0
    report: BenchReport = from_json(BenchReport, json.loads(done.stdout))
    kernel, warps, eager, compiled = report.rows
    assert (kernel.name, warps.name, report.measured) == ("right.cu", "warps.cu", False)
    assert warps.times_as_long is not None
    assert warps.times_as_long < 0.9
    assert kernel.judged == warps.judged == "right at these sizes"
    assert eager.time_us is not None
    assert report.floor_us < eager.time_us < 100
    assert "1 kernel " in eager.note
    assert compiled.time_us is None


@pytest.mark.slow
def test_a_wrong_kernel_is_told_beside_its_time(folder: Path) -> None:
    done = tilewright(folder, "bench", "broken.cu", "--against", "warps.cu", "--shape", "x=4096x64", folder=folder)
    assert done.returncode == 1
    assert "at fault" in done.stdout
    assert "modelled times" in done.stdout


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_measured_in_turn(folder: Path) -> None:
    asked = ("--reference", "reference.py:row_sums", "--shape", "x=32768x64", "--json")
    done = tilewright(folder, "bench", "warps.cu", "--against", "eager,right.cu", *asked, folder=folder)
    report: BenchReport = from_json(BenchReport, json.loads(done.stdout))
    assert (done.returncode, report.measured) == (0, True)
    assert all(row.timing is not None for row in report.rows)
    assert report.rows[1].interval is not None
    assert report.rows[1].interval.low > 1.0
