"""What a prompt says of sizes that follow from others, and that plans reckon them as the task does."""

from __future__ import annotations

import pytest

from tilewright.kernel_file import compare_out, evaluate, parse
from tilewright.prompts.task_text import op_line, out_lines, task_text
from tilewright.records import PROFILES, Dimension, DType, SizeFormula, Task, TaskOutput, TensorInput, following


def task(inputs: dict[str, tuple[str, ...]], output: tuple[str | int, ...], **sizes: int | str) -> Task:
    """Sizes are numbers, or formulas."""
    dimensions = tuple(
        Dimension(name, size) if isinstance(size, int) else Dimension(name, 0, formula=SizeFormula.parse(size))
        for name, size in sizes.items()
    )
    return Task(
        "f",
        "def f(): ...",
        "f",
        tuple(TensorInput(name, DType.F32, axes) for name, axes in inputs.items()),
        (TaskOutput("out", DType.F32, output),),
        following(dimensions),
    )


CONVOLUTION = task(
    {"x": ("batch", "width"), "w": ("taps",)},
    ("batch", "left"),
    batch=4,
    width=64,
    taps=3,
    left="(width - taps + 4) / 2",
)
GATED = task({"x": ("rows", "both")}, ("rows", "cols"), rows=8, cols=12, both="2 * cols")
ROTARY = task({"x": ("rows", "cols"), "cos": ("rows", "half")}, ("half", "rows"), rows=8, cols=12, half="cols / 2")


@pytest.mark.parametrize(
    ("one", "line"),
    [
        (CONVOLUTION, "//! out     out: f32[x.shape[0], (x.shape[1] - w.shape[0] + 4) / 2]"),
        (GATED, "//! out     out: f32[x.shape[0], (x.shape[1] / 2)]"),
        (ROTARY, "//! out     out: f32[cos.shape[1], x.shape[0]]"),
    ],
)
def test_out_lines_reckon_as_the_task_does(one: Task, line: str) -> None:
    assert out_lines(one) == (line,)
    names = ", ".join(tensor.name for tensor in one.tensors)
    file = parse(f"{op_line(one)}\n{line}\n//! launch k<<<1, 32>>>({names}, out)\n__global__ void k() {{}}\n")
    for number in (0, 6, 14):
        sizes = one.complete({dimension.name: dimension.size + number for dimension in one.free})
        evaluation = evaluate(file, one.arguments(sizes), PROFILES["H200"])
        assert not compare_out(evaluation, one.output_specs(sizes))


def test_the_formulas_are_told() -> None:
    text = task_text(CONVOLUTION)
    assert "batch = 4, width = 64, taps = 3, left = 32." in text
    assert "Always `left = (width - taps + 4) / 2`, where `/` rounds down" in text
    assert "every size of `batch`, `width`, `taps`;" in text
    plain = task({"x": ("rows",)}, ("rows",), rows=8)
    assert "Always" not in task_text(plain)
