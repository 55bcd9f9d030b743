"""`--reference` takes what `make` takes, in every command that has one."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.frontends.in_process import Done, tilewright

SCALE = """\
//! op      scale(x, weight) -> y
//! out     y: x.dtype[x.shape]
//! need    x.dtype == f32 and x.ndim == 2 and weight.ndim == 1 and weight.shape[0] == x.shape[1]
//! need    weight.dtype == f32
//! launch  scale<<<ceil_div(x.numel, 128), 128>>>(x, weight, y, x.numel, x.shape[1])
__global__ void scale(const float* x, const float* weight, float* y, int n, int cols) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i < n) y[i] = x[i] * weight[i % cols];
}
"""
FUNCTIONS = """\
import torch
from torch import nn


def scale(x, weight):
    return x * weight


def doubled(x, weight):
    return 2 * x * weight


class Scale(nn.Module):
    def __init__(self, width, factor=1.0):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width))
        self.factor = factor

    def forward(self, x):
        return self.factor * x * self.weight
"""
PROBLEM = """\
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width))

    def forward(self, x):
        return x * self.weight


def get_inputs():
    return [torch.randn(6, 20)]


def get_init_inputs():
    return [20]
"""
TASK = """\
name = "scale"

[dimensions]
rows = 6
cols = 20

[inputs]
x = "f32[rows, cols]"
weight = "f32[cols]"
"""
SHAPES = ("--shape", "x=6x20", "--shape", "weight=20")
WAYS = (
    "functions.py:scale",
    "functions.py:Scale(20)",
    "scale_module_of_tests:Scale(20)",
    "problem.py",
    "task",
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "scale.cu").write_text(SCALE)
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    (tmp_path / "scale_module_of_tests.py").write_text(FUNCTIONS)
    (tmp_path / "problem.py").write_text(PROBLEM)
    (tmp_path / "task").mkdir()
    (tmp_path / "task" / "task.toml").write_text(TASK)
    (tmp_path / "task" / "reference.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def run(folder: Path, *arguments: str) -> Done:
    return tilewright(folder / "home", *arguments, folder=folder)


@pytest.mark.parametrize("reference", WAYS)
def test_check_compares_with_it(folder: Path, reference: str) -> None:
    done = run(folder, "check", "scale.cu", *SHAPES, "--reference", reference)
    assert done.returncode == 0, done.stderr
    assert "the results agree with the reference" in done.stdout


@pytest.mark.parametrize("reference", ["functions.py:doubled", "scale_module_of_tests:Scale(20, factor=2.0)"])
def test_check_finds_what_is_not_the_same(folder: Path, reference: str) -> None:
    done = run(folder, "check", "scale.cu", *SHAPES, "--reference", reference)
    assert done.returncode == 1
    assert "y is not what the reference computes" in done.stdout


def test_bench_times_beside_a_module(folder: Path) -> None:
    done = run(folder, "bench", "scale.cu", *SHAPES, "--reference", "functions.py:Scale(20)", "--against", "eager")
    assert done.returncode == 0, done.stderr
    assert "eager" in done.stdout
    assert "right at these sizes" in done.stdout
    wrong = "functions.py:Scale(20, factor=2.0)"
    assert run(folder, "bench", "scale.cu", *SHAPES, "--reference", wrong, "--against", "eager").returncode == 1


def test_audit_judges_by_a_kernelbench_file(folder: Path) -> None:
    done = run(folder, "audit", "scale.cu", *SHAPES, "--reference", "problem.py")
    assert done.returncode == 0, done.stderr
    assert "by the referee, against the reference" in done.stdout


PLAIN = """\
__global__ void scale_rows(const float* x, const float* weight, float* y, int rows, int cols) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < rows * cols) y[i] = x[i] * weight[i % cols];
}

void launch(const float* x, const float* weight, float* y, int rows, int cols) {
  scale_rows<<<(rows * cols + 127) / 128, 128>>>(x, weight, y, rows, cols);
}
"""
LAUNCHED = (*SHAPES, "--shape", "y=6x20", "--set", "rows=6", "--set", "cols=20")


def test_import_and_check_of_plain_cuda_compare_with_what_it_returns(folder: Path) -> None:
    (folder / "plain.cu").write_text(PLAIN)
    reference = ("--reference", "functions.py:Scale(20)")
    done = run(folder, "import", "plain.cu", "-o", "k.cu", *LAUNCHED, *reference)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "equal to the reference" in done.stdout
    done = run(folder, "check", "plain.cu", *LAUNCHED, *reference)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the results agree with the reference" in done.stdout
    done = run(folder, "check", "plain.cu", *LAUNCHED, "--reference", "functions.py:doubled")
    assert done.returncode == 1, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("scale x by a weight", "there is no such file or run; write FILE.py:FUNCTION"),
        ("nowhere.py:scale", "there is no file nowhere.py; write FILE.py:FUNCTION"),
        ("functions.py", "it defines scale, doubled, Scale; write FILE.py:FUNCTION"),
        ("functions.py:Scale", "missing 1 required positional argument: 'width'"),
        ("functions.py:Scale(", "a bracket is not closed"),
        ("no_such_package:Scale(1)", "there is no such file, module or run"),
        ("scale_module_of_tests:Nothing(1)", "scale_module_of_tests has no Nothing"),
    ],
)
@pytest.mark.parametrize("command", ["check", "bench", "audit"])
def test_a_bad_one_is_one_sentence(folder: Path, command: str, reference: str, said: str) -> None:
    done = run(folder, command, "scale.cu", *SHAPES, "--reference", reference)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert "/tmp/tmp" not in done.stderr
