"""Pointwise kernels with tensors that are broadcast: blocks that are rectangles, several vectors for each thread."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.playbook.agreement import check, load_structure, sizes_at
from tests.playbook.functions import BY_NAME, Function, draw, program_of, task_of

from tilewright.kernel_file import evaluate, parse
from tilewright.playbook.catalogue import row_schedules
from tilewright.playbook.families import Structure
from tilewright.playbook.structures import pointwise
from tilewright.records import PROFILES, Launch, NumberInput, Task, TensorSpec
from tilewright.tasks import task_op_line

CHOICES = [(128, 2), (128, 1), (512, 2)]
# Lanes without a second vector, several blocks along a row, rows that share a block, no whole vectors, nothing at all.
SIZES = ((3, 8 * 130), (2, 8 * 300), (37, 24), (5, 127), (2, 1), (0, 64))


def _structure(name: str) -> tuple[Structure, Function, Task]:
    function = BY_NAME[name]
    task = task_of(function)
    found = next(one for one in row_schedules(program_of(function, task)).every if one.id == "rectangles")
    return found, function, task


def _loaded(name: str, threads: int, vectors: int, folder: Path) -> tuple[Any, Function, Task]:
    step, function, task = _structure(name)
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


@pytest.mark.parametrize(
    ("rows", "cols", "gpu", "grid", "once"),
    [
        (4096, 8192, "H200", (4, 4096, 1), 1),  # 64 MB of bf16, more than the cache
        (4096, 7680, "H200", (4, 4096, 1), 0),  # as much as the cache
        (4096, 8192, "A100", (4, 4096, 1), 0),
        (1000000, 1024, "H200", (1, 62500, 8), 1),  # two rows a block
        (2000003, 64, "H200", (1, 62501, 1), 1),  # 32 rows a block
    ],
)
def test_blocks_cover_the_rows_at_full_size(
    rows: int, cols: int, gpu: str, grid: tuple[int, int, int], once: int
) -> None:
    step, _, task = _structure("bias_gelu")
    file = parse(step.write(task_op_line(task)), "bias_gelu.cu")
    given = {"x": TensorSpec.parse(f"{rows}x{cols}:bf16"), "bias": TensorSpec.parse(f"{cols}:bf16")}
    found = evaluate(file, given, PROFILES[gpu], {"THREADS": 256, "VECTORS": 1})
    launch = found.steps[0]
    assert isinstance(launch, Launch)
    assert launch.grid == grid
    assert dict(found.constants)["ONCE"] == once


@pytest.mark.parametrize("gpu", ["A100", "RTX 4090", "H200"])
@pytest.mark.parametrize("name", ["bias_gelu", "row_scaled"])
def test_rectangles_leave_the_checkers_nothing_to_find(name: str, gpu: str, tmp_path: Path) -> None:
    op, _, task = _loaded(name, 128, 2, tmp_path)
    for rows, cols in SIZES[:5]:
        tensors = draw(task, sizes_at(task, rows, cols), 1)
        given = [one.value if isinstance(one, NumberInput) else tensors[one.name] for one in task.inputs]
        assert op.emulate(*given, gpu=gpu).findings == (), (rows, cols)
