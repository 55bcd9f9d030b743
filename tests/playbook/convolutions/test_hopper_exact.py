"""Convolutions for Hopper whose f32 operands must be exact: judged as the referee judges them, emulated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.playbook.convolutions.test_hopper import FORMS, H200, SHORT
from tests.playbook.convolutions.written import Written

import tilewright
from tilewright.kernel_file import parse
from tilewright.playbook.gemms.convolution_hopper import can_write, hopper_convolution
from tilewright.playbook.gemms.convolution_hopper_geometry import Geometry
from tilewright.records import BuildFailure, DType, Precision, TensorSpec
from tilewright.toolchain import build_plan
from tilewright.verify.expectation import expectations
from tilewright.verify.tolerance import compare

SMALL = Written((4, 6), (3, 3), channels=3, filters=5, batch=1, padding=(1, 1), precision=Precision.STRICT)
EXACT = {
    name: replace(form, precision=Precision.STRICT)
    for name, form in [*FORMS.items(), *((f"short {name}", form) for name, form in SHORT.items())]
    if form.dtype is DType.F32 and form.channels > 1
}
EXACT |= {
    "eight channels": Written((9, 30), (3, 3), channels=8, filters=64, precision=Precision.STRICT, bias=True),
    "four channels": Written((3, 7, 19), (2, 3, 3), channels=4, filters=70, precision=Precision.STRICT, batch=1),
    "three channels and more taps than a slot has": Written(
        (5, 30), (2, 9), channels=3, filters=40, precision=Precision.STRICT, padding=(0, 4)
    ),
    "five channels": Written((7, 9), (3, 3), channels=5, filters=20, precision=Precision.STRICT, padding=(1, 1)),
    "two channels": Written((9, 9), (3, 3), channels=2, filters=70, precision=Precision.STRICT, stride=(2, 2)),
    "many taps": Written((5, 7, 11), (3, 5, 7), channels=3, filters=64, precision=Precision.STRICT, batch=1),
    "many taps of many filters": Written(
        (9, 12), (4, 7), channels=3, filters=70, precision=Precision.STRICT, bias=True
    ),
    "many taps of two channels": Written((6, 30), (2, 11), channels=2, filters=20, precision=Precision.STRICT),
}
_OF_SUM = 2.0**-19  # of the magnitudes that a result is made from: what is left of those that keep few bits is 2^-14


def _file(form: Written, folder: Path) -> Path:
    path = folder / "conv.cu"
    path.write_text(hopper_convolution(form.convolution, form.op_line).file().replace("device.sms", "1"))
    return path


def _run(form: Written, tensors: list[torch.Tensor], folder: Path, schedules: int = 1) -> torch.Tensor:
    call = tilewright.load(str(_file(form, folder))).emulate(*tensors, gpu="H200", schedules=schedules)
    assert call.findings == ()
    assert isinstance(call.results, torch.Tensor)
    return call.results


def error_ratio(form: Written, found: torch.Tensor, tensors: list[torch.Tensor]) -> float:
    """The worst error over what the referee allows."""
    named = {str(place): one for place, one in enumerate(tensors)}

    def reference(given: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        ordered = [given[name] for name in named]
        return (form.truth(ordered, ordered[0].dtype),)

    (expected,) = expectations(reference, named, form.precision)
    return compare(found, expected).ratio


# -- geometry --


def test_three_parts_of_few_channels_lie_side_by_side() -> None:
    assert [Geometry(replace(SMALL, channels=count).convolution).planes for count in (2, 5, 6)] == [1, 2, 0]
    assert can_write(SMALL.convolution)
    assert not can_write(replace(SMALL, channels=1, groups=4).convolution)


def test_neighbours_share_what_they_have_beyond_eight_elements() -> None:
    found = {count: Geometry(replace(SMALL, channels=count, filters=64).convolution) for count in (3, 4, 5)}
    assert {count: (one.rest, one.planar_steps) for count, one in found.items()} == {3: (1, 2), 4: (4, 3), 5: (0, 3)}
    for count in (3, 4):
        given = [one for one in found[count].elements if one[1] >= 0]
        assert sorted(given) == [(shift, number) for shift in range(3) for number in range(8 + found[count].rest)]


def test_long_rows_of_taps_are_added_up_by_halves() -> None:
    halves = {name for name, form in EXACT.items() if Geometry(form.convolution).by_halves}
    assert halves == {name for name in EXACT if name == "many taps of two channels" or "than a slot has" in name}


# -- emulated --


def test_f32_is_exact(tmp_path: Path) -> None:
    tensors = SMALL.draw()
    assert error_ratio(SMALL, _run(SMALL, tensors, tmp_path), tensors) <= 1


def test_what_no_tap_meets_leaves_a_result_as_it_is(tmp_path: Path) -> None:
    """Behind the last row that a tile reads, where notes of further rows begin: it does not look at those."""
    form = Written((10, 30), (3, 3), channels=3, filters=64, batch=1, precision=Precision.STRICT)
    tensors = form.draw()
    tensors[0][0, 2, 8, 16] = float("inf")
    found, truth = _run(form, tensors, tmp_path), form.truth(tensors)
    assert torch.equal(found.isfinite(), truth.isfinite())


def test_tf32_would_not_be(tmp_path: Path) -> None:
    """What the referee allows an exact convolution is less than rounding costs."""
    tensors = SMALL.draw()
    rounded = [one.half().float() for one in tensors]
    assert error_ratio(SMALL, SMALL.truth(rounded, torch.float32), tensors) > 10


@pytest.mark.slow
@pytest.mark.parametrize("name", EXACT)
def test_every_form_is_exact(name: str, tmp_path: Path) -> None:
    form = EXACT[name]
    tensors = form.draw()
    assert error_ratio(form, _run(form, tensors, tmp_path, 2), tensors) <= 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["rows", "planes", "eight channels", "many taps", "many taps of many filters", "spread groups", "many kinds"],
)
def test_a_file_builds_and_spills_little(name: str, tmp_path: Path) -> None:
    form = EXACT[name]
    names = ["x", "w", *(["bias"] if form.bias else [])]
    specs = {
        name: TensorSpec.contiguous(form.dtype, tuple(one.shape)) for name, one in zip(names, form.draw(), strict=True)
    }
    built = build_plan(parse(_file(form, tmp_path).read_text(), "conv.cu"), specs, H200, isolated=False)
    assert not isinstance(built, BuildFailure), built
    assert built.build is not None
    for launch in built.plan.launches:
        assert built.build.kernel(launch.kernel).resources.spill_store_bytes <= 100, launch.kernel


# -- numbers that parts do not hold --

Change = Callable[[torch.Tensor], torch.Tensor]


def _some(x: torch.Tensor, value: float, every: int) -> torch.Tensor:
    """Every so many elements, one after the other in memory, replaced."""
    x = x.clone()
    x.view(-1)[::every] = value
    return x


INPUTS: dict[str, Change] = {
    "large": lambda x: x * 1e6,
    "small": lambda x: x * 1e-6,
    "very small": lambda x: x * 1e-38,
    "an outlier": lambda x: _some(x, 1e9, 10_000),
    "some small": lambda x: _some(x, 1e-9, 20),
    "one small number": lambda x: _some(x * 0, 1e-6, 10_000),
    "small columns": lambda x: x * torch.where(torch.arange(x.shape[-1]) % 16 < 3, 1e-8, 1.0),
    "many sizes": lambda x: x * torch.exp(6 * torch.randn(x.shape)),
    "an image of each size": lambda x: x * torch.tensor([1e-7, 1.0]).view(2, 1, 1, 1),
}
WEIGHTS: dict[str, Change] = {
    "small": lambda w: w * 1e-30,
    "filters of many sizes": lambda w: w * torch.exp(8 * torch.randn(len(w))).view(-1, 1, 1, 1),
    "an outlier": lambda w: _some(w, 1e9, 10_000),
    "some small": lambda w: _some(w, 1e-9, 20),
    "many sizes": lambda w: w * torch.exp(6 * torch.randn(w.shape)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["eight channels", "five channels"])
def test_what_parts_do_not_hold_is_made_again(name: str, tmp_path: Path) -> None:
    form = replace(EXACT[name], bias=False)
    x, w = form.draw()
    changed = [(said, change(x), w) for said, change in INPUTS.items()]
    changed += [(f"weights: {said}", x, change(w)) for said, change in WEIGHTS.items()]
    first = (torch.arange(form.channels) == 0).float().view(1, -1, 1, 1)
    changed += [("weights beside large ones that meet zeros", x * (1 - first), w * (1 + first * 1e9))]
    for said, *tensors in changed:
        found = _run(form, tensors, tmp_path)
        assert error_ratio(form, found, tensors) <= 1, said
        truth, magnitudes = form.truth(tensors), form.truth([one.abs() for one in tensors])
        assert ((found.double() - truth).abs() <= _OF_SUM * magnitudes + 1e-44).all(), said


@pytest.mark.slow
@pytest.mark.parametrize("channels", [3, 8])
def test_so_is_a_single_position_that_keeps_few_bits(channels: int, tmp_path: Path) -> None:
    """It is all that a result is made from; its neighbours are many and as usual."""
    form = Written((8, 40), (1, 1), channels=channels, filters=9, batch=1, precision=Precision.STRICT)
    x, w = form.draw()
    x[:, :, 4, 20] *= 1e-9
    found, truth = _run(form, [x, w], tmp_path), form.truth([x, w])
    assert ((found.double() - truth).abs() <= _OF_SUM * form.truth([x.abs(), w.abs()])).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["eight channels", "five channels", "groups"])
def test_what_is_not_finite_stays_where_it_is(name: str, tmp_path: Path) -> None:
    form = replace(EXACT[name], bias=False)
    x, w = form.draw()
    x[0, 1, 2, 2], x[1, 0, 0, 0] = torch.inf, torch.nan
    truth, found = form.truth([x, w]), _run(form, [x, w], tmp_path)
    assert torch.equal(found.isnan(), truth.isnan())
    assert torch.equal(found.isinf(), truth.isinf())
