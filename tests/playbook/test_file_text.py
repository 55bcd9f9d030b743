"""Fragments of several programs in one file: what one leaves in a scratch tensor, the next one reads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.playbook.functions import BY_NAME, program_of

import tilewright
from tilewright.playbook.catalogue import every_schedule, simple_schedule
from tilewright.playbook.file_text import joined_file, with_least_sizes
from tilewright.playbook.row_program import Load, RowProgram
from tilewright.records import Dimension, DType, Task, TaskOutput, TensorInput

HEAD = [
    ("//! op      f(x) -> y", ""),
    ("//! out     y: f32[x.shape]", ""),
    ("//! need    x.dtype == f32 and x.ndim == 2", ""),
    ("//! scratch hidden: f32[x.shape]", "between the launches"),
]


def _halves() -> tuple[RowProgram, RowProgram]:
    """A pointwise program that writes `hidden`, and a softmax that reads it."""
    first, second = program_of(BY_NAME["many_activations"]), program_of(BY_NAME["softmax"])
    first = replace(first, outputs=(replace(first.outputs[0], name="hidden"),), out_lines=(), shape_needs=())
    names = {"x": "hidden"}
    inputs = tuple(replace(one, name=names[one.name]) for one in second.inputs)
    values = tuple(replace(one, input=names[one.input]) if isinstance(one, Load) else one for one in second.values)
    return first, replace(second, inputs=inputs, values=values, outputs=(replace(second.outputs[0], name="y"),))


@pytest.mark.parametrize("schedule", ["lanes", "shared"])
def test_fragments_of_two_programs_are_one_file(schedule: str, tmp_path: Path) -> None:
    first, second = _halves()
    chosen = {one.id: one for one in every_schedule(second)}[schedule]
    parts = {"activated": simple_schedule(first).fragment("f(x) -> y"), "normal": chosen.fragment("f(x) -> y")}
    path = tmp_path / "f.cu"
    path.write_text(joined_file("Two programs.", HEAD, parts))
    x = torch.randn(5, 37, generator=torch.Generator().manual_seed(1))
    wanted = torch.softmax(BY_NAME["many_activations"].callable(x.double()), -1)
    got = tilewright.load(str(path))(x)
    assert torch.allclose(got.double(), wanted, rtol=1e-5, atol=1e-7)


def test_loops_have_the_pragmas_that_they_are_said_with() -> None:
    code = ["unrolled for (;;)", "  rolled for (;;) {", "    int rolled;  // unrolled for the reader", "  }"]
    text = replace(simple_schedule(_halves()[0]).fragment("f(x) -> y"), pieces=(code,)).file()
    assert text.endswith(
        "#pragma unroll\nfor (;;)\n#pragma unroll 1\n  for (;;) {\n    int rolled;  // unrolled for the reader\n  }\n"
    )


def test_sizes_at_which_the_reference_raises_are_declined() -> None:
    task = Task(
        "pad",
        "def pad(x):\n    return x\n",
        "pad",
        (TensorInput("x", DType.F32, ("rows", "cols")),),
        (TaskOutput("y", DType.F32, ("rows", "cols")),),
        (Dimension("rows", 5, at_least=3), Dimension("cols", 17, at_least=3)),
    )
    plan = ("op      pad(x) -> y", "need    x.dtype == f32 and", "        x.ndim == 2", "const   A = 1")
    text = "".join(f"//! {line}\n" for line in plan) + "\ncode\n"
    made = with_least_sizes(text, task)
    assert made == text.replace("//! const", "//! need    x.shape[0] >= 3\n//! need    x.shape[1] >= 3\n//! const")
    either = replace(task, dimensions=(Dimension("rows", 5), Dimension("cols", 17, at_least=2, unless=("rows",))))
    assert "//! need    x.shape[1] >= 2 or x.shape[0] > 1\n//! const" in with_least_sizes(text, either)
    pairs = replace(
        task, dimensions=(Dimension("rows", 6, multiple_of=2), Dimension("cols", 17, at_least=2, unless=("rows",)))
    )
    assert "//! need    x.shape[1] >= 2 or x.shape[0] > 2\n//! const" in with_least_sizes(text, pairs)
    assert not pairs.is_sound({"rows": 2, "cols": 1})
    assert pairs.is_sound({"rows": 4, "cols": 1})
    assert pairs.least_words(pairs.dimensions[1]) == "at least 2 where rows is 2"
    free = replace(task, dimensions=(Dimension("rows", 5), Dimension("cols", 17)))
    assert with_least_sizes(text, free) == text
