"""Pointwise kernels with tensors that are broadcast: blocks that are rectangles, several vectors for each thread."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.playbook.agreement import check, load_structure, sizes_at
from tests.playbook.functions import BY_NAME, Function, draw, program_of, task_of

from tilewright.playbook.catalogue import every_structure
from tilewright.playbook.structures import pointwise
from tilewright.records import NumberInput, Task
from tilewright.tasks import task_op_line

CHOICES = [(128, 2), (128, 1), (512, 2)]
# Lanes without a second vector, several blocks along a row, rows that share a block, no whole vectors, nothing at all.
SIZES = ((3, 8 * 130), (2, 8 * 300), (37, 24), (5, 127), (2, 1), (0, 64))


def _loaded(name: str, threads: int, vectors: int, folder: Path) -> tuple[Any, Function, Task]:
    function = BY_NAME[name]
    task = task_of(function)
    step = next(one for one in every_structure(program_of(function, task)) if one.id == "rectangles")
    text = step.write(task_op_line(task))
    for line, chosen in (("THREADS = 128 | 256 | 512", threads), ("VECTORS = 2 | 1", vectors)):
        assert line in text
        text = text.replace(line, f"{line.partition(' ')[0]} = {chosen}")
    return load_structure(replace(step, write=lambda _: text), task, folder), function, task


@pytest.mark.parametrize(("threads", "vectors"), CHOICES)
@pytest.mark.parametrize("name", ["bias_gelu", "row_scaled", "mixed", "outer"])
def test_rectangles_are_right_whatever_is_chosen(name: str, threads: int, vectors: int, tmp_path: Path) -> None:
    op, function, task = _loaded(name, threads, vectors, tmp_path)
    for rows, cols in SIZES:
        check(op, function, task, sizes_at(task, rows, cols))


def test_a_grid_with_a_third_dimension_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where more blocks lie below each other than the second may count; the last slab is not full."""
    monkeypatch.setattr(pointwise, "_TALLEST", 3)
    op, function, task = _loaded("bias_gelu", 128, 2, tmp_path)
    assert "slabs = max(ceil_div(bands, 3), 1)" in (tmp_path / "bias_gelu.cu").read_text()
    for rows, cols in ((11, 2048), (4, 2056), (301, 24)):
        check(op, function, task, sizes_at(task, rows, cols))


@pytest.mark.parametrize("gpu", ["A100", "RTX 4090", "H200"])
@pytest.mark.parametrize("name", ["bias_gelu", "row_scaled"])
def test_rectangles_leave_the_checkers_nothing_to_find(name: str, gpu: str, tmp_path: Path) -> None:
    op, _, task = _loaded(name, 128, 2, tmp_path)
    for rows, cols in SIZES[:5]:
        tensors = draw(task, sizes_at(task, rows, cols), 1)
        given = [one.value if isinstance(one, NumberInput) else tensors[one.name] for one in task.inputs]
        assert op.emulate(*given, gpu=gpu).findings == (), (rows, cols)
