"""`tilewright audit` and `import` of plain CUDA, at sizes and against references that a person gives."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.frontends.in_process import tilewright

from tilewright.frontends.report.audit import Audit
from tilewright.records import from_json

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler"),
]

# Right for rows with a positive element alone: the maximum starts at 0.
SOFTMAX = """
#include <cuda_runtime.h>
__global__ void softmax_rows(const float* x, float* y, int rows, int cols) {
  __shared__ float part[32];
  const float* in = x + blockIdx.x * cols;
  float most = START;
  for (int c = 0; c < cols; ++c) most = fmaxf(most, in[c]);
  float sum = 0.0f;
  for (int c = threadIdx.x; c < cols; c += 32) sum += __expf(in[c] - most);
  part[threadIdx.x] = sum;
  __syncthreads();
  sum = 0.0f;
  for (int i = 0; i < 32; ++i) sum += part[i];
  for (int c = threadIdx.x; c < cols; c += 32) y[blockIdx.x * cols + c] = __expf(in[c] - most) / sum;
}
void softmax(const float* x, float* y, int rows, int cols, cudaStream_t stream) {
  softmax_rows<<<rows, 32, 0, stream>>>(x, y, rows, cols);
}
"""
REFERENCES = """\
import torch
from beside import plain

def returned(x):
    return plain(x)

def into(x, y):
    y.copy_(torch.softmax(x, -1))

def with_sizes(x, y, rows: int, cols: int):
    y.copy_(torch.softmax(x.view(rows, cols), -1))

def foreign(x, z):
    return x + z
"""
# Chooses another kernel for long rows.
TWO = """
__global__ void small_rows(const float* x, float* y, float by, int cols) {
  if (threadIdx.x < cols) y[blockIdx.x * cols + threadIdx.x] = x[blockIdx.x * cols + threadIdx.x] + by;
}
__global__ void long_rows(const float* x, float* y, float by, int cols) {
  for (int c = threadIdx.x; c < cols; c += 256) y[blockIdx.x * cols + c] = x[blockIdx.x * cols + c] + by;
}
void add(const float* x, float* y, float by, int rows, int cols) {
  if (cols <= 256) small_rows<<<rows, 256>>>(x, y, by, cols);
  else long_rows<<<rows, 256>>>(x, y, by, cols);
}
"""
# How long the table is nothing tells.
GATHER = """
__global__ void gather_rows(const float* table, const int* index, float* out, int N, int C) {
  for (int c = threadIdx.x; c < C; c += 64) out[blockIdx.x * C + c] = table[index[blockIdx.x] * C + c];
}
void gather(const float* table, const int* index, float* out, int N, int C) {
  gather_rows<<<N, 64>>>(table, index, out, N, C);
}
"""

HEADS = """
#include <assert.h>
__global__ void twice(const float* x, float* y, int T, int C) {
  int i = blockIdx.x * C + blockIdx.y * 64 + threadIdx.x;
  y[i] = x[i] * 2;
}
void run(int T, int C, int H, const float* x, float* y) {
  assert(H * 64 == C);
  twice<<<dim3(T, H), 64>>>(x, y, T, C);
}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "wrong.cu").write_text(SOFTMAX.replace("START", "0.0f"))
    (tmp_path / "right.cu").write_text(SOFTMAX.replace("START", "-INFINITY"))
    (tmp_path / "two.cu").write_text(TWO)
    (tmp_path / "gather.cu").write_text(GATHER)
    (tmp_path / "references.py").write_text(REFERENCES)
    (tmp_path / "beside.py").write_text("def plain(x):\n    return x.softmax(-1)\n")
    return tmp_path


def audited(folder: Path, file: str, *arguments: str) -> Audit:
    done = tilewright(folder, "audit", file, *arguments, "--json", folder=folder)
    assert done.stdout, done.stderr
    return from_json(Audit, json.loads(done.stdout))


@pytest.mark.parametrize("shapes", [["x=64x100"], ["y=64x100:f32"], ["x=64x100", "y=64x100"]])
def test_one_shape_tells_all_others(folder: Path, shapes: list[str]) -> None:
    audit = audited(folder, "right.cu", *(word for one in shapes for word in ("--shape", one)))
    assert audit.arguments == {"x": "f32[64, 100]", "y": "f32[64, 100]"}
    assert (audit.correctness.passed, audit.guessed) == (True, False)
    assert not any("not right" in note for note in audit.notes)


@pytest.mark.parametrize("reference", ["returned", "into", "with_sizes"])
def test_a_reference_returns_or_fills_what_the_kernel_writes(folder: Path, reference: str) -> None:
    asked = ("--shape", "x=64x100", "--reference", f"references.py:{reference}")
    right, wrong = (audited(folder, f"{one}.cu", *asked) for one in ("right", "wrong"))
    assert (right.correctness.passed, wrong.correctness.passed) == (True, False)
    for audit in (right, wrong):
        assert audit.arguments == {"x": "f32[64, 100]", "y": "f32[64, 100]"}
        assert audit.correctness.judge.startswith("the referee")
        assert not any("compared" in note for note in audit.notes)


def test_the_kernel_for_the_sizes_given_is_taken(folder: Path) -> None:
    audit = audited(folder, "two.cu", "--shape", "x=8x1024", "--set", "by=1")
    assert audit.arguments == {"x": "f32[8, 1024]", "y": "f32[8, 1024]", "by": "1.0"}
    assert audit.correctness.passed
    assert any(one.kernel == "long_rows" for one in audit.suggestions)


def test_what_the_shapes_do_not_tell_is_said(folder: Path) -> None:
    audit = audited(folder, "gather.cu", "--shape", "out=16x96", "--shape", "table=50x96")
    assert audit.arguments["index"] == "i32[16]"
    assert (audit.arguments["N"], audit.arguments["C"]) == ("16", "96")
    audit = audited(folder, "gather.cu", "--shape", "table=50x96")
    assert any("the shapes given do not determine N = " in note for note in audit.notes)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--shape", "x=64x100", "--shape", "y=64x99"], "cols is 99, but --shape x=64x100 makes it 100"),
        (["--shape", "x=64x100:f16"], "the kernel takes x as f32"),
        (["--shape", "z=64x100"], "softmax's parameters: cols, rows, x, y"),
        (["--reference", "references.py:foreign"], "takes z; the kernel's arguments are called x, y, rows, cols"),
    ],
)  # fmt: skip
def test_a_contradiction_is_one_sentence(folder: Path, arguments: list[str], said: str) -> None:
    done = tilewright(folder, "audit", "right.cu", *arguments, folder=folder)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert said in done.stderr


def test_an_import_compares_or_does_not_say_clean(folder: Path) -> None:
    asked = ("import", "right.cu", "-o", "out.cu", "--reference")
    done = tilewright(folder, *asked, "references.py:returned", folder=folder)
    assert (done.returncode, "clean, equal to the reference" in done.stdout) == (0, True)
    done = tilewright(folder, *asked, "references.py:foreign", folder=folder)
    assert (done.returncode, "clean" in done.stdout) == (1, False)
    assert "not compared at" in done.stdout


def test_a_number_that_a_check_asks_for_follows_too(folder: Path) -> None:
    (folder / "heads.cu").write_text(HEADS)
    audit = audited(folder, "heads.cu", "--shape", "x=10x192")
    assert audit.arguments == {"H": "3", "x": "f32[10, 192]", "y": "f32[10, 192]"}
    done = tilewright(folder, "audit", "heads.cu", "--shape", "x=10x100", folder=folder)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "at the sizes given (T = 10, C = 100) it cannot be called" in done.stderr
