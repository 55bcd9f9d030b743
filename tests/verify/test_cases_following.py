"""Sizes that follow from others: made from functions, every size varies, and the referee sees wrong relations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from tests.tasks.in_process import JudgingReference, probed

from tilewright.devices.child_device import EmulatedDevice
from tilewright.records import (
    CaseStatus,
    Dimension,
    DType,
    Passed,
    Rejected,
    SizeFormula,
    Task,
    TaskOutput,
    TensorInput,
    following,
)
from tilewright.reference import AnyReference
from tilewright.verify import Referee
from tilewright.verify.accepted_sizes import accepted_sizes
from tilewright.verify.case_sizes import inner_dimension
from tilewright.verify.case_work import work_of
from tilewright.verify.cases import plan_cases

# A reference is called by name, so the names of the inputs say which op is meant.
SOURCE = """\
import inspect
import torch
import torch.nn.functional as F

def rotary(x, cos, sin):
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)

def glu(gated):
    a, b = gated.chunk(2, -1)
    return a * torch.sigmoid(b)

def steps(series):
    return torch.diff(series)

def filtered(signal, taps):
    return F.conv1d(signal, taps, stride=2, padding=1)

def flattened(grid):
    b, h, d = grid.shape
    return (2 * grid).transpose(1, 2).reshape(b, h * d)

def joined(left, right):
    return torch.cat([left, -right], -1)

def any_op(**inputs):
    ops = (rotary, glu, steps, filtered, flattened, joined)
    (op,) = [one for one in ops if {*inspect.signature(one).parameters} == {*inputs}]
    return op(**inputs)
"""


@dataclass(frozen=True)
class Op:
    name: str
    shapes: dict[str, str]
    follows: dict[str, str]
    kernel: str
    right: str  # in the kernel's plan
    wrong: str  # instead of it: the same at the task's own sizes, or a size that is not the task's


ROTARY = Op(
    "rotary",
    {"x": "6x40x32", "cos": "40x16", "sin": "40x16"},
    {"half_cols": "cols / 2"},
    """\
//! op      rotary(x, cos, sin) -> y
//! out     y: f32[x.shape]
//! let     rows = x.shape[1], half = cos.shape[1], n = x.numel
//! launch  run<<<ceil_div(n, 128), 128>>>(x, cos, sin, y, rows, half, x.shape[2], n)
__global__ void run(const float* x, const float* cos, const float* sin, float* y, int rows, int half, int cols, int n) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= n) return;
  int column = i % cols, row = i / cols % rows;
  bool second = column >= half;
  int at = row * (cols / 2) + (second ? column - half : column);
  float other = second ? x[i - half] * sin[at] : -x[i + half] * sin[at];
  y[i] = x[i] * cos[at] + other;
}
""",
    "half = cos.shape[1]",
    "half = 16",
)
GLU = Op(
    "glu",
    {"gated": "48x64"},
    {"half_cols": "cols / 2"},
    """\
//! op      glu(gated) -> y
//! let     rows = gated.shape[0], half = gated.shape[1] / 2
//! out     y: f32[rows, half]
//! launch  run<<<ceil_div(rows * half, 128), 128>>>(gated, y, half, rows * half)
__global__ void run(const float* x, float* y, int half, int n) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= n) return;
  const float* row = x + (i / half) * 2 * half;
  y[i] = row[i % half] / (1.f + expf(-row[half + i % half]));
}
""",
    "y, half, rows * half",
    "y, 32, rows * half",
)
STEPS = Op(
    "steps",
    {"series": "24x40"},
    {"y_cols": "cols - 1"},
    """\
//! op      steps(series) -> y
//! let     rows = series.shape[0], cols = series.shape[1], left = cols - 1
//! out     y: f32[rows, left]
//! launch  run<<<ceil_div(rows * left, 128), 128>>>(series, y, cols, left, rows * left)
__global__ void run(const float* x, float* y, int cols, int left, int n) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i < n) y[i] = x[i / left * cols + i % left + 1] - x[i / left * cols + i % left];
}
""",
    "left = cols - 1",
    "left = cols - cols / 40",
)
FILTERED = Op(
    "filtered",
    {"signal": "3x6x64", "taps": "8x6x3"},
    {"y_width": "(width - kernel_width + 4) / 2"},
    """\
//! op      filtered(signal, taps) -> y
//! let     batch = signal.shape[0], channels = signal.shape[1], width = signal.shape[2], outs = taps.shape[0]
//! let     length = taps.shape[2], left = (width - length + 2) / 2 + 1, n = batch * outs * left
//! out     y: f32[batch, outs, left]
//! launch  run<<<ceil_div(n, 128), 128>>>(signal, taps, y, channels, width, outs, length, left, n)
__global__ void run(const float* x, const float* w, float* y, int channels, int width, int outs, int length, int left,
                    int n) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= n) return;
  int at = i % left, out = i / left % outs, batch = i / left / outs;
  float sum = 0.f;
  for (int c = 0; c < channels; ++c)
    for (int k = 0; k < length; ++k) {
      int from = 2 * at - 1 + k;
      if (from >= 0 && from < width)
        sum += x[(batch * channels + c) * width + from] * w[(out * channels + c) * length + k];
    }
  y[i] = sum;
}
""",
    "left = (width - length + 2) / 2 + 1",
    "left = width / 2",
)
FLATTENED = Op(
    "flattened",
    {"grid": "5x6x8"},
    {"y_cols": "rows * cols"},
    """\
//! op      flattened(grid) -> y
//! let     batch = grid.shape[0], rows = grid.shape[1], cols = grid.shape[2], n = grid.numel
//! out     y: f32[batch, rows * cols]
//! launch  run<<<ceil_div(n, 128), 128>>>(grid, y, rows, cols, n)
__global__ void run(const float* x, float* y, int rows, int cols, int n) {
  int i = blockIdx.x * 128 + threadIdx.x;
  int each = rows * cols;
  if (i < n) y[i] = 2.f * x[i / each * each + i % each % rows * cols + i % each / rows];
}
""",
    "y: f32[batch, rows * cols]",
    "y: f32[batch, 48]",
)
JOINED = Op(
    "joined",
    {"left": "8x12", "right": "8x12"},
    {"y_cols": "cols + right_cols"},
    """\
//! op      joined(left, right) -> y
//! let     rows = left.shape[0], a = left.shape[1], b = right.shape[1], n = rows * (a + b)
//! out     y: f32[rows, a + b]
//! launch  run<<<ceil_div(n, 128), 128>>>(left, right, y, a, b, n)
__global__ void run(const float* left, const float* right, float* y, int a, int b, int n) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= n) return;
  int row = i / (a + b), column = i % (a + b);
  y[i] = column < a ? left[row * a + column] : -right[row * b + column - a];
}
""",
    "y: f32[rows, a + b]",
    "y: f32[rows, 2 * a]",
)
OPS = {one.name: one for one in (ROTARY, GLU, STEPS, FILTERED, FLATTENED, JOINED)}


@pytest.fixture(scope="module")
def any_op() -> Iterator[JudgingReference]:
    with JudgingReference(SOURCE, "any_op") as made:
        yield made


@pytest.fixture(scope="module")
def tasks() -> dict[str, Task]:
    return {name: probed(SOURCE, name, one.shapes)[0] for name, one in OPS.items()}


@pytest.mark.parametrize("name", OPS)
def test_every_dimension_varies(name: str, tasks: dict[str, Task]) -> None:
    task = tasks[name]
    assert all(one.varies for one in task.dimensions)
    assert {one.name: str(one.formula) for one in task.dimensions if one.formula is not None} == OPS[name].follows
    assert task.assumptions == ()


@pytest.mark.parametrize("name", OPS)
def test_cases_keep_to_the_formulas(name: str, tasks: dict[str, Task]) -> None:
    task = tasks[name]
    cases = plan_cases(task)
    taken = accepted_sizes(task, lambda sizes: True, count=50)
    assert len({tuple(case.sizes.items()) for case in cases}) >= 4
    for sizes in (*(case.sizes for case in cases), *taken):
        assert sizes == task.complete(sizes)
        assert task.is_sound(sizes)
        assert all(sizes[one.name] % one.multiple_of == 0 for one in task.dimensions)


@pytest.mark.slow
@pytest.mark.parametrize("name", OPS)
def test_a_right_kernel_passes_at_other_sizes(
    name: str, tasks: dict[str, Task], any_op: AnyReference, emulator: EmulatedDevice
) -> None:
    verdict = Referee(tasks[name], any_op, emulator=emulator).judge(OPS[name].kernel)
    assert isinstance(verdict, Passed), verdict
    right = [one.case.sizes for one in verdict.cases if one.status is CaseStatus.RIGHT]
    assert len({sizes[next(iter(OPS[name].follows))] for sizes in right}) >= 3


@pytest.mark.parametrize("name", OPS)
def test_a_relation_that_holds_at_the_tasks_sizes_only_is_rejected(
    name: str, tasks: dict[str, Task], any_op: AnyReference, emulator: EmulatedDevice
) -> None:
    op = OPS[name]
    assert op.right in op.kernel
    verdict = Referee(tasks[name], any_op, emulator=emulator).judge(op.kernel.replace(op.right, op.wrong))
    assert isinstance(verdict, Rejected), verdict


def test_work_and_the_inner_dimension_are_of_free_dimensions(tasks: dict[str, Task]) -> None:
    glu = tasks["glu"]
    assert work_of(glu, glu.sizes) == 48 * 64
    assert inner_dimension(glu) == "cols"
    assert inner_dimension(tasks["filtered"]) == "width"


def test_filters_have_room_in_their_images() -> None:
    sizes = {"batch": 1, "channels": 512, "height": 14, "width": 14, "out_channels": 512, "tall": 3, "broad": 3}
    task = Task(
        "convolution",
        "",
        "convolution",
        (
            TensorInput("x", DType.F32, ("batch", "channels", "height", "width")),
            TensorInput("w", DType.F32, ("out_channels", "channels", "tall", "broad")),
        ),
        (TaskOutput("y", DType.F32, ("batch", "out_channels", "y_height", "y_width")),),
        following(
            (
                *(Dimension(name, size) for name, size in sizes.items()),
                Dimension("y_height", 0, formula=SizeFormula.parse("(height - tall + 2) / 2")),
                Dimension("y_width", 0, formula=SizeFormula.parse("width - broad + 1")),
            )
        ),
    )
    assert inner_dimension(task) == "channels", "a filter is no dimension to specialise for, though w is largest"
    cases = [case.sizes for case in plan_cases(task)]
    assert all(one["tall"] <= 3 and one["broad"] <= 3 for one in cases if (one["tall"], one["broad"]) != (5, 5))
    assert sum((one["tall"], one["broad"]) == (5, 5) for one in cases) == 1
    several = {tuple(one.items()) for one in cases if one["y_height"] >= 3 and one["y_width"] >= 3}
    assert len(several) >= 4
