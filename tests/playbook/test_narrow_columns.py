"""Reductions across memory in 16 bits: held as they are, and made f32 again in every step."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.playbook.agreement import check, load_structure
from tests.playbook.functions import SIZES, Function, draw, program_of, task_of

from tilewright.kernel_file import parse
from tilewright.playbook.catalogue import row_schedules
from tilewright.records import PROFILES, BuildFailure, Task
from tilewright.records.tensors import TensorSpec
from tilewright.tasks import task_op_line
from tilewright.toolchain import build_plan

_IMAGE = "x: bf16[batch, channels, height, width]"
FUNCTIONS = (
    Function("shares", "return F.softmax(x, 1)", _IMAGE),
    Function("shares_of_halves", "return F.log_softmax(x, 1)", _IMAGE.replace("bf16", "f16")),
    Function("logarithm", "return torch.logsumexp(x, 1)", _IMAGE),
    Function(
        "normal_sums",
        "s = x + r\nm = s.mean(1, keepdim=True)\n"
        "return (s - m) * torch.rsqrt(s.var(1, unbiased=False, keepdim=True) + 1e-5) * w[:, None, None]",
        f"{_IMAGE}; r: bf16[batch, channels, height, width]; w: f32[channels]",
    ),
    Function("means", "return x.mean(1)", _IMAGE),
    Function("places", "return x.argmax(1)", _IMAGE),
    Function("wide_results", "return (x - x.amax(1, keepdim=True)).float()", _IMAGE),
    Function("bent", "g = F.gelu(x)\nreturn g / g.abs().amax(1, keepdim=True)", _IMAGE),
)
# Whole vectors and more than one tile; single elements; vectors of which the last tile has a part.
PLACES = ((5, 3, 7), (9, 14, 10), (33, 4, 67))


def _task(function: Function, channels: int) -> Task:
    """A large one, so that structures are those of one."""
    return task_of(function, {**SIZES, "batch": 16, "channels": channels, "height": 128, "width": 128})


@pytest.mark.parametrize("channels", [64, 400])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda one: one.name)
def test_columns_in_16_bits_are_right_and_clean(function: Function, channels: int, tmp_path: Path) -> None:
    task = _task(function, channels)
    for step in row_schedules(program_of(function, task)).structures:
        op = load_structure(step, task, tmp_path)
        for count, height, width in ((channels, 12, 12), *PLACES):
            sizes = {"batch": 2, "channels": count, "height": height, "width": width}
            check(op, function, task, sizes)
            tensors = draw(task, sizes, 1)
            for gpu in ("A100", "L4", "H200"):
                findings = op.emulate(*(tensors[one.name] for one in task.tensors), gpu=gpu).findings
                assert findings == (), (step.id, gpu, sizes)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda one: one.name)
def test_what_is_held_in_16_bits_fits_the_registers(function: Function) -> None:
    task = _task(function, 64)
    step = row_schedules(program_of(function, task)).structures[0]
    assert step.id == ("column-tiles-again" if function.name in ("means", "places") else "column-tiles")
    sizes = {one.name: one.size for one in task.dimensions}
    specs = {
        one.name: TensorSpec.contiguous(one.dtype, tuple(sizes[name] for name in one.dimensions))
        for one in task.tensors
    }
    built = build_plan(parse(step.write(task_op_line(task)), "tiles.cu"), specs, PROFILES["H200"], isolated=False)
    assert not isinstance(built, BuildFailure), built
    assert built.build is not None
    assert built.build.kernel(f"{function.name}_tiles").resources.spill_store_bytes <= 40
