"""Whether a kernel file's results are right, on the emulator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tests.playbook.functions import Function, draw, truth

import tilewright
from tilewright.playbook.families import Structure
from tilewright.records import NumberInput, Task
from tilewright.tasks import task_op_line

_RELATIVE = {torch.float32: 2e-6, torch.float16: 1.2e-3, torch.bfloat16: 9e-3}


def sizes_at(task: Task, rows: int, cols: int) -> dict[str, int]:
    return {one.name: {"rows": rows, "cols": cols}.get(one.name, one.size) for one in task.dimensions}


def load_structure(step: Structure, task: Task, folder: Path) -> Any:
    text = step.write(task_op_line(task))
    path = folder / f"{task.name}.cu"
    path.write_text(text)
    return tilewright.load(str(path))


def check(op: Any, function: Function, task: Task, sizes: dict[str, int], seed: int = 1, slack: float = 1.0) -> None:
    """Call the op on the emulator and compare every result with f64."""
    tensors = draw(task, sizes, seed)
    expected = truth(function, task, tensors)
    arguments = [one.value if isinstance(one, NumberInput) else tensors[one.name] for one in task.inputs]
    returned = op(*arguments)
    results = returned if isinstance(returned, tuple) else (returned,) if returned is not None else ()
    results = (*results, *(tensors[one.name] for one in task.tensors if one.in_place))
    assert len(results) == len(expected)
    for got, want in zip(results, expected, strict=True):
        assert got.shape == want.shape
        if not got.is_floating_point():
            assert torch.equal(got, want.to(got.dtype)), f"{task.name} at {sizes}"
            continue
        allowed = slack * _RELATIVE[got.dtype] * (want.abs() + want.abs().mean().clamp_min(1e-3))
        nans = got.isnan() & want.isnan()
        wrong = ((got.double() - want).abs() > allowed) | (got.isnan() != want.isnan())
        assert not (wrong & ~nans).any(), f"{task.name} at {sizes}: {got[wrong][:4]} for {want[wrong][:4]}"
