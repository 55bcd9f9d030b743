"""Convolutions for Hopper that copy the input themselves, emulated at small sizes by several blocks in any order."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.playbook.convolutions.written import Written

import tilewright
from tilewright.kernel_file import DoesNotApply, parse
from tilewright.kernel_file.evaluate import evaluate
from tilewright.playbook.gemms import convolution_hopper_geometry
from tilewright.playbook.gemms.convolution_hopper import hopper_convolution
from tilewright.playbook.gemms.convolution_hopper_geometry import Geometry
from tilewright.records import BuildFailure, DType, Launch, Precision, TensorSpec
from tilewright.records.gpu import PROFILES
from tilewright.toolchain import build_plan

H200 = PROFILES["H200"]
FORMS = {
    "rows": Written((9, 100), (3, 3), channels=24, filters=72, padding=(1, 1), bias=True, activation="relu"),
    "as many channels as a box has": Written((7, 12), (3, 3), channels=64, filters=70, padding=(1, 1)),
    "long line": Written((700,), (5,), channels=40, filters=130, padding=(1,)),
    "dilated": Written((12, 20), (5, 9), channels=32, filters=64, padding=(2, 4), dilation=(2, 3)),
    "turned": Written((7, 60), (3, 5), channels=32, filters=72, transposed=True),
    "turned volume": Written((3, 5, 8), (3, 3, 3), channels=48, filters=40, transposed=True),
    "groups": Written((7, 8), (3, 3), channels=24, filters=40, groups=2, padding=(1, 1)),
    "cut off": Written((7, 16), (1, 1), channels=20, filters=40, transposed=True, padding=(1, 2)),
    "residual": Written((7, 8), (3, 3), channels=32, filters=40, padding=(1, 1), residual=True, bias=True),
}
APART = {
    "not f32": Written((9, 100), (3, 3), channels=24, filters=72, dtype=DType.F16),
    "exact": Written((9, 100), (3, 3), channels=24, filters=72, precision=Precision.STRICT),
    "lines that TMA does not take": Written((9, 101), (3, 3), channels=24, filters=72),
    "phases of the height": Written((9, 100), (3, 3), channels=24, filters=72, stride=(2, 1)),
    "phases of the width": Written((9, 100), (3, 3), channels=24, filters=20),
    "phases of the result": Written((7, 8), (3, 3), channels=20, filters=40, transposed=True, stride=(2, 2)),
    "groups that share eight channels": Written((7, 8), (3, 3), channels=20, filters=40, groups=2),
    "planes": Written((9, 40), (3, 3), channels=16, filters=72),
    "more channels than a box has": Written((7, 12), (3, 3), channels=72, filters=70),
}


@pytest.fixture(autouse=True)
def _small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution_hopper_geometry, "LEAST_COPIED_AHEAD", 0)
    monkeypatch.setattr(convolution_hopper_geometry, "LEAST_PRODUCTS_AHEAD", 0)


def _text(form: Written) -> str:
    return hopper_convolution(form.convolution, form.op_line).file()


def _specs(form: Written) -> dict[str, TensorSpec]:
    names = ["x", "w", *(["bias"] if form.bias else []), *(["residual"] if form.residual else [])]
    return {
        name: TensorSpec.contiguous(form.dtype, tuple(one.shape)) for name, one in zip(names, form.draw(), strict=True)
    }


def _run(form: Written, tensors: list[torch.Tensor], folder: Path, blocks: int, schedules: int = 1) -> torch.Tensor:
    path = folder / "conv.cu"
    path.write_text(_text(form).replace("device.sms", str(blocks)))
    call = tilewright.load(str(path)).emulate(*tensors, gpu="H200", schedules=schedules)
    assert call.findings == ()
    assert isinstance(call.results, torch.Tensor)
    return call.results


def _check(form: Written, folder: Path, blocks: int, schedules: int) -> None:
    tensors = form.draw()
    found, truth = _run(form, tensors, folder, blocks, schedules), form.truth(tensors)
    assert (found.double() - truth).norm() <= 5e-4 * truth.norm()


@pytest.mark.parametrize("name", ["rows", "turned"])
def test_the_product_copies_the_input(name: str, tmp_path: Path) -> None:
    assert "copy_input" not in _text(FORMS[name])
    _check(FORMS[name], tmp_path, 2, 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("blocks", [1, 3])
def test_every_form_is_right_in_any_order(name: str, blocks: int, tmp_path: Path) -> None:
    _check(FORMS[name], tmp_path, blocks, 3)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
def test_a_file_builds_and_spills_little(name: str) -> None:
    form = FORMS[name]
    built = build_plan(parse(_text(form), "conv.cu"), _specs(form), H200, isolated=False)
    assert not isinstance(built, BuildFailure), built
    assert built.build is not None
    assert built.build.kernel("convolve").resources.spill_store_bytes <= 100


@pytest.mark.parametrize("name", APART)
def test_others_are_copied_by_a_launch_before(name: str) -> None:
    assert not Geometry(APART[name].convolution).is_copied_ahead
    assert "copy_input" in _text(APART[name])


def test_so_are_small_ones_and_those_that_multiply_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    form = Written((256, 256), (3, 3), batch=16, channels=64, filters=128)
    assert Geometry(form.convolution).is_copied_ahead
    for change in ({"batch": 1}, {"filters": 64}, {"lengths": (256, 36)}):
        assert not Geometry(replace(form, **change).convolution).is_copied_ahead


def test_lines_that_tma_does_not_take_are_declined() -> None:
    form = FORMS["rows"]
    file = parse(_text(form), "conv.cu")
    assert evaluate(file, _specs(form), H200).build_request() is not None
    with pytest.raises(DoesNotApply, match=r"x_width % 4"):
        evaluate(file, _specs(replace(form, lengths=(9, 102))), H200)


@pytest.mark.parametrize("multiprocessors", [3, 16, 132])
@pytest.mark.parametrize(("groups", "filters"), [(1, 130), (1, 9000), (2, 1100)])
def test_blocks_that_wait_for_each_other_all_run_at_once(multiprocessors: int, groups: int, filters: int) -> None:
    """Also where there are more tiles of filters than multiprocessors, and the weights of a tile are few."""
    form = Written((9, 100), (1, 1), batch=64, channels=24, filters=128, groups=groups)
    plan = evaluate(
        parse(_text(form), "conv.cu"), _specs(replace(form, filters=filters)), replace(H200, sms=multiprocessors)
    )
    (product,) = (one for one in plan.steps if isinstance(one, Launch) and one.cooperative)
    assert 0 < math.prod(product.grid) <= multiprocessors


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rows", "turned"])
@pytest.mark.parametrize("scale", [1e6, 1e-6])
def test_numbers_that_f16_does_not_hold_are_made_again(name: str, scale: float, tmp_path: Path) -> None:
    form = replace(FORMS[name], bias=False, activation="")
    x, w = form.draw()
    x[-1] *= scale
    found, truth = _run(form, [x, w], tmp_path, 2), form.truth([x, w])
    magnitudes = form.truth([x.abs(), w.abs()])
    assert ((found.double() - truth).abs() <= 2.0**-10 * magnitudes).all()
