"""Convolutions for Hopper whose tiles leave the moments of a norm over the batch: emulated, with every checker."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.playbook.functions import draw, truth
from tests.playbook.placed import Placed

import tilewright
from tilewright.records import Precision
from tilewright.tasks import task_op_line

_CONV = "x: f32[batch, words, height, width]; w: f32[keys, words, three, three]; b: f32[keys]; g: f32[keys]"
_FEW = "x: f32[batch, heads, height, width]; w: f32[filters, heads, three, three]; b: f32[filters]; g: f32[filters]"
_AT = {"batch": 3, "height": 7, "width": 11}


def _case(
    name: str, body: str, inputs: str, result: str, multiples: tuple[tuple[str, int], ...] = (), **sizes: int
) -> Placed:
    return Placed(name, body, inputs, result, ({**_AT, **sizes},), multiples, Precision.STRICT)


def _norm(made: str) -> str:
    return f"F.batch_norm({made}, None, None, g, g, training=True)"


CASES = {
    one.name: one
    for one in (
        _case(
            "rows", f"return {_norm('F.conv2d(x, w, b)')} * 2", _CONV, "f32[batch, keys, h = height - 2, v = width - 2]"
        ),
        _case(
            "few",
            f"return {_norm('F.relu(F.conv2d(x, w, b, padding=1))')}",
            _FEW,
            "f32[batch, filters, height, width]",
            filters=5,
        ),
        _case(
            "spread",
            f"return {_norm('F.conv_transpose2d(x, w, b, (2, 3), 1)')}",
            "x: f32[batch, words, height, width]; w: f32[words, keys, three, five]; b: f32[keys]; g: f32[keys]",
            "f32[batch, keys, h = height * 2 - 1, v = width * 3]",
            width=5,
        ),
        _case(
            "groups",
            f"return {_norm('F.conv2d(x, w, b, padding=1, groups=2)')}",
            "x: f32[batch, words, height, width]; w: f32[size, half = words / 2, three, three]; b: f32[size]; "
            "g: f32[size]",
            "f32[batch, size, height, width]",
            size=24,
            multiples=(("size", 2), ("words", 2)),
        ),
        _case(
            "pool",
            f"return F.avg_pool2d({_norm('F.conv2d(x, w, b)')}, 2)",
            _FEW,
            "f32[batch, filters, h = (height - 2) / 2, v = (width - 2) / 2]",
        ),
        _case(
            "mean",
            f"return {_norm('F.conv2d(x, w, b) * 2')}.mean((2, 3))",
            _FEW,
            "f32[batch, filters]",
        ),
        _case(
            "less_mean",
            f"y = {_norm('F.conv2d(x, w, b)')}\nreturn y - y.mean((2, 3), keepdim=True)",
            _FEW,
            "f32[batch, filters, h = height - 2, v = width - 2]",
        ),
        _case(
            "many_tiles",
            f"return {_norm('F.conv2d(x, w, b, stride=2)')}",
            _CONV,
            "f32[batch, keys, h = (height - 1) / 2, v = (width - 1) / 2]",
            height=41,
            width=39,
        ),
    )
}


def _run(case: Placed, tensors: dict[str, torch.Tensor], folder: Path, schedules: int, overlap: str) -> torch.Tensor:
    """In as few blocks as there can be, so that each has several tiles."""
    step = case.answer.structures[0]
    assert step.id.startswith("convolution-hopper-moments-then-passes-by-tiles")
    assert "tiles leave the moments of their results" in step.summary
    text = step.write(task_op_line(case.task)).replace("device.sms", "1")
    path = folder / "conv.cu"
    path.write_text(re.sub(r"(?:tune |const)   (\w*OVERLAP) = \w+(?: . \w+)?", rf"const   \1 = {overlap}", text))
    given = [tensors[one.name] for one in case.task.inputs]
    call = tilewright.load(str(path)).emulate(*given, gpu="H200", schedules=schedules)
    assert call.findings == ()
    assert isinstance(call.results, torch.Tensor)
    return call.results


def _check(case: Placed, folder: Path, change: str = "", schedules: int = 1, overlap: str = "false") -> None:
    tensors = draw(case.task, case.task.complete({**case.task.sizes, **case.at[0]}), 1)
    if change:
        tensors["x"], tensors["b"] = CHANGES[change](tensors["x"], tensors["b"])
    found, (want,) = _run(case, tensors, folder, schedules, overlap), truth(case.function, case.task, tensors)
    assert found.shape == want.shape
    assert torch.equal(found.isnan(), want.isnan())
    finite = want.isfinite()
    allowed = 3e-3 if change == "far from zero" else 1e-5  # elements are rounded at their distance from zero
    scale = want[finite].abs().mean() if finite.any() else 1.0
    assert ((found.double() - want)[finite].abs() <= allowed * (want[finite].abs() + scale)).all(), change


def _some(x: torch.Tensor, value: float) -> torch.Tensor:
    x = x.clone()
    x[1, 1, 3, 4] = value
    return x


Change = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
CHANGES: dict[str, Change] = {
    "far from zero": lambda x, b: (x, b + 1000),  # squares without a mean would leave nothing
    "an outlier": lambda x, b: (_some(x, 1e8), b),
    "small": lambda x, b: (x * 1e-9, b * 0),
    "an infinity": lambda x, b: (_some(x, torch.inf), b),
}


def test_moments_of_tiles_are_those_of_the_batch(tmp_path: Path) -> None:
    _check(CASES["few"], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_norm_is_right_in_any_order(name: str, tmp_path: Path) -> None:
    _check(CASES[name], tmp_path, schedules=3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["few", "many_tiles", "spread"])
def test_tiles_that_share_positions_count_them_once(name: str, tmp_path: Path) -> None:
    _check(CASES[name], tmp_path, overlap="true")


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", ["rows", "few"])
def test_numbers_of_all_sizes_have_their_moments(name: str, change: str, tmp_path: Path) -> None:
    _check(CASES[name], tmp_path, change)
