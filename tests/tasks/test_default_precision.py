"""The precision of tasks for which nobody said one: by their convolutions, and by nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.tasks.in_process import HereReference, unprobed

from tilewright.records import Precision, Task
from tilewright.tasks.default_precision import precision_from_channels
from tilewright.tasks.drafts import TaskOptions, with_precision

HEADER = "import torch\nimport torch.nn.functional as F\n\n"
FEW, MANY = "2x3x9x9:f32", "2x16x9x9:f32"


def settled_task(body: str, shapes: dict[str, str], **options: object) -> Task:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    task, reference = unprobed(f"{HEADER}def op({', '.join(shapes)}):\n{lines}", "op", shapes)
    chosen = TaskOptions(**options)  # type: ignore[arg-type]
    task = replace(task, precision=chosen.precision or Precision.DTYPE)
    return with_precision(task, chosen, reference)  # type: ignore[arg-type]


F32 = {
    "few channels": ("return F.conv2d(x, w)", {"x": FEW, "w": "4x3x3x3:f32"}),
    "few in a group": ("return F.conv2d(x, w, groups=4)", {"x": MANY, "w": "8x4x3x3:f32"}),
    "transposed": ("return F.conv_transpose2d(x, w, groups=2)", {"x": MANY, "w": "16x3x3x3:f32"}),
    "in a loop": ("for _ in range(3):\n    x = F.conv2d(x, w, padding=1)\nreturn x", {"x": FEW, "w": "3x3x3x3:f32"}),
    "a module": ("c = torch.nn.Conv2d(3, 4, 3)\nc.weight.data = w\nreturn c(x)", {"x": FEW, "w": "4x3x3x3:f32"}),
    "one image": ("return F.conv2d(x, w)", {"x": "3x9x9:f32", "w": "4x3x3x3:f32"}),
}
PLAIN = {
    "many channels": ("return F.conv2d(x, w)", {"x": MANY, "w": "4x16x3x3:f32"}),
    "one of each kind": (
        "return F.conv2d(F.conv2d(x, w), v)",
        {"x": FEW, "w": "16x3x3x3:f32", "v": "4x16x3x3:f32"},
    ),
    "transposed in one group": ("return F.conv_transpose2d(x, w)", {"x": FEW, "w": "3x4x3x3:f32"}),
    "bf16": ("return F.conv2d(x, w)", {"x": "2x3x9x9:bf16", "w": "4x3x3x3:bf16"}),
    "bf16 beside f32": (
        "return F.conv2d(x, w).float().sum((2, 3)) @ m",
        {"x": "2x3x9x9:bf16", "w": "4x3x3x3:bf16", "m": "4x5:f32"},
    ),
    "f64": ("return F.conv2d(x, w)", {"x": "2x3x9x9:f64", "w": "4x3x3x3:f64"}),
    "a name alone": ("convolved = x * w\nreturn convolved", {"x": FEW, "w": FEW}),
}


@pytest.mark.parametrize("name", F32)
def test_few_channels_are_taken_for_f32_and_that_is_said(name: str) -> None:
    task = settled_task(*F32[name])
    assert task.precision is Precision.DEFAULT_F32
    (assumed,) = [one for one in task.assumptions if "in f32" in one]
    assert "not checked on a GPU" in assumed


@pytest.mark.parametrize("name", PLAIN)
def test_all_else_is_as_before(name: str) -> None:
    task = settled_task(*PLAIN[name])
    assert task.precision is Precision.DTYPE
    assert not any("in f32" in one for one in task.assumptions)


@pytest.mark.slow  # refusing a look at what has no values takes torch a second
def test_what_cannot_be_seen_is_to_be_f32_and_that_is_said() -> None:
    task = settled_task("return F.conv2d(x, w) if x.sum() != 7 else x", {"x": MANY, "w": "4x16x3x3:f32"})
    assert task.precision is Precision.DEFAULT_F32
    assert any("could not be traced" in one for one in task.assumptions)


def test_what_a_person_says_wins_and_nobody_is_asked() -> None:
    def ask(task: Task, reference: object) -> Task:
        raise AssertionError("asked")

    body, shapes = F32["few channels"]
    for said in Precision:
        assert settled_task(body, shapes, precision=said, resolve_precision=ask).precision is said
    assert settled_task("return x + 1", {"x": FEW}, resolve_precision=ask).precision is Precision.DTYPE
    with pytest.raises(AssertionError, match="asked"):
        settled_task(body, shapes, resolve_precision=ask)


def test_a_reference_that_fails_when_it_is_asked_is_to_be_f32() -> None:
    task = settled_task(*F32["few channels"], precision=Precision.DTYPE)
    broken = HereReference("def op(x, w):\n    raise RuntimeError('conv')\n", "op")
    assert precision_from_channels(task, broken).precision is Precision.DEFAULT_F32
