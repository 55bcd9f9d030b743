"""Kernels that read large tensors once: with lines that are said to stay, small ones stand for large ones here."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.playbook.agreement import check, load_structure, sizes_at
from tests.playbook.functions import BY_NAME, SIZES, Function, draw, program_of, task_of
from tests.playbook.placed import Placed, check_structure, structure
from tests.playbook.test_pooling import BY_NAME as POOLS
from tests.playbook.test_pooling import COPIED
from tests.playbook.test_scans import BY_NAME as SCANS

import tilewright
from tilewright.playbook import file_text
from tilewright.playbook.catalogue import row_schedules
from tilewright.records import NumberInput
from tilewright.tasks import task_op_line

_X = "f32[rows, cols]"
ROWS = [
    ("bias_gelu", "rectangles", ((3, 512), (2, 127))),
    ("channel_rmsnorm", "column-tiles", ((3, 512), (2, 127))),
    ("softmax", "cluster-ahead", ((3, 33000), (2, 37))),
    ("softmax", "grid-ahead", ((7, 4100), (3, 37))),
    ("layernorm", "passes", ((5, 9000), (3, 37))),
    ("softmax", "block", ((3, 1000), (2, 127))),
    ("layernorm", "cluster-stages", ((5, 70000), (40, 4100))),
    ("layernorm", "grid-stages", ((5, 70000), (40, 4100))),
]
PLACED = [
    (SCANS["backwards"], "scan-rows"),
    (SCANS["exclusive"], "scan-rows"),
    (POOLS["line_max"], "pool-strips"),
    (COPIED[0], "pool-bulk"),
    (COPIED[1], "pool-bulk"),
]


@pytest.fixture(autouse=True)
def _every_tensor_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_text, "_MOST_CACHED", "0")
    monkeypatch.setenv("TILEWRIGHT_EMULATE", "H200")


@pytest.mark.parametrize(("name", "id", "sizes"), ROWS)
def test_rows_read_once_are_right_and_clean(
    name: str, id: str, sizes: tuple[tuple[int, int], ...], tmp_path: Path
) -> None:
    function = BY_NAME[name]
    task = task_of(function)
    step = next(one for one in row_schedules(program_of(function, task)).every if one.id == id)
    op = load_structure(step, task, tmp_path)
    for rows, cols in sizes:
        check(op, function, task, sizes_at(task, rows, cols))
        tensors = draw(task, sizes_at(task, rows, cols), 1)
        given = [one.value if isinstance(one, NumberInput) else tensors[one.name] for one in task.inputs]
        call = op.emulate(*given, gpu="H200", schedules=2)
        assert call.findings == (), (rows, cols)


@pytest.mark.parametrize(
    ("names", "id"),
    [
        (("read_once", "to_stay"), "passes"),
        (("rows_taken", "first_rows"), "cluster-ahead"),
        (("rows_ahead", "Ahead"), "cluster-ahead"),
        (("block", "Vector"), "passes"),
    ],
)
def test_tensors_may_have_the_names_of_what_kernels_use(names: tuple[str, str], id: str, tmp_path: Path) -> None:
    one, other = names
    function = Function("named", f"return torch.softmax({one} + {other}, -1)", f"{one}: {_X}; {other}: {_X}")
    task = task_of(function, {**SIZES, "cols": 200000})
    step = next(step for step in row_schedules(program_of(function, task)).every if step.id == id)
    check(load_structure(step, task, tmp_path), function, task, sizes_at(task, 3, 512))


@pytest.mark.parametrize(("case", "id"), PLACED, ids=lambda one: getattr(one, "name", one))
def test_what_is_placed_and_read_once_is_right_and_clean(case: Placed, id: str, tmp_path: Path) -> None:
    check_structure(case, structure(case, id), tmp_path, 2)


def test_a_part_that_is_kept_is_read_once(tmp_path: Path) -> None:
    function = BY_NAME["batch_norm_train"]
    task = task_of(function, {**SIZES, "batch": 12, "channels": 3, "height": 64, "width": 60})
    step = next(one for one in row_schedules(program_of(function, task)).every if one.id == "kept")
    text = step.write(task_op_line(task)).replace("device.sms", "3").replace("device.smem_block", "20000")
    path = tmp_path / "kept.cu"
    path.write_text(text.replace("288 / max", "32 / max"))
    op = tilewright.load(str(path))
    tensors = draw(task, dict(task.sizes), 1)
    expected = function.callable(*(one.double() for one in tensors.values()))
    assert torch.allclose(op(*tensors.values()).double(), expected, rtol=2e-6, atol=2e-6)
    assert op.emulate(*tensors.values(), gpu="H200", schedules=2).findings == ()


@pytest.mark.parametrize(("gpu", "hinted"), [("H200", True), ("A100", False)])
def test_lines_are_said_to_stay_on_hopper_and_of_large_tensors_alone(
    gpu: str, hinted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = BY_NAME["gate"]
    task = task_of(function)
    step = next(one for one in row_schedules(program_of(function, task)).every if one.id == "vectors")
    for most, wanted in (("0", hinted), ("device.l2", False)):
        monkeypatch.setattr(file_text, "_MOST_CACHED", most)
        path = tmp_path / f"gate_{most.partition('.')[0]}.cu"
        path.write_text(step.write(task_op_line(task)))
        tensors = draw(task, sizes_at(task, 3, 512), 1)
        call = tilewright.load(str(path)).emulate(*tensors.values(), gpu=gpu)
        assert call.findings == ()
        assert any("cache_hint" in str(one) for one in call.counts) == wanted
