"""Which structures are tried for which sizes, and what their files are like."""

from __future__ import annotations

import pytest
from tests.playbook.functions import BY_NAME, SIZES, Function, program_of, task_of

from tilewright.kernel_file import evaluate, parse
from tilewright.playbook.analysis import analyse
from tilewright.playbook.row_program import RowProgram
from tilewright.playbook.steps import draft, every_step, structures
from tilewright.playbook.tracing import trace
from tilewright.records import PROFILES, Task
from tilewright.tasks import task_op_line


def _program(name: str, **sizes: int) -> tuple[RowProgram, Task]:
    task = task_of(BY_NAME[name], {**SIZES, **sizes})
    return program_of(BY_NAME[name], task), task


@pytest.mark.parametrize(
    ("name", "sizes", "first"),
    [
        ("layernorm_gelu", {"cols": 1024}, "lanes of a warp"),
        ("softmax", {"rows": 100000, "cols": 64}, "lanes of a warp"),
        ("softmax", {"cols": 8192}, "warps of a block"),
        ("softmax", {"cols": 24576}, "shared memory"),
        ("softmax", {"cols": 40000}, "shared memory"),
        ("softmax", {"cols": 262144}, "cluster"),
        ("softmax", {"cols": 4000000}, "streams"),
        ("row_sum", {"rows": 16384, "cols": 4096}, "warps of a block"),
        ("mean_loss", {"rows": 4096, "cols": 4096}, "many blocks share a row"),
        ("silu", {}, "16-byte vectors, one per thread"),
        ("bias_gelu", {}, "rectangles"),
    ],
)
def test_the_first_structure_suits_the_size(name: str, sizes: dict[str, int], first: str) -> None:
    program, _ = _program(name, **sizes)
    assert first in structures(program)[0].summary


@pytest.mark.parametrize("name", ["layernorm_gelu", "add_rmsnorm", "mean_loss"])
@pytest.mark.parametrize("cols", [64, 1000, 16384, 65536])
def test_every_structure_offered_takes_the_task(name: str, cols: int) -> None:
    _check_offered(name, cols)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["layernorm_gelu", "softmax", "add_rmsnorm", "row_sum", "mean_loss", "where_greatest"])
@pytest.mark.parametrize("cols", [1, 64, 1000, 1024, 4096, 16384, 40000, 65536, 262144])
def test_every_structure_offered_takes_the_task_at_many_sizes(name: str, cols: int) -> None:
    _check_offered(name, cols)


def _check_offered(name: str, cols: int) -> None:
    program, task = _program(name, rows=512, cols=cols)
    for step in (draft(program), *structures(program)):
        for variant in (step, step.safer, step.polished):
            if variant is not None:
                file = parse(variant.write(program, task_op_line(task)), "kernel.cu")
                assert evaluate(file, task.arguments(), PROFILES["H200"]).steps


@pytest.mark.parametrize("name", ["layernorm_gelu", "softmax", "where_greatest", "mean_loss", "bias_gelu"])
def test_every_structure_takes_every_size(name: str) -> None:
    """Clusters too, which are never emulated."""
    program, task = _program(name, rows=512, cols=1024)
    for step in every_step(program):
        file = parse(step.write(program, task_op_line(task)), "kernel.cu")
        for cols in (1, 2, 513, 1001, 1024, 2048, 4095, 4096, 40001, 262144, 2000001):
            sizes = {one.name: cols if one.name == "cols" else one.size for one in task.dimensions}
            assert evaluate(file, task.arguments(sizes), PROFILES["H200"]).steps, step.summary


def test_summaries_tell_the_steps_apart() -> None:
    for name in ("layernorm_gelu", "mean_loss", "silu"):
        program, _ = _program(name)
        steps = [one for step in every_step(program) for one in (step, step.safer, step.polished) if one is not None]
        assert len({one.summary for one in steps}) == len(steps)


def test_files_are_the_same_every_time() -> None:
    first, task = _program("layernorm_gelu")
    second = analyse(task, lambda request: trace(BY_NAME["layernorm_gelu"].callable, request))
    assert first is not second
    for one, other in zip(every_step(first), every_step(second), strict=True):
        assert one.write(first, task_op_line(task)) == other.write(second, task_op_line(task))


def test_lines_are_short() -> None:
    for name in ("layernorm_gelu", "add_rmsnorm", "batch_norm", "mean_loss", "masked_softmax"):
        program, task = _program(name)
        for step in every_step(program):
            text = step.write(program, task_op_line(task))
            assert max(map(len, text.splitlines())) <= 120, step.summary
            parse(text, "kernel.cu")


def test_names_of_the_op_never_collide() -> None:
    """Tensors named like the plan's and the kernel's own words."""
    function = Function(
        "f", "return torch.softmax(rows + cols, -1) * row", "rows: f32[n, m]; cols: f32[m]; row: f32[n, m]"
    )
    task = task_of(function, {"n": 64, "m": 512})
    program = program_of(function, task)
    for step in every_step(program):
        file = parse(step.write(program, task_op_line(task)), "kernel.cu")
        assert evaluate(file, task.arguments(), PROFILES["H200"]).steps
