"""Convolutions for Hopper with work over all channels of a position: emulated, with every checker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.playbook.functions import draw, truth
from tests.playbook.placed import Placed

import tilewright
from tilewright.kernel_file import parse
from tilewright.playbook.families import Structure
from tilewright.playbook.gemms import convolution_hopper_geometry
from tilewright.records import BuildFailure, Precision
from tilewright.records.gpu import PROFILES
from tilewright.tasks import task_op_line
from tilewright.toolchain import build_plan

_CONV = "x: f32[batch, words, height, width]; w: f32[keys, words, three, three]; b: f32[keys]"
_FEW = "x: f32[batch, heads, height, width]; w: f32[filters, heads, three, three]; b: f32[filters]"
_TURNED = "x: f32[batch, words, height, width]; w: f32[words, keys, three, five]; b: f32[keys]"
_VOLUME = "x: f32[batch, three, depth, height, width]; w: f32[three, filters, three, three, three]; b: f32[filters]"
_SPREAD = "f32[batch, keys, h = height * 2 - 1, v = width * 2 + 1]"
_AT = {"batch": 2, "height": 7, "width": 11}


def _case(
    name: str, body: str, inputs: str, result: str, precision: Precision = Precision.STRICT, **sizes: int
) -> Placed:
    return Placed(name, f"return {body}", inputs, result, ({**_AT, **sizes},), (), precision)


CASES = {
    one.name: one
    for one in (
        _case(
            "least",
            "torch.tanh((F.conv2d(x, w, b) * 2).min(1, keepdim=True)[0])",
            _CONV,
            "f32[batch, 1, h = height - 2, v = width - 2]",
        ),
        _case(
            "least_rounded",
            "F.conv2d(x, w, b, padding=1).amin(1)",
            _CONV,
            "f32[batch, height, width]",
            Precision.DTYPE,
            height=30,
            keys=64,
        ),
        _case("mean_few", "F.relu(F.conv2d(x, w, b, padding=1)).mean(1)", _FEW, "f32[batch, height, width]", filters=5),
        _case(
            "softmax_few",
            "torch.softmax(F.conv2d(x, w, b, padding=1), 1) * 2 + b.view(-1, 1, 1)",
            _FEW,
            "f32[batch, filters, height, width]",
        ),
        _case(
            "softmax_spread",
            "torch.sigmoid((torch.softmax(F.conv_transpose2d(x, w, b, 2, (1, 1)), 1) + b.view(-1, 1, 1)) * 2)",
            _TURNED,
            _SPREAD,
        ),
        _case(
            "softmax_spread_whole",
            "torch.softmax(F.conv_transpose2d(x, w, b, 2, (1, 1)), 1)",
            _TURNED,
            _SPREAD,
            Precision.DTYPE,
            keys=128,
        ),
        _case(
            "log_softmax",
            "torch.log_softmax(F.conv2d(x, w, b, stride=2), 1)",
            _CONV,
            "f32[batch, keys, h = (height - 1) / 2, v = (width - 1) / 2]",
        ),
        _case(
            "exponentials_of_volume",
            "torch.clamp(torch.logsumexp(F.conv_transpose3d(x, w, b, 2, 1), 1, keepdim=True) - c, max=6)",
            f"{_VOLUME}; c: f32[one, one, one, one]",
            "f32[batch, 1, d = depth * 2 - 1, h = height * 2 - 1, v = width * 2 - 1]",
            Precision.DTYPE,
            depth=3,
            height=4,
            width=5,
        ),
        _case(
            "norm",
            "(lambda y: (y - y.mean(1, keepdim=True)) / (y.var(1, keepdim=True) + 1).sqrt())(F.conv2d(x, w, b))",
            _CONV,
            "f32[batch, keys, h = height - 2, v = width - 2]",
        ),
        _case(
            "half",
            "torch.softmax(F.conv2d(x, w, padding=1).float(), 1).half()",
            "x: f16[batch, words, height, width]; w: f16[keys, words, three, three]",
            "f16[batch, keys, height, width]",
        ),
        _case(
            "softmax_pool",
            "F.max_pool2d(torch.softmax(F.conv2d(x, w, b, padding=1), 1), 2)",
            _FEW,
            "f32[batch, filters, h = height / 2, v = width / 2]",
        ),
    )
}
ALLOWED = {torch.float32: 4e-6, torch.float16: 2e-3}


def _fused(case: Placed) -> Structure:
    step = next(one for one in case.answer.structures if one.id.startswith("convolution-hopper-channels"))
    assert "on the sums in registers" in step.summary
    return step


def _run(case: Placed, tensors: dict[str, torch.Tensor], folder: Path, schedules: int = 1) -> torch.Tensor:
    """In as few blocks as there can be, so that each has several tiles."""
    path = folder / "conv.cu"
    path.write_text(_fused(case).write(task_op_line(case.task)).replace("device.sms", "1"))
    given = [tensors[one.name] for one in case.task.inputs]
    call = tilewright.load(str(path)).emulate(*given, gpu="H200", schedules=schedules)
    assert call.findings == ()
    assert isinstance(call.results, torch.Tensor)
    return call.results


def _check(name: str, folder: Path, schedules: int = 1) -> None:
    case = CASES[name]
    tensors = draw(case.task, case.task.complete({**case.task.sizes, **case.at[0]}), 1)
    found, (want,) = _run(case, tensors, folder, schedules), truth(case.function, case.task, tensors)
    assert found.shape == want.shape
    if case.precision is Precision.DTYPE:  # rounded to TF32
        assert (found.double() - want).norm() <= 3e-3 * want.norm()
    else:
        assert ((found.double() - want).abs() <= ALLOWED[found.dtype] * (want.abs() + want.abs().mean())).all()


@pytest.mark.parametrize("name", ["least", "softmax_few"])
def test_work_over_channels_is_right(name: str, tmp_path: Path) -> None:
    _check(name, tmp_path)


@pytest.mark.slow
def test_so_it_is_where_the_input_is_copied_by_the_product(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution_hopper_geometry, "LEAST_COPIED_AHEAD", 0)
    monkeypatch.setattr(convolution_hopper_geometry, "LEAST_PRODUCTS_AHEAD", 0)
    case = replace(CASES["least_rounded"], at=({**_AT, "height": 30, "width": 12, "keys": 64},))
    tensors = draw(case.task, case.task.complete({**case.task.sizes, **case.at[0]}), 1)
    assert "copy_input" not in _fused(case).write(task_op_line(case.task))
    found, (want,) = _run(case, tensors, tmp_path, 3), truth(case.function, case.task, tensors)
    assert (found.double() - want).norm() <= 3e-3 * want.norm()


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_work_over_channels_is_right_in_any_order(name: str, tmp_path: Path) -> None:
    _check(name, tmp_path, 3)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_file_builds_and_spills_little(name: str) -> None:
    case = CASES[name]
    text = _fused(case).write(task_op_line(case.task))
    specs = case.task.specs(case.task.complete({**case.task.sizes, **case.at[0]}))
    built = build_plan(parse(text, "conv.cu"), specs, PROFILES["H200"], isolated=False)
    assert not isinstance(built, BuildFailure), built
    assert built.build is not None
    kernel = next(one.kernel for one in built.plan.launches if one.kernel.endswith("convolve"))
    assert built.build.kernel(kernel).resources.spill_store_bytes <= 120  # of a norm, else 20


# -- what other numbers become --

Change = Callable[[torch.Tensor], torch.Tensor]


def _with(*values: float) -> Change:
    def change(x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        for place, value in enumerate(values):
            x[place % len(x), place % x.shape[1], 3, 4 + 2 * place] = value
        return x

    return change


CHANGES: dict[str, Change] = {
    "not finite": _with(torch.inf, torch.nan, -torch.inf),
    "outliers": _with(1e8, -1e7),
    "small": lambda x: x * 1e-9,
    "large": lambda x: x * 1e9,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["least", "mean_few", "softmax_few", "log_softmax", "exponentials"])
def test_what_f16_does_not_hold_becomes_what_pytorch_makes_of_it(name: str, tmp_path: Path) -> None:
    exponentials = _case(
        "exponentials",
        "torch.logsumexp(F.conv2d(x, w), 1)",
        _FEW.rpartition(";")[0],
        "f32[batch, h = height - 2, v = width - 2]",
    )
    case = {**CASES, "exponentials": exponentials}[name]
    for said, change in CHANGES.items():
        tensors = draw(case.task, case.task.complete({**case.task.sizes, **case.at[0]}), 1)
        tensors = {**tensors, "x": change(tensors["x"])}
        found = _run(case, tensors, tmp_path).double()
        (want,) = truth(case.function, case.task, tensors)
        assert torch.equal(found.isnan(), want.isnan()), said
        assert torch.equal(found.isinf(), want.isinf()), said
        finite = want.isfinite()
        largest = want.where(finite, 0).abs().max()  # beside which differences are rounded
        slack = 0.05 if name == "softmax_few" else 1e-5 * (largest if "softmax" in name else want[finite].abs()) + 1e-5
        assert ((found[finite] - want[finite]).abs() <= slack).all(), said


@pytest.mark.parametrize(("name", "place"), [("least", 0), ("softmax_few", 1), ("softmax_spread", 0)])
def test_it_comes_first_where_it_pays(name: str, place: int) -> None:
    """Of a result as large as the sums, only where a pass over its rows would be slow."""
    structures = CASES[name].answer.structures
    assert structures[place].id == _fused(CASES[name]).id


def test_rows_that_are_read_again_are_stored() -> None:
    """A residual needs the convolution's own results."""
    body = "y = F.conv2d(x, w, b)\nreturn y + torch.softmax(y, 1).max(2, keepdim=True)[0]"
    case = Placed(
        "again", body, _FEW, "f32[batch, filters, h = height - 2, v = width - 2]", (_AT,), (), Precision.STRICT
    )
    assert not any("channels" in one.id for one in case.answer.structures)
