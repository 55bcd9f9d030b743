"""Which structures are tried for which sizes, and what their files are like."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.playbook.functions import BY_NAME, SIZES, Function, program_of, task_of

from tilewright.kernel_file import evaluate, parse
from tilewright.playbook.catalogue import best_schedule, row_schedules
from tilewright.playbook.families import Structure
from tilewright.playbook.row_program import RowProgram
from tilewright.playbook.rows import row_program
from tilewright.playbook.structures.registers import Team, fits
from tilewright.playbook.tracing import trace
from tilewright.playbook.understanding import traced_task
from tilewright.records import PROFILES, Launch, Task
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
        ("softmax_half", {"cols": 65536}, "shared memory"),
        ("layernorm_gelu", {"cols": 65536}, "warps of a block"),
        ("softmax", {"cols": 40000}, "shared memory"),
        ("softmax", {"cols": 262144}, "a cluster of blocks"),
        ("softmax", {"cols": 4000000}, "blocks of the whole grid"),
        ("layernorm", {"rows": 16, "cols": 4194304}, "many blocks share a row"),
        ("layernorm", {"cols": 262144}, "stages of the next ones"),
        ("layernorm", {"cols": 262143}, "the next one on its way"),
        ("layernorm", {"cols": 2097152}, "of the whole grid share the row, stages"),
        ("middle_sum", {"batch": 128, "rows": 4096, "cols": 4095}, "windows of memory"),
        ("middle_sum", {"batch": 128, "rows": 4095, "cols": 4095}, "aligned in phases"),
        ("middle_sum", {"batch": 128, "rows": 4096, "cols": 4096}, "aligned in phases"),
        ("middle_sum", {"batch": 2, "rows": 4096, "cols": 4095}, "aligned in phases"),
        ("channel_rmsnorm", {"channels": 64, "height": 512, "width": 512}, "held in registers"),
        ("channel_rmsnorm", {"channels": 640, "height": 512, "width": 512}, "read again"),
        ("batch_norm_train", {"batch": 64, "channels": 64, "height": 512, "width": 512}, "kept on chip"),
        ("batch_norm_train", {"batch": 64, "channels": 64, "height": 128, "width": 128}, "many blocks share a row"),
        ("group_norm", {"channels": 6, "height": 512, "width": 512}, "many blocks share a row"),
        ("row_sum", {"rows": 16384, "cols": 4096}, "warps of a block"),
        ("mean_loss", {"rows": 4096, "cols": 4096}, "many blocks share a row"),
        ("silu", {}, "16-byte vectors, one per thread"),
        ("bias_gelu", {}, "rectangles"),
    ],
)
def test_the_first_structure_suits_the_size(name: str, sizes: dict[str, int], first: str) -> None:
    program, _ = _program(name, **sizes)
    assert first in row_schedules(program).structures[0].summary


@pytest.mark.parametrize("gpu", ["T4", "A100", "L4", "B200"])
@pytest.mark.parametrize(("name", "cols"), [("softmax", 262144), ("layernorm", 262144), ("layernorm", 2097152)])
def test_every_structure_for_long_rows_takes_the_gpu(name: str, cols: int, gpu: str) -> None:
    task = replace(task_of(BY_NAME[name], {**SIZES, "cols": cols}), gpu=gpu)
    found = row_schedules(program_of(BY_NAME[name], task)).structures
    assert found
    for step in found:
        evaluate(parse(step.write(task_op_line(task))), task.arguments(task.sizes), PROFILES[gpu])


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
    for step in row_schedules(program).structures:
        for variant in (step, step.safer, step.polished):
            if variant is not None:
                file = parse(variant.write(task_op_line(task)), "kernel.cu")
                assert evaluate(file, task.arguments(), PROFILES["H200"]).steps


@pytest.mark.parametrize("name", ["layernorm_gelu", "softmax", "where_greatest", "mean_loss", "bias_gelu"])
def test_every_structure_takes_every_size(name: str) -> None:
    """Clusters too, which are never emulated."""
    program, task = _program(name, rows=512, cols=1024)
    for step in row_schedules(program).every:
        file = parse(step.write(task_op_line(task)), "kernel.cu")
        for cols in (1, 2, 513, 1001, 1024, 2048, 4095, 4096, 40001, 262144, 2000001):
            sizes = {one.name: cols if one.name == "cols" else one.size for one in task.dimensions}
            assert evaluate(file, task.arguments(sizes), PROFILES["H200"]).steps, step.summary


def _variants(program: RowProgram) -> list[Structure]:
    return [
        one for base in row_schedules(program).every for one in (base, base.safer, base.polished) if one is not None
    ]


IDS = """
vectors vectors-exact vectors-uncached rectangles rectangles-exact
lanes lanes-exact lanes-uncached block block-exact block-uncached
stream stream-exact shared shared-exact split
split-exact passes passes-exact cluster-ahead cluster-ahead-exact grid-ahead grid-ahead-exact
cluster-stages cluster-stages-exact grid-stages grid-stages-exact
kept column-pieces column-windows column-tiles column-tiles-again
"""


def test_ids_and_summaries_tell_structures_apart() -> None:
    """Runs on disk know structures by their ids: one may be added here, none changed."""
    seen: dict[str, str] = {}
    names = "layernorm_gelu row_sum mean_loss silu bias_gelu middle_sum channel_rmsnorm batch_norm_train"
    for name in names.split():
        made = _variants(_program(name)[0])
        assert len({one.id for one in made}) == len({one.summary for one in made}) == len(made)
        for one in made:
            assert seen.setdefault(one.id, one.summary) == one.summary
    assert sorted(seen) == sorted(IDS.split())


@pytest.mark.parametrize("gpu", ["A100", "H200"])
def test_a_file_without_others_beside_it_is_for_every_gpu(gpu: str) -> None:
    program, task = _program("layernorm", cols=2097152)
    text = best_schedule(program).structure.write(task_op_line(task))
    assert evaluate(parse(text, "kernel.cu"), task.arguments(), PROFILES[gpu]).steps


@pytest.mark.parametrize(("id", "most"), [("lanes", 32 * 32), ("block", 1024 * 32)])
def test_no_thread_holds_more_than_32_vectors(id: str, most: int) -> None:
    """Of rows with odd lengths a vector is one element; 64 of two bytes would fit, but each would be unrolled."""
    program, task = _program("row_sum")
    structure = next(one for one in row_schedules(program).every if one.id == id)
    text = structure.write(task_op_line(task))
    assert "loads <= 32 and" in text
    file = parse(text, "kernel.cu")
    for cols, held in ((most - 1, True), (most + 1, False)):
        assert fits(program, Team.LANES if id == "lanes" else Team.BLOCK, cols) is held
        sizes = {one.name: cols if one.name == "cols" else one.size for one in task.dimensions}
        (launch,) = evaluate(file, task.arguments(sizes), PROFILES["H200"]).steps
        assert isinstance(launch, Launch)
        assert launch.kernel.endswith("longer_rows") is not held


def test_files_are_the_same_every_time() -> None:
    first, task = _program("layernorm_gelu")
    second = row_program(traced_task(task, lambda request: trace(BY_NAME["layernorm_gelu"].callable, request)))
    assert first is not second
    for one, other in zip(row_schedules(first).every, row_schedules(second).every, strict=True):
        assert one.write(task_op_line(task)) == other.write(task_op_line(task))


def test_lines_are_short() -> None:
    names = "layernorm_gelu add_rmsnorm batch_norm mean_loss masked_softmax where_greatest middle_places group_norm"
    for name in names.split():
        program, task = _program(name)
        for step in row_schedules(program).every:
            text = step.write(task_op_line(task))
            assert max(map(len, text.splitlines())) <= 120, step.summary
            parse(text, "kernel.cu")


def test_names_of_the_op_never_collide() -> None:
    """Tensors named like the plan's and the kernel's own words."""
    function = Function(
        "f", "return torch.softmax(rows + cols, -1) * row", "rows: f32[n, m]; cols: f32[m]; row: f32[n, m]"
    )
    task = task_of(function, {"n": 64, "m": 512})
    program = program_of(function, task)
    for step in row_schedules(program).every:
        file = parse(step.write(task_op_line(task)), "kernel.cu")
        assert evaluate(file, task.arguments(), PROFILES["H200"]).steps
