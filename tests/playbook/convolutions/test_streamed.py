"""Convolutions that read x as it lies, emulated at small odd sizes: their results, and what f16 does not hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.playbook.convolutions.written import Written

import tilewright
from tilewright.kernel_file import parse
from tilewright.playbook.gemms.convolution_streamed import Streams, can_write, streamed_convolution
from tilewright.playbook.gemms.schedules import convolution_schedules
from tilewright.playbook.row_program import Load
from tilewright.records import BuildFailure, DType, Precision, TensorSpec
from tilewright.records.gpu import PROFILES
from tilewright.toolchain import build_plan

H200 = PROFILES["H200"]
ALLOWED = 5e-4  # relative, in the mean square
QUICK = {
    "line": Written((300,), (3,), channels=20, filters=70, bias=True, activation="relu"),
    "plane": Written((7, 148), (3, 3), channels=17, filters=30, transposed=True, residual=True),
}
REST = {
    "turned line": Written((148,), (5,), channels=32, filters=33, transposed=True, dilation=(3,), batch=3),
    "strided line": Written((900,), (3,), channels=24, filters=100, stride=(3,), dilation=(4,)),
    "padded line": Written((264,), (4,), channels=40, filters=64, padding=(1,), stride=(2,), bias=True),
    "whole sectors": Written((5, 256), (3, 3), channels=16, filters=65, padding=(1, 1), residual=True, bias=True),
    "two blocks of rows": Written((148,), (3,), channels=130, filters=140, transposed=True),
    "wide window": Written((6, 140), (3, 7), channels=33, filters=32, padding=(1, 3)),
    "f16": Written((148,), (5,), channels=130, filters=66, bias=True, residual=True),
    "f16 lines": Written((7, 148), (3, 3), channels=60, filters=60, transposed=True),
    "dilated lines": Written((9, 140), (3, 5), channels=20, filters=20, padding=(2, 4), dilation=(2, 3)),
    "strided lines": Written((9, 140), (3, 3), channels=20, filters=20, padding=(1, 1), stride=(2, 1)),
    "one result": Written((4,), (4,), channels=3, filters=5, batch=3),
    "few positions": Written((3, 4), (3, 3), channels=8, filters=9, transposed=True, batch=5),
}
FORMS = QUICK | REST


def _run(form: Written, tensors: list[torch.Tensor], folder: Path, schedules: int = 1) -> torch.Tensor:
    """In as few blocks as there can be, so that each has several tiles."""
    path = folder / "conv.cu"
    path.write_text(streamed_convolution(form.convolution, form.op_line).file().replace("device.sms", "1"))
    call = tilewright.load(str(path)).emulate(*tensors, gpu="H200", schedules=schedules)
    assert call.findings == ()
    assert isinstance(call.results, torch.Tensor)
    return call.results


def _check(form: Written, folder: Path, schedules: int = 1) -> None:
    assert can_write(form.convolution)
    tensors = form.draw()
    found, truth = _run(form, tensors, folder, schedules), form.truth(tensors)
    assert (found.double() - truth).norm() <= ALLOWED * truth.norm()


@pytest.mark.parametrize("name", QUICK)
def test_streamed_convolutions_are_right(name: str, tmp_path: Path) -> None:
    _check(QUICK[name], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
def test_streamed_convolutions_are_right_in_any_order(name: str, tmp_path: Path) -> None:
    _check(FORMS[name], tmp_path, 3)


def _one(x: torch.Tensor, w: torch.Tensor, value: float) -> None:
    x[1, 3, 4, 50] = value


def _small_channel(x: torch.Tensor, w: torch.Tensor) -> None:
    """One filter sees nothing else."""
    x[:, 1] *= 1e-6
    w[3, [c for c in range(w.shape[1]) if c != 1]] = 0.0


EXTREMES: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "a large number": lambda x, w: _one(x, w, 1e6),
    "not a number": lambda x, w: _one(x, w, float("nan")),
    "an infinity": lambda x, w: _one(x, w, float("-inf")),
    "small numbers": lambda x, w: x.mul_(1e-6),
    "a small patch": lambda x, w: x[1, :, 2:5, 60:70].mul_(1e-7),
    "a small channel": lambda x, w: _small_channel(x, w),
    "a filter of large weights": lambda x, w: w[3].mul_(1e30),
    "a filter of weights close to the largest": lambda x, w: w[3].mul_(1e36),
    "an infinite weight": lambda x, w: w[3, 2].fill_(float("inf")),
}


@pytest.mark.parametrize(
    "name", ["a small patch", "a small channel", pytest.param("not a number", marks=pytest.mark.slow)]
)
def test_what_f16_does_not_hold_is_made_in_f32(name: str, tmp_path: Path) -> None:
    _check_extreme(name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXTREMES)
def test_all_that_f16_does_not_hold_is_made_in_f32(name: str, tmp_path: Path) -> None:
    _check_extreme(name, tmp_path)


def _check_extreme(name: str, folder: Path) -> None:
    form = Written((6, 132), (3, 3), channels=9, filters=12)
    assert not Streams(form.convolution).is_tf32
    tensors = form.draw()
    EXTREMES[name](*tensors)
    found, truth = _run(form, tensors, folder).double(), form.truth(tensors)
    assert torch.equal(found.isfinite(), truth.float().isfinite())
    assert torch.equal(found.isnan(), truth.isnan())
    finite = truth.isfinite()
    for f in range(12):  # filters have scales of their own
        mine, true = found[:, f][finite[:, f]], truth[:, f][finite[:, f]]
        assert (mine - true).norm() <= ALLOWED * true.norm()
    if name == "a small patch":  # where results are small too
        assert (found - truth)[1, :, 2, 61:67].norm() <= ALLOWED * truth[1, :, 2, 61:67].norm()


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
def test_a_file_builds_and_hardly_spills(name: str) -> None:
    form = FORMS[name]
    names = ["x", "w", *(["bias"] if form.bias else []), *(["residual"] if form.residual else [])]
    specs = {
        each: TensorSpec.contiguous(form.dtype, tuple(one.shape)) for each, one in zip(names, form.draw(), strict=True)
    }
    text = streamed_convolution(form.convolution, form.op_line).file()
    built = build_plan(parse(text, "conv.cu"), specs, H200, isolated=False)
    assert not isinstance(built, BuildFailure), built
    assert built.build is not None
    assert built.build.kernel("convolve").resources.spill_store_bytes <= 64


def test_an_input_may_have_the_name_of_a_number_in_the_kernel() -> None:
    one = replace(QUICK["line"], activation="").convolution
    inputs = tuple(replace(each, name="e") if each.name == "bias" else each for each in one.epilogue.inputs)
    values = tuple(Load("e") if each == Load("bias") else each for each in one.epilogue.values)
    named = replace(one, epilogue=replace(one.epilogue, inputs=inputs, values=values))
    text = streamed_convolution(named, "conv(x, w, e) -> out").file()
    assert "__restrict__ e_" in text
    assert "__restrict__ e," not in text


def test_what_is_left_to_others() -> None:
    line = QUICK["line"]
    for changes in (
        {"lengths": (301,)},  # lines that TMA does not take
        {"precision": Precision.STRICT},
        {"dtype": DType.F16},
        {"groups": 2},
        {"stride": (5,)},
        {"dilation": (9,)},
        {"transposed": True, "stride": (2,)},
        {"channels": 1000},  # whose weights do not fit
        {"taps": (1,)},
    ):
        assert not can_write(replace(line, **changes).convolution), changes


def test_it_comes_first_where_memory_bounds() -> None:
    long = Written((1 << 15,), (3,), batch=8, channels=64, filters=128)
    plane = Written((256, 256), (3, 3), batch=8, channels=64, filters=64)

    def ids(form: Written, arch: str = "sm_90a") -> list[str]:
        return [one.id for one in convolution_schedules((form.convolution,), arch)]

    assert ids(long)[:2] == ["convolution-streamed", "convolution-hopper"]
    assert "convolution-streamed" not in ids(long, "sm_80")
    assert "convolution-streamed" not in ids(plane)
    assert ids(replace(plane, filters=32))[0] == "convolution-streamed"
    assert "convolution-streamed" not in ids(replace(long, batch=1))


def test_tiles_are_as_large_as_registers_and_shared_memory_allow() -> None:
    assert Streams(REST["two blocks of rows"].convolution).filters == 64
    assert Streams(QUICK["plane"].convolution).lines == 2
    assert Streams(QUICK["line"].convolution).is_tf32
    assert not Streams(REST["f16"].convolution).is_tf32
    assert not Streams(REST["f16 lines"].convolution).is_tf32
    assert Streams(Written((8, 64), (5, 5), channels=64, filters=128).convolution).filters == 64
