"""Leading dimensions: what a plan sees of them, what results have of them, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.runtime.plans import LEADING, LIBRARY

from tilewright.kernel_file import KernelFileError, Refused, evaluate, out_specs, parse, try_evaluate
from tilewright.kernel_file.syntax import Lead
from tilewright.records import PROFILES, DType, TensorSpec

FILE = parse(LEADING)
H200 = PROFILES["H200"]


def call(*leading: int, scale: tuple[int, ...] | None = None) -> dict[str, Any]:
    f32 = DType.F32
    return {
        "x": TensorSpec.contiguous(f32, (*leading, 40)),
        "scale": TensorSpec.contiguous(f32, leading if scale is None else scale),
        "weight": TensorSpec.contiguous(f32, (40,)),
    }


@pytest.mark.parametrize("leading", [(6,), (2, 3), (), (3, 1, 2), (0, 3)])
def test_a_result_has_the_leading_dimensions_again(leading: tuple[int, ...]) -> None:
    arguments = call(*leading)
    evaluation = evaluate(FILE, arguments, H200)
    outs = {buffer.name: buffer.spec for buffer in evaluation.buffers}
    assert outs["y"] == TensorSpec.contiguous(DType.F32, (*leading, 40))
    assert outs["top"] == TensorSpec.contiguous(DType.F32, leading)
    assert out_specs(FILE, arguments) == (outs["y"], outs["top"])
    assert dict(evaluation.tensors) == arguments
    rows = 1
    for size in leading:
        rows *= size
    assert [getattr(step, "grid", None) for step in evaluation.steps] == ([(rows, 1, 1)] if rows else [])


def test_results_with_strides_of_their_own_keep_them() -> None:
    text = LEADING.replace("out     y: f32[rows, cols]", "out     y: f32[rows, cols] stride [1, rows]")
    y = evaluate(parse(text), call(2, 3), H200).buffers[0].spec
    assert (y.shape, y.stride) == ((2, 3, 40), (3, 1, 6))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (call(2, 3, scale=(3, 2)), "x leads with [2, 3] and scale with [3, 2]"),
        (call(2, 3, scale=(6,)), "x leads with [2, 3] and scale with [6]"),
        (
            {**call(2, 3), "x": TensorSpec.contiguous(DType.F32, ())},
            "and this kernel takes 1 or more",
        ),
        ({**call(2, 3), "x": replace(call(2, 3)["x"], stride=(40, 80, 1))}, "do not lie in memory as one"),
        ({**call(2, 3), "weight": TensorSpec.contiguous(DType.F32, (1, 40))}, "weight.ndim == 1"),
    ],
)
def test_what_cannot_be_seen_as_rows_is_refused(arguments: dict[str, Any], reason: str) -> None:
    outcome = try_evaluate(FILE, arguments, H200)
    assert isinstance(outcome, Refused)
    assert reason in outcome.problem.found


def test_the_line_is_read_and_checked() -> None:
    (lead,) = (one for one in FILE.plan.directives if isinstance(one, Lead))
    assert lead.ranks == (("x", 2), ("scale", 1))
    for line, problem in (
        ("lead    x: 0", "number of dimensions"),
        ("lead    z: 2", "`z` is no tensor parameter"),
        ("lead    x: 2\n//! lead    scale: 1", "a second `lead`"),
    ):
        with pytest.raises(KernelFileError, match=problem):
            parse(LEADING.replace("lead    x: 2, scale: 1", line))
    with pytest.raises(KernelFileError, match="beside a library step"):
        parse(LIBRARY.replace("//! let", "//! lead    x: 2\n//! let", 1))
    changed = LEADING.replace("weight)", "weight!)", 1).replace("const float* weight", "float* weight")
    with pytest.raises(KernelFileError, match="`weight` is changed in place and not among"):
        parse(changed)


def test_a_result_without_the_rows_is_an_error() -> None:
    text = LEADING.replace("out     top: f32[rows]", "out     top: f32[cols]")
    evaluate(parse(text), call(6), H200)
    with pytest.raises(KernelFileError, match="should be the leading one"):
        evaluate(parse(text), call(2, 3), H200)
