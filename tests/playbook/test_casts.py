"""Casts to 16 bits on the way are roundings that a function is about: they are repeated, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.playbook.agreement import load_structure
from tests.playbook.functions import Function, draw, program_of, task_of

from tilewright.playbook.catalogue import row_schedules

FUNCTIONS = (
    Function("two_parts", "high = x.bfloat16()\nreturn high, (x - high.float()).bfloat16()"),
    Function("lost", "return x - x.half().float()"),
    Function("saturated", "half = x.half()\nreturn torch.where(half.isinf(), 65504.0, half.float())"),
    Function("agree", "return x.bfloat16() == y.bfloat16()", "x: f32[rows, cols]; y: f32[rows, cols]"),
    Function("between_halves", "return (x.bfloat16().float() + 0.5).half()", "x: f16[rows, cols]"),
    Function("of_whole_numbers", "return i.to(torch.bfloat16) * x", "i: i64[rows, cols]; x: f32[rows, cols]"),
    Function("of_short_numbers", "return i.to(torch.bfloat16) * x", "i: i16[rows, cols]; x: f32[rows, cols]"),
    Function("halves_of_short_numbers", "return i.half() * x", "i: i16[rows, cols]; x: f32[rows, cols]"),
    Function("greatest_part", "return (x - x.bfloat16().float()).amax(-1)"),
)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda one: one.name)
def test_casts_on_the_way_are_repeated(function: Function, tmp_path: Path) -> None:
    task = task_of(function)
    tensors = draw(task, {"rows": 5, "cols": 48}, 3)
    if "y" in tensors:
        tensors["y"] = tensors["x"] * (1 + 2e-3 * torch.rand(5, 48))
    if "i" in tensors:
        step = 1001 if tensors["i"].dtype == torch.int64 else 131
        tensors["i"] = (torch.arange(240).view(5, 48) * step).to(tensors["i"].dtype)
    elif task.name == "saturated":
        tensors["x"] *= 4e4
        tensors["x"][0, :3] = torch.tensor([torch.inf, torch.nan, 65519.996])
    given = list(tensors.values())
    expected = function.callable(*(one.clone() for one in given))
    for structure in row_schedules(program_of(function, task)).every:
        found = load_structure(structure, task, tmp_path)(*given)
        for one, wanted in zip(_several(found), _several(expected), strict=True):
            assert torch.equal(one.nan_to_num(1e9), wanted.nan_to_num(1e9)), structure.id


def test_the_last_cast_is_what_storing_does(tmp_path: Path) -> None:
    function = Function("last", "return (x.float() * 2).bfloat16()", "x: f16[rows, cols]")
    task = task_of(function)
    for structure in row_schedules(program_of(function, task)).every:
        assert "bf16_of" not in structure.write("last(x) -> y")


def _several(found: object) -> tuple[torch.Tensor, ...]:
    return found if isinstance(found, tuple) else (found,)
