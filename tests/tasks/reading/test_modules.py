"""KernelBench problems: what their modules hold, what their inputs hold, and what a person may say otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.tasks.in_process import HereReference

from tilewright.records import DType, NormalValues, Part, Task, UniformValues
from tilewright.tasks import TaskError, TaskOptions, open_task
from tilewright.tasks.child.module_run import values_like
from tilewright.tasks.reading import modules

PROBLEM = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def forward(self, {names}):
        return {result}

def get_inputs():
    return [{inputs}]

def get_init_inputs():
    return []
"""


@pytest.fixture(autouse=True)
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules, "Reference", HereReference)


def problem(
    folder: Path, result: str, inputs: str, init: str = "pass", name: str = "1_Problem.py", fill: str = ""
) -> Task:
    names = ", ".join("xyz"[: inputs.count("torch.rand")])
    (folder / name).write_text(PROBLEM.format(init=init, names=names, result=result, inputs=inputs))
    values = dict([fill.split("=")]) if fill else {}
    task = open_task(str(folder / name), {}, {}, values, TaskOptions())
    assert task is not None
    return task


def values(task: Task) -> dict[str, object]:
    return {one.name: one.values for one in task.tensors}


NORM = "self.norm = nn.BatchNorm1d(12)"


def test_statistics_of_a_norm_in_training_do_not_fix_its_channels(tmp_path: Path) -> None:
    task = problem(tmp_path, "self.norm(x) * 2", "torch.randn(20, 12)", NORM)
    assert [one.name for one in task.tensors] == ["x", "norm_weight", "norm_bias"]
    assert {one.name: one.varies for one in task.dimensions} == {"rows": True, "cols": True}
    assert "norm.running_mean, norm.running_var of the module change no output and are no inputs" in task.assumptions


def test_a_module_of_f32_given_16_bits_says_how_to_cast_it(tmp_path: Path) -> None:
    path = tmp_path / "mlp.py"
    path.write_text("import torch\n\nclass Up(torch.nn.Linear):\n    pass\n")
    options, given = TaskOptions(), {"input": "8x16:bf16"}
    with pytest.raises(TaskError, match=r"parameters are f32: write FILE\.py:CLASS\(ARGUMENTS\)\.bfloat16\(\)"):
        open_task(f"{path}:Up(16, 24)", given, {}, {}, options)
    task = open_task(f"{path}:Up(16, 24).bfloat16()", given, {}, {}, options)
    assert task is not None
    assert {one.dtype for one in task.tensors} == {DType.BF16}


def test_statistics_that_the_file_names_stay(tmp_path: Path) -> None:
    task = problem(tmp_path, "self.norm(x) * (1 + self.norm.running_var)", "torch.randn(20, 12)", NORM)
    assert [one.name for one in task.tensors] == ["x", "norm_weight", "norm_bias", "norm_running_var"]


@pytest.mark.parametrize(
    ("file", "name"),
    [("11_4D_Sum_.py", "op_4d_sum"), ("3_Batched_Sum.py", "batched_sum"), ("12_.py", "model"), ("7.py", "op_7")],
)
def test_the_number_of_a_problem_is_left_out_of_its_name(tmp_path: Path, file: str, name: str) -> None:
    assert problem(tmp_path, "x.sum(-1)", "torch.rand(6, 8)", name=file).name == name


def test_a_mean_of_noise_is_zero() -> None:
    torch.manual_seed(3)
    assert values_like(torch.randn(128) + 0.1) == NormalValues(0.0, pytest.approx(1.0, rel=0.2))
    drawn = values_like(torch.rand(4000) - 0.5)
    assert isinstance(drawn, UniformValues)
    assert drawn.low == -drawn.high
    offset = values_like(torch.randn(4000) + 0.5)
    assert isinstance(offset, NormalValues)
    assert offset.mean == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize(
    ("made", "note"),
    [
        (
            "torch.rand(40, 40) * (torch.arange(40) % 2)",
            "x is drawn element by element; get_inputs leaves 50% of it zero",
        ),
        ("torch.tril(torch.rand(40, 40))", ""),
        ("(lambda a: a + a.T)(torch.rand(40, 40))", "x is drawn element by element; get_inputs makes it symmetric"),
        ("torch.rand(40, 40) * 2", ""),
    ],
)
def test_structure_that_is_lost_is_said(tmp_path: Path, made: str, note: str) -> None:
    task = problem(tmp_path, "x * 3", made)
    assert [one for one in task.assumptions if "element by element" in one] == ([note] if note else [])
    drawn = task.tensors[0].values
    assert isinstance(drawn, UniformValues) or "symmetric" in note
    assert not note.endswith("zero") or drawn == UniformValues(
        pytest.approx(0.0, abs=0.05), pytest.approx(1.0, abs=0.05)
    )


@pytest.mark.parametrize("part", [Part.UPPER, Part.LOWER])
def test_triangles_stay_triangles(tmp_path: Path, part: Part) -> None:
    task = problem(tmp_path, "x @ x", f"torch.{'triu' if part is Part.UPPER else 'tril'}(torch.rand(40, 40))")
    found = task.tensors[0].values
    assert isinstance(found, UniformValues)
    assert found.part is part


def test_a_person_says_what_a_problem_holds(tmp_path: Path) -> None:
    scale = "self.scale = nn.Parameter(torch.ones(8))"
    task = problem(tmp_path, "x * self.scale", "torch.rand(6, 8)", scale, fill="scale=normal:0:2")
    assert values(task) == {"x": UniformValues(), "scale": NormalValues(0.0, 2.0)}
    with pytest.raises(TaskError, match="values of w: the problem has no such tensor; it has x, scale"):
        problem(tmp_path, "x * self.scale", "torch.rand(6, 8)", scale, fill="w=normal")


def test_values_that_make_a_problem_trivial_are_replaced(tmp_path: Path) -> None:
    task = problem(tmp_path, "torch.relu(x)", "torch.rand(6, 8)")
    assert values(task) == {"x": NormalValues()}
    assert task.degenerate == ""
    assert any(
        note.startswith("x is drawn from a normal distribution: the result equals it") for note in task.assumptions
    )
    with pytest.raises(TaskError, match="y equals x for the values it holds"):
        problem(tmp_path, "torch.relu(x)", "torch.rand(6, 8)", fill="x=uniform:0:1")


@pytest.mark.parametrize(
    ("made", "low", "part", "note"),
    [
        ("torch.rand(40, 40).triu_()", 0.0, Part.UPPER, False),
        ("torch.rand(40, 40).add_(1.5)", 1.5, Part.WHOLE, False),
        ("(lambda a: (a[:, 3:].zero_(), a)[1])(torch.rand(40, 40))", 0.0, Part.WHOLE, True),
        ("torch.diag(torch.rand(80))", 0.0, Part.WHOLE, True),
    ],
)
def test_what_is_written_to_a_drawn_tensor_is_seen(
    tmp_path: Path, made: str, low: float, part: Part, note: bool
) -> None:
    task = problem(tmp_path, "x * 3", made)
    found = task.tensors[0].values
    assert isinstance(found, UniformValues)
    assert found.low == pytest.approx(low, abs=0.05)
    assert found.part is part
    assert any("element by element" in one for one in task.assumptions) is note


def test_no_values_beyond_those_that_were_seen() -> None:
    for seed in range(20):
        found = values_like(torch.rand(200, generator=torch.Generator().manual_seed(seed)) * 2)
        assert isinstance(found, UniformValues)
        assert found.low >= 0.0
        assert found.high <= 2.0
