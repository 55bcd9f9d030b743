"""Convolutions for Hopper: their geometry, their files, and, emulated at small odd sizes, their results.

`test_hopper_on_gpu` has them on a GPU.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.playbook.convolutions.written import Written

import tilewright
from tilewright.kernel_file import DoesNotApply, parse
from tilewright.kernel_file.evaluate import evaluate
from tilewright.playbook.gemms.convolution_hopper import can_write, hopper_convolution
from tilewright.playbook.gemms.convolution_hopper_geometry import Axis, Geometry
from tilewright.playbook.gemms.convolution_program import Window
from tilewright.playbook.gemms.program import Extent
from tilewright.records import BuildFailure, DType, Precision, TensorSpec
from tilewright.records.gpu import PROFILES
from tilewright.toolchain import build_plan

H200 = PROFILES["H200"]
FORMS = {
    "rows": Written((9, 11), (3, 3), channels=24, filters=72, padding=(1, 1), bias=True),
    "planes": Written((9, 10), (3, 3), channels=16, filters=65, bias=True, activation="relu"),
    "pairs of positions": Written((4, 5, 6), (3, 3, 3), channels=3, filters=16, padding=(1, 1, 1)),
    "blocks of channels": Written((7, 9), (3, 3), channels=81, filters=70, batch=1),
    "long lines": Written((3, 300), (3, 4), channels=20, filters=30, batch=1, padding=(1, 1)),
    "strided line": Written((61,), (3,), channels=20, filters=33, stride=(3,), dilation=(4,), padding=(2,)),
    "strided and few": Written((23, 27), (11, 11), channels=3, filters=20, stride=(4, 4), padding=(2, 2)),
    "dilated": Written((12, 20), (5, 9), channels=32, filters=64, padding=(2, 4), dilation=(2, 3)),
    "groups": Written((7, 8), (3, 3), channels=20, filters=24, groups=2, padding=(1, 1)),
    "residual": Written((7, 8), (3, 3), channels=32, filters=24, padding=(1, 1), residual=True, bias=True),
    "bf16": Written((7, 8), (3, 3), channels=32, filters=24, dtype=DType.BF16, padding=(1, 1)),
    "f16": Written((7, 8), (3, 3), channels=5, filters=24, dtype=DType.F16, padding=(1, 1), bias=True),
    "turned": Written((7, 8), (3, 3), channels=32, filters=24, transposed=True),
    "spread": Written(
        (7, 8), (3, 3), channels=20, filters=40, transposed=True, stride=(2, 2), padding=(1, 1), more=(1, 1)
    ),
    "spread volume": Written(
        (3, 4, 5),
        (4, 4, 4),
        channels=17,
        filters=20,
        transposed=True,
        stride=(2, 2, 2),
        padding=(1, 1, 1),
        residual=True,
        bias=True,
        activation="hardswish",
    ),
    "spread by three": Written((5, 6), (5, 5), channels=20, filters=20, transposed=True, stride=(3, 3)),
    "results that no tap meets": Written(
        (4, 6), (3, 3), channels=17, filters=20, transposed=True, stride=(5, 5), padding=(1, 1), dilation=(2, 2)
    ),
    "many kinds": Written(
        (5, 7, 9),
        (3, 3, 3),
        channels=17,
        filters=33,
        transposed=True,
        stride=(2, 2, 2),
        padding=(1, 1, 1),
        dilation=(2, 2, 2),
    ),
    "spread long lines": Written(
        (3, 110), (3, 3), channels=17, filters=20, transposed=True, stride=(2, 2), padding=(1, 1), batch=1, bias=True
    ),
    "long lines of sectors": Written((2, 200), (3, 3), channels=8, filters=72, padding=(1, 1), batch=1, bias=True),
    "half made of nothing": Written(
        (12, 40),
        (3, 3),
        channels=17,
        filters=20,
        transposed=True,
        stride=(2, 2),
        padding=(1, 1),
        dilation=(2, 2),
        bias=True,
        activation="hardswish",
    ),
    "half made of nothing in f16": Written(
        (4, 7),
        (3, 3),
        channels=8,
        filters=9,
        groups=2,
        transposed=True,
        stride=(2, 2),
        dilation=(2, 2),
        dtype=DType.F16,
        bias=True,
    ),
    "many tiles": Written((30, 40), (3, 3), channels=24, filters=72),
    "slices with lines that have no results": Written((4, 40, 13), (3, 9, 3), channels=17, filters=20, bias=True),
    "strided slices": Written((7, 7, 4), (4, 3, 3), channels=20, filters=31, stride=(3, 1, 2), groups=2, batch=1),
    "kinds as rows": Written(
        (3, 4, 5), (3, 4, 5), channels=8, filters=7, groups=2, transposed=True, stride=(2, 2, 2), padding=(1, 1, 2)
    ),
    "spread groups": Written(
        (4, 6),
        (3, 5),
        channels=8,
        filters=16,
        groups=2,
        transposed=True,
        stride=(2, 3),
        padding=(1, 2),
        dilation=(2, 1),
    ),
}
ALLOWED = {DType.F32: 5e-4, DType.F16: 6e-4, DType.BF16: 4e-3}  # relative, in the mean square


def _specs(form: Written) -> dict[str, TensorSpec]:
    names = ["x", "w", *(["bias"] if form.bias else []), *(["residual"] if form.residual else [])]
    return {
        name: TensorSpec.contiguous(form.dtype, tuple(one.shape)) for name, one in zip(names, form.draw(), strict=True)
    }


def _text(form: Written) -> str:
    return hopper_convolution(form.convolution, form.op_line).file()


# -- geometry --

WINDOWS = [
    (Window(Extent("x.shape[2]", 9), Extent("9", 9), taps, stride, padding, dilation), transposed, phases)
    for taps, stride, padding, dilation in itertools.product((1, 3, 4), (1, 2, 3), (0, 2), (1, 2))
    for transposed in (False, True)
    for phases in ((stride, 2 * stride) if transposed else (1, 2, 4))
]


def test_positions_and_shifts_say_where_results_come_from() -> None:
    """Every pair of an element and a tap that makes a result, and no other."""
    for window, transposed, phases in WINDOWS:
        axis = Axis(window, transposed, phases)
        found = {
            (position * phases + phase, position * axis.modulus + shift - axis.margin, tap)
            for position in range(12)
            for shift, taps in axis.taps_of_shifts.items()
            for phase, tap in taps.items()
        }
        assert min(axis.taps_of_shifts) == 0
        for result, tap in itertools.product(range(12 * phases), range(window.taps)):
            over = result + window.padding - tap * window.dilation
            if not transposed:
                element = result * window.stride - window.padding + tap * window.dilation
                assert (result, element, tap) in found
            elif over % window.stride == 0:
                assert (result, over // window.stride, tap) in found
        assert len(found) == len({(result, tap) for result, _, tap in found})


def test_few_filters_take_turns_with_neighbouring_results() -> None:
    assert Geometry(FORMS["rows"].convolution).phases == 1
    assert Geometry(Written((9, 9), (3, 3), channels=32, filters=32).convolution).phases == 2
    assert Geometry(Written((9, 9), (3, 3), channels=32, filters=16).convolution).phases == 4
    assert Geometry(Written((9, 9), (3, 3), channels=3, filters=64).convolution).fold == 2


def test_results_are_stored_before_where_no_tap_meets_half_of_them() -> None:
    many, some = Geometry(FORMS["many kinds"].convolution), Geometry(FORMS["results that no tap meets"].convolution)
    assert (many.is_filled, many.made) == (True, (3,))
    assert (some.is_filled, some.made) == (False, (0, 1, 2, 3, 4))
    assert not Geometry(replace(FORMS["many kinds"], residual=True).convolution).is_filled


def test_kinds_of_few_filters_are_rows_of_one_product() -> None:
    form = FORMS["kinds as rows"]
    found = {count: Geometry(replace(form, filters=count).convolution) for count in (8, 16, 17)}
    assert {count: one.row_kinds for count, one in found.items()} == {8: 4, 16: 2, 17: 1}
    assert found[8].made == (0,)
    assert found[8].kinds[1:] == ((), (), ())
    met = {tap for pair in found[8].kinds[0] for tap in pair.taps if tap >= 0}
    assert met == set(range(12))
    assert Geometry(FORMS["results that no tap meets"].convolution).row_kinds == 1


def test_phases_that_no_tap_meets_are_no_rows() -> None:
    assert Geometry(FORMS["many kinds"].convolution).row_phases == (1,)
    assert len(Geometry(FORMS["results that no tap meets"].convolution).row_phases) == 3


# -- files --


@pytest.mark.parametrize("name", ["rows", "pairs of positions", "spread groups"])
def test_a_file_is_read_and_applies(name: str) -> None:
    _check_applies(FORMS[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
def test_every_file_is_read_and_applies(name: str) -> None:
    _check_applies(FORMS[name])


def _check_applies(form: Written) -> None:
    assert can_write(form.convolution)
    file = parse(_text(form), "conv.cu")
    assert evaluate(file, _specs(form), H200).build_request() is not None
    with pytest.raises(DoesNotApply, match=r"device\.cc"):
        evaluate(file, _specs(form), PROFILES["A100"])


def test_large_slots_are_as_many_as_fit() -> None:
    form = Written((6, 20, 20), (3, 3, 3), channels=48, filters=48, transposed=True)
    constants = dict(evaluate(parse(_text(form), "conv.cu"), _specs(form), H200).constants)
    assert (constants["X_SLOTS"], constants["W_SLOTS"]) == (4, 5)


@pytest.mark.parametrize(("width", "tall"), [(20, True), (400, False)])
def test_a_slot_serves_all_taps_of_the_height_of_short_lines(width: int, tall: bool) -> None:
    form = Written((6, 20, width), (3, 3, 3), channels=48, filters=48)
    constants = dict(evaluate(parse(_text(form), "conv.cu"), _specs(form), H200).constants)
    assert (constants["TALL"], constants["HALO"]) == (tall, 2 + 2 * width if tall else 2)
    assert Geometry(replace(form, stride=(1, 2, 1)).convolution).more_lines == 0


@pytest.mark.parametrize(
    ("changes", "rows"),
    [({}, 64), ({"transposed": True}, 128), ({"precision": Precision.STRICT}, 128), ({"channels": 16}, 128)],
)
def test_tiles_are_narrow_where_lines_have_gaps_between(changes: dict[str, Any], rows: int) -> None:
    form = replace(Written((9, 12), (3, 3), channels=24, filters=128), **changes)
    constants = dict(evaluate(parse(_text(form), "conv.cu"), _specs(form), H200).constants)
    assert constants["MI"] * 64 == rows


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
def test_a_file_builds_and_spills_little(name: str) -> None:
    form = FORMS[name]
    built = build_plan(parse(_text(form), "conv.cu"), _specs(form), H200, isolated=False)
    assert not isinstance(built, BuildFailure), built
    assert built.build is not None
    for launch in built.plan.launches:
        assert built.build.kernel(launch.kernel).resources.spill_store_bytes <= 200, (
            launch.kernel
        )  # pairs of positions: 196


def test_what_is_left_to_others() -> None:
    assert not can_write(Written((9, 9), (3, 3), groups=4).convolution)  # depthwise
    assert not can_write(
        Written((200,), (64,), channels=32, filters=64).convolution
    )  # more taps than code has room for


def test_taps_of_the_height_are_those_beside_one_tap_of_depth() -> None:
    form = Written((7, 7, 5), (4, 3, 3), channels=20, filters=31, stride=(3, 1, 2))
    assert Geometry(form.convolution).lines_of_kinds == (3,)
    assert Geometry(replace(form, stride=(3, 2, 2)).convolution).lines_of_kinds == (3,)


# -- emulated --


def _run(form: Written, tensors: list[torch.Tensor], folder: Path, schedules: int = 1) -> torch.Tensor:
    """In as few blocks as there can be, so that each has several tiles."""
    path = folder / "conv.cu"
    path.write_text(_text(form).replace("device.sms", "1"))
    call = tilewright.load(str(path)).emulate(*tensors, gpu="H200", schedules=schedules)
    assert call.findings == ()
    assert isinstance(call.results, torch.Tensor)
    return call.results


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
def test_convolutions_run_emulated_in_any_order(name: str, tmp_path: Path) -> None:
    form = FORMS[name]
    tensors = form.draw()
    found, truth = _run(form, tensors, tmp_path, 3), form.truth(tensors)
    assert (found.double() - truth).norm() <= ALLOWED[form.dtype] * truth.norm()


@pytest.mark.slow
@pytest.mark.parametrize("overlap", ["false", "true"])
@pytest.mark.parametrize(
    "name",
    [
        "rows",
        "strided line",
        "pairs of positions",
        "spread",
        "spread by three",
        "results that no tap meets",
        "residual",
    ],
)
def test_results_are_stored_line_by_line(name: str, overlap: str, tmp_path: Path) -> None:
    _check_lines(FORMS[name], overlap, tmp_path / "conv.cu")


def test_results_of_a_spread_line_are_stored(tmp_path: Path) -> None:
    form = Written((2, 9), (3, 3), channels=8, filters=5, transposed=True, stride=(2, 3), dilation=(1, 2), batch=1)
    _check_lines(form, "false", tmp_path / "conv.cu")


def _check_lines(form: Written, overlap: str, path: Path) -> None:
    """As if lines were long, so that each is stored by itself."""
    text = _text(form).replace("device.sms", "1").replace("LONG_LINE = WIDTH_PHASES > 1 ? 192 : 0", "LONG_LINE = 1")
    assert "LONG_LINE = 1;" in text
    text = text.replace("(is_within || y_width % SECTOR != 0)", "(is_within || true)")
    assert "(is_within || true);" in text
    path.write_text(re.sub(r"tune    OVERLAP = \S+ . \S+", f"const   OVERLAP = {overlap}", text))
    tensors = form.draw()
    call = tilewright.load(str(path)).emulate(*tensors, gpu="H200", schedules=1)
    assert call.findings == ()
    assert isinstance(call.results, torch.Tensor)
    truth = form.truth(tensors)
    assert (call.results.double() - truth).norm() <= ALLOWED[form.dtype] * truth.norm()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["long lines", "pairs of positions", "spread", "many tiles"])
def test_tiles_that_meet_at_sectors_leave_nothing_out(name: str, tmp_path: Path) -> None:
    form = FORMS[name]
    tensors = form.draw()
    path = tmp_path / "conv.cu"
    path.write_text(_text(form).replace("tune    OVERLAP = false | true", "const   OVERLAP = true"))
    call = tilewright.load(str(path)).emulate(*tensors, gpu="H200", schedules=2)
    assert call.findings == ()
    assert isinstance(call.results, torch.Tensor)
    truth = form.truth(tensors)
    assert (call.results.double() - truth).norm() <= ALLOWED[form.dtype] * truth.norm()


SHORT = {  # with lines of one result
    "planes": Written((9, 3), (3, 3), channels=9, filters=65, bias=True),
    "few channels": Written((35, 10), (11, 11), channels=1, filters=2, stride=(4, 4), padding=(2, 2)),
    "volume of planes": Written((7, 5, 3), (3, 3, 3), channels=2, filters=5),
    "line of planes": Written((3,), (3,), channels=3, filters=70, batch=6),
    "rows": Written((9, 3), (3, 3), channels=20, filters=65),
    "rows of few filters": Written((40, 1), (3, 3), channels=20, filters=16, padding=(1, 1), batch=3),
    "volume of rows": Written((7, 5, 3), (3, 3, 3), channels=17, filters=33),
    "line of rows": Written((3,), (3,), channels=33, filters=70, batch=6),
    "turned planes": Written((40, 1), (3, 3), channels=3, filters=16, padding=(1, 1), transposed=True, batch=3),
    "turned rows": Written((9, 1), (3, 3), channels=20, filters=65, padding=(1, 1), transposed=True),
    "spread planes": Written((5, 1), (3, 3), channels=5, filters=9, stride=(2, 2), padding=(1, 1), transposed=True),
    "spread volume": Written(
        (3, 3, 1), (3, 3, 3), channels=18, filters=20, stride=(2, 2, 2), padding=(1, 1, 1), transposed=True
    ),
}


def _check_short_lines(form: Written, longer: Sequence[int], overlap: str, path: Path) -> None:
    """One file, called with lines of one result and with longer ones."""
    text = _text(form).replace("device.sms", "1")
    path.write_text(re.sub(r"tune    OVERLAP = \S+ . \S+", f"const   OVERLAP = {overlap}", text))
    operation = tilewright.load(str(path))
    for more in longer:
        stride = 1 if form.transposed else form.windows[-1].stride
        wider = replace(form, lengths=(*form.lengths[:-1], form.lengths[-1] + more * stride))
        tensors = wider.draw()
        call = operation.emulate(*tensors, gpu="H200", schedules=1)
        assert call.findings == (), more
        assert isinstance(call.results, torch.Tensor)
        truth = wider.truth(tensors)
        assert (call.results.double() - truth).norm() <= ALLOWED[form.dtype] * truth.norm(), more


def test_lines_of_one_result_are_stored_in_their_places(tmp_path: Path) -> None:
    _check_short_lines(SHORT["volume of planes"], (0,), "true", tmp_path / "conv.cu")


@pytest.mark.slow
@pytest.mark.parametrize("overlap", ["false", "true"])
@pytest.mark.parametrize("name", SHORT)
def test_short_lines_are_stored_in_their_places(name: str, overlap: str, tmp_path: Path) -> None:
    _check_short_lines(SHORT[name], (0, 1, 2, 5, 8, 9), overlap, tmp_path / "conv.cu")


@pytest.mark.slow
@pytest.mark.parametrize("overlap", ["false", "true"])
def test_many_short_lines_are_stored_in_their_places(overlap: str, tmp_path: Path) -> None:
    """A tile ends anywhere in a line of them: where the next one's results are shared, those may be several lines."""
    form = Written((515, 3), (3, 3), channels=1, filters=1, batch=1)
    _check_short_lines(form, (0, 1, 2, 5, 6, 8, 9), overlap, tmp_path / "conv.cu")


Change = Callable[[torch.Tensor], torch.Tensor]


def _with(x: torch.Tensor, image: int, value: float) -> torch.Tensor:
    """One element of an image replaced."""
    x = x.clone()
    x[image, 1, 4, 5] = value
    return x


def _by_image(x: torch.Tensor, *scales: float) -> torch.Tensor:
    return x * torch.tensor(scales)[:, None, None, None]


INPUTS: dict[str, Change] = {
    "as they are": lambda x: x,
    "large": lambda x: x * 1e6,
    "small": lambda x: x * 1e-6,
    "very small": lambda x: x * 1e-30,
    "one image small": lambda x: _by_image(x, 1.0, 1e-7),
    "one image large": lambda x: _by_image(x, 1e7, 1.0),
    "one outlier": lambda x: _with(x, 0, 1e8),
    "one small number among zeros": lambda x: _with(x * 0, 1, 1e-6),
    "many sizes": lambda x: x * torch.exp(4 * torch.randn(x.shape)),
}
WEIGHTS: dict[str, Change] = {
    "as they are": lambda w: w,
    "small": lambda w: w * 1e-20,
    "close to the largest": lambda w: w * 1e36,
    "filters of many sizes": lambda w: w * torch.exp(8 * torch.randn(len(w)))[:, None, None, None],
    "one outlier in a filter": lambda w: _with_weight(w, 1e8),
}


def _with_weight(w: torch.Tensor, value: float) -> torch.Tensor:
    w = w.clone()
    w[3, 2, 1, 1] = value
    return w


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rows", "planes"])
def test_numbers_that_f16_does_not_hold_are_made_again(name: str, tmp_path: Path) -> None:
    """As exact as TF32 for each result: within 2^-10 of the sum of the magnitudes of what it is made from."""
    form = FORMS[name]
    for (of_x, change_x), (of_w, change_w) in itertools.product(INPUTS.items(), WEIGHTS.items()):
        if "as they are" not in (of_x, of_w):
            continue
        x, w, bias = form.draw()
        tensors = [change_x(x), change_w(w), bias * 0]
        _check_each(form, _run(form, tensors, tmp_path), tensors, f"{of_x}, {of_w}")


def _check_each(form: Written, found: torch.Tensor, tensors: list[torch.Tensor], said: str) -> None:
    truth, magnitudes = form.truth(tensors), form.truth([one.abs() for one in tensors])
    assert ((found.double() - truth).abs() <= 2.0**-10 * magnitudes + 1e-37).all(), said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "made_again"), [((1.0, 1e-5), False), ((0.01, 1e-5), True), ((1.0, 1e-5, 1e-5), True), ((1e5,), True)]
)
def test_few_numbers_are_made_again_where_more_than_a_single_one_is_small(
    values: tuple[float, ...], made_again: bool, tmp_path: Path
) -> None:
    """What is made again shows, for it stores another number here."""
    form = Written((3, 4), (3, 3), channels=1, filters=2, batch=1, padding=(1, 1))
    x, w = form.draw()
    x = torch.zeros_like(x)
    x.view(-1)[: len(values)] = torch.tensor(values)
    path = tmp_path / "conv.cu"
    path.write_text(re.sub(r"y\[at\] = .*;", "y[at] = 1000.f;", _text(form)))
    found = tilewright.load(str(path)).emulate(x, w, gpu="H200", schedules=1).results
    assert isinstance(found, torch.Tensor)
    assert (found == 1000).all() == made_again
    if not made_again:
        truth, magnitudes = form.truth([x, w]), form.truth([x.abs(), w.abs()])
        assert ((found.double() - truth).abs() <= 2.0**-10 * magnitudes + 2.0**-25 * w.abs().max()).all()


@pytest.mark.slow
def test_what_is_not_finite_stays_where_it_is(tmp_path: Path) -> None:
    form = FORMS["pairs of positions"]
    x, w = form.draw()
    x[0, 1, 2, 2, 3], x[1, 0, 0, 0, 0] = torch.inf, torch.nan
    truth, found = form.truth([x, w]), _run(form, [x, w], tmp_path)
    assert torch.equal(found.isnan(), truth.isnan())
    assert torch.equal(found.isinf(), truth.isinf())
