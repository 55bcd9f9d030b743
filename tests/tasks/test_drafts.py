"""Whole tasks through the child: files, modules, KernelBench problems, folders, specifications."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.tasks.functions import SOURCE
from tests.tasks.in_process import HereReference, ask_here

from tilewright.records import (
    DType,
    Goal,
    IndexValues,
    IntegerValues,
    Kind,
    NormalValues,
    Origin,
    Specification,
    Task,
    UniformValues,
    from_json,
    to_json,
)
from tilewright.reference import Reference
from tilewright.tasks import (
    TaskError,
    TaskOptions,
    fit_specification,
    open_task,
    task_from_kernelbench,
    task_from_source,
    task_from_specification,
    task_op_line,
)
from tilewright.tasks.reading import folders, modules
from tilewright.tasks.reading.python_source import needed_source

HIDDEN = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.offset = nn.Parameter(torch.randn(1))

    def forward(self, x):
        return nn.functional.gelu(-1000.0 - self.linear(x).abs()) + self.offset

def get_inputs():
    return [torch.rand(8, 16)]

def get_init_inputs():
    return [16]
"""

CONVOLUTION = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, channels, features, size):
        super().__init__()
        self.conv = nn.Conv2d(channels, features, size)
        self.norm = nn.BatchNorm2d(features)
        self.scale = nn.Parameter(torch.randn(features, 1, 1))

    def forward(self, x):
        return torch.relu(self.norm(self.conv(x)) * self.scale)

def get_inputs():
    return [torch.rand(4, 6, 12, 12)]

def get_init_inputs():
    return [6, 20, 3]
"""

MIXED = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, 2 * features)
        self.register_buffer("mask", torch.tril(torch.ones(features, features)))

    def forward(self, x, rows, factor):
        return self.linear(x @ self.mask)[rows] * factor

def get_inputs():
    return [torch.rand(40, 24) * 4 - 2, torch.randint(0, 40, (9,)), 0.5]

def get_init_inputs():
    return [24]
"""

LARGE = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def forward(self, x):
        return x.clone()

def get_inputs():
    return [torch.rand(1 << 18, 1 << 18)]

def get_init_inputs():
    return []
"""

MODULE = """
import torch
from neighbour import EPS

class ScaledNorm(torch.nn.Module):
    def __init__(self, features, eps=EPS):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(features))
        self.eps = eps

    def forward(self, x, shift: float = 0.0):
        y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return y * self.weight + shift
"""

SPECIFICATION = Specification(
    "def masked_softmax(x, mask, scale: float = 1.0):\n    return (x * scale).softmax(-1) * mask\n",
    """
name = "masked_softmax"
[dimensions]
rows = 64
cols = 128
[inputs]
x = "f32[rows, cols]"
mask = "f32[rows, cols]"
scale = 0.5
[values]
mask = "uniform 0 1"
[outputs]
results = ["probabilities"]
""",
    ("the mask is applied after the softmax",),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tasks")
    (made / "ops.py").write_text(SOURCE)
    (made / "7_Conv_Norm_.py").write_text(CONVOLUTION)
    (made / "mixed.py").write_text(MIXED)
    (made / "large.py").write_text(LARGE)
    (made / "norms.py").write_text(MODULE)
    (made / "neighbour.py").write_text("EPS = 1e-3\n")
    return made


@pytest.fixture(scope="module")
def work(folder: Path) -> dict[str, Callable[[], Task | None]]:
    """The tasks of these tests by name, yet to be made."""
    usual = TaskOptions()
    x = {"x": "64x32"}
    return {
        "function": lambda: open_task(
            f"{folder}/ops.py:add_rmsnorm", {"x": "8x32:f16", "residual": "8x32:f16", "weight": "32:f16"}, {}, {}, usual
        ),
        "module": lambda: open_task(f"{folder}/norms.py:ScaledNorm(32, eps=1e-5)", x, {"shift": "2"}, {}, usual),
        "convolution": lambda: open_task(f"{folder}/7_Conv_Norm_.py", {}, {}, {}, usual),
        "words": lambda: task_from_specification(
            fit_specification(
                SPECIFICATION,
                {"x": "16x48:bf16", "mask": "16x48:bf16"},
                {"scale": "0.25"},
                {"x": "uniform:-1:1"},
            ),
            TaskOptions(goal=Goal.LATENCY),
        ),
        "hostile": lambda: task_from_source("import os\ndef f(x):\n    os._exit(3)\n", "f", {"x": "8"}, {}, usual),
    }


IN_A_CHILD = ("function", "hostile")  # the others take half a minute of starting torch, and are compared when slow


@pytest.fixture(scope="module")
def made(work: dict[str, Callable[[], Task | None]]) -> Callable[[str], Task]:
    """The tasks of these tests by name, each made once."""

    @functools.cache
    def make(name: str) -> Task:
        with pytest.MonkeyPatch.context() as patch:
            if name not in IN_A_CHILD:
                ask_here(patch)
            task = work[name]()
        assert task is not None
        assert from_json(Task, to_json(task)) == task
        return task

    return make


@pytest.mark.slow
@pytest.mark.parametrize("name", ["module", "convolution", "words"])
def test_a_child_finds_the_same(
    name: str, work: dict[str, Callable[[], Task | None]], made: Callable[[str], Task]
) -> None:
    assert work[name]() == made(name)


def test_function_of_a_file(made: Callable[[str], Task]) -> None:
    task = made("function")
    assert task_op_line(task) == "add_rmsnorm(x, residual!, weight, eps: float = 1e-06) -> y"
    assert task.origin is Origin.FUNCTION
    assert task.kind is Kind.NORMALISATION
    assert task.reference == needed_source(SOURCE, {"add_rmsnorm"})
    assert task.degenerate == ""


def test_module(made: Callable[[str], Task]) -> None:
    task = made("module")
    assert task_op_line(task) == "scaled_norm(x, shift: float, weight) -> y"
    assert task.origin is Origin.MODULE
    assert [one.parameter for one in task.tensors] == [False, True]
    assert task.tensors[1].values == NormalValues(1.0, 0.1), "a weight of ones is not drawn as ones"
    assert {one.name: one.varies for one in task.dimensions} == {"rows": True, "cols": True}
    assert any("imports neighbour from" in note for note in task.assumptions)
    with Reference(task.reference, task.function) as again:  # later, from the task alone
        again.check()
    assert any("evaluation mode" in note for note in task.assumptions)


def test_kernelbench_with_parameters(made: Callable[[str], Task]) -> None:
    task = made("convolution")
    assert task_op_line(task) == "conv_norm(x, scale, conv_weight, conv_bias, norm_weight, norm_bias) -> y"
    assert task.kind is Kind.CONVOLUTION
    assert task.origin is Origin.KERNELBENCH
    held = {one.name: one.values for one in task.tensors}
    assert held["x"] == UniformValues(0.0, 1.0)
    weight = held["conv_weight"]
    assert isinstance(weight, UniformValues)
    assert 0.12 < weight.high < 0.15, "the scale of 1/sqrt(54) is kept"
    assert weight.low == pytest.approx(-weight.high, rel=0.1)
    assert {"norm_running_mean", "norm_running_var"}.isdisjoint(held)
    assert task.outputs[0].shape == ("batch", "out_channels", "y_height", "y_width")
    assert {one.name: str(one.formula) for one in task.dimensions if one.formula is not None} == {
        "y_height": "height - kernel_height + 1",
        "y_width": "width - kernel_width + 1",
    }


def test_kernelbench_with_numbers_and_masks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules, "Reference", HereReference)
    task = task_from_kernelbench(folder / "mixed.py", TaskOptions())
    assert task_op_line(task) == "mixed(x, rows, factor: float, linear_weight, linear_bias) -> y"
    x, rows, *_ = task.tensors
    assert isinstance(x.values, UniformValues)
    assert (x.values.low, x.values.high) == pytest.approx((-2.0, 2.0), abs=0.1)
    assert rows.values == IndexValues(x.dimensions[0])
    assert rows.dtype is DType.I64
    assert not isinstance(rows.values, IntegerValues)
    assert "the buffer mask is part of the reference, not an input" in task.assumptions


def test_a_problem_whose_inputs_make_it_trivial_is_refused_without_allocating_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modules, "Reference", HereReference)
    with pytest.raises(
        TaskError, match=r"y equals x for the values it holds; .*other values for x.*; a degenerate task can be allowed"
    ):
        task_from_kernelbench(folder / "large.py", TaskOptions())


def test_a_module_whose_numbers_hide_all_it_computes_keeps_its_parameters(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GELU of a sum that is far below 0: neither the input nor the layer matters, and a kernel has to make them all."""
    monkeypatch.setattr(modules, "Reference", HereReference)
    problem = folder / "hidden.py"
    problem.write_text(HIDDEN)
    with pytest.raises(TaskError, match="no output depends on x, linear_weight, linear_bias"):
        task_from_kernelbench(problem, TaskOptions())
    task = task_from_kernelbench(problem, TaskOptions(allow_degenerate=True))
    assert task_op_line(task) == "hidden(x, offset, linear_weight, linear_bias) -> y"


def test_words(made: Callable[[str], Task]) -> None:
    task = made("words")
    assert task.origin is Origin.WORDS
    assert task_op_line(task) == "masked_softmax(x, mask, scale: float) -> probabilities"
    assert task.sizes == {"rows": 16, "cols": 48}
    assert {one.dtype for one in (*task.tensors, *task.outputs)} == {DType.BF16}
    assert task.goal is Goal.LATENCY
    assert task.assumptions[0] == "the mask is applied after the softmax"
    assert [one.values for one in task.tensors] == [UniformValues(-1.0, 1.0), UniformValues(0.0, 1.0)]
    assert [one.value for one in task.numbers] == [0.25]


GATED = """
name = "gated"
[dimensions]
rows = 64
cols = {size = 32, varies = true, multiple_of = 1}
[inputs]
x = "f32[rows, 2 * cols]"
w = "f32[cols / 4]"
"""


def gated(tmp_path: Path, description: str = GATED, **more: object) -> Task:
    (tmp_path / "task.toml").write_text(description)
    (tmp_path / "reference.py").write_text(
        "import torch\ndef gated(x, w):\n    y = torch.nn.functional.glu(x)\n    return y * w.repeat_interleave(4)\n"
    )
    return folders.task_from_folder(tmp_path, TaskOptions(), **more)  # type: ignore[arg-type]


def follows(task: Task) -> dict[str, tuple[str, int]]:
    return {one.name: (str(one.formula), one.size) for one in task.dimensions if one.formula is not None}


def test_a_folder_with_sizes_that_follow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "Reference", HereReference)
    task = gated(tmp_path)
    assert follows(task) == {"twice_cols": ("2 * cols", 64), "quarter_cols": ("cols / 4", 8)}
    assert {one.name: (one.varies, one.multiple_of) for one in task.free} == {"rows": (True, 1), "cols": (True, 4)}
    assert task.outputs[0].shape == ("rows", "cols")


def test_shapes_of_a_folder_with_sizes_that_follow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "Reference", HereReference)
    task = gated(tmp_path, shapes={"x": "16x96"})
    assert task.sizes == {"rows": 16, "cols": 48, "twice_cols": 96, "quarter_cols": 12}
    with pytest.raises(TaskError, match="shape of w, 9: quarter_cols is cols / 4, which is 12 and not 9 at the other"):
        gated(tmp_path, shapes={"x": "16x96", "w": "9"})
    with pytest.raises(TaskError, match=r"shape of x, 16x97: twice_cols is 2 \* cols, which is 64 and not 97"):
        gated(tmp_path, shapes={"x": "16x97"})


def test_a_folder_need_not_say_what_follows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "Reference", HereReference)
    plain = GATED.replace("cols = {size = 32, varies = true, multiple_of = 1}", "wide = 64\nshort = 8")
    task = gated(tmp_path, plain.replace("2 * cols", "wide").replace("cols / 4", "short"))
    assert follows(task) == {"short": ("wide / 8", 8), "half_wide": ("wide / 2", 32)}
    assert all(one.varies for one in task.dimensions)


@pytest.mark.parametrize(
    ("shapes", "numbers", "values", "message"),
    [
        ({"y": "16x64"}, {}, {}, "shape of y: the task has no such tensor; it has x, mask"),
        ({"x": "16x64", "mask": "16x63"}, {}, {}, "shape of mask, 16x63: cols would be 63 here and 64 in x"),
        ({"x": "64"}, {}, {}, "shape of x, 64: x has 2 dimensions here, rowsxcols"),
        ({}, {"eps": "1"}, {}, "number of eps: the task has no such number; it has scale"),
        ({}, {"scale": "big"}, {}, "number of scale, big: scale takes a number"),
        ({}, {}, {"scale": "normal"}, "values of scale: the task has no such tensor; it has x, mask"),
        ({}, {}, {"x": "weird"}, "values of x, weird: 'weird' describes no values"),
    ],
)
def test_what_a_person_gave_is_obeyed_or_refused(
    shapes: dict[str, str], numbers: dict[str, str], values: dict[str, str], message: str
) -> None:
    assert fit_specification(SPECIFICATION, {"x": "64x128"}, {"scale": "0.5"}, {}) is SPECIFICATION
    fitted = fit_specification(SPECIFICATION, {"x": "16x64"}, {"scale": "2"}, {"mask": "normal"}).description
    for line in (
        "rows = 16",
        "cols = 64",
        'x = "f32[rows, cols]"',
        "scale = 2.0",
        'mask = "normal"',
        '    "scale is 2, as requested",',
    ):
        assert line in fitted.splitlines(), line
    with pytest.raises(TaskError, match=message):
        fit_specification(SPECIFICATION, shapes, numbers, values)


def test_a_reference_that_dies_is_one_sentence(made: Callable[[str], Task]) -> None:
    with pytest.raises(TaskError, match="the reference's process ended with exit status 3 answering"):
        made("hostile")
