"""Calls judged in parts, on the CPU: where they can be cut, and that the parts say what the whole says."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.verify import tasks

from tilewright.records import Task
from tilewright.verify import large, parts
from tilewright.verify.distributions import ValueTraits
from tilewright.verify.expectation import expectations, in_f64
from tilewright.verify.large import Findings, LargeCall, judge_large
from tilewright.verify.tolerance import compare

Function = Callable[..., Any]
F = torch.nn.functional


def accumulate(y: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
    return y + delta


def tall(x: torch.Tensor) -> torch.Tensor:
    """Another operation beyond 16 rows."""
    return torch.softmax(x, -1) if x.shape[0] > 16 else torch.log_softmax(x, -1)


IMAGE = tasks.task(
    "conv",
    {"x": "f32 b c h", "w": "f32 o c k"},
    "f32 b o h2",
    {"b": 3, "c": 2, "h": 9, "o": 4, "k": 3, "h2": 7},
)
ROWS_COLS = tasks.task("any", {"x": "f32 rows cols"}, "f32 rows cols", {"rows": 37, "cols": 70})

CUT = {
    "pointwise": (tasks.DOUBLE, lambda v: 2 * v + 1, ("n",)),
    "softmax": (tasks.SOFTMAX, lambda logits: torch.softmax(logits, -1), ("rows",)),
    "layernorm": (
        tasks.LAYERNORM,
        lambda x, weight, bias: F.layer_norm(x, x.shape[-1:], weight, bias),
        ("rows",),
    ),
    "mean": (tasks.MEAN, lambda samples: samples.mean(-1), ("rows",)),
    "matmul": (tasks.MATMUL, lambda a, b: a @ b, ("m", "n")),
    "argmax": (tasks.ARGMAX, lambda scores: scores.argmax(-1), ("rows",)),
    "in place": (tasks.ACCUMULATE, accumulate, ("n",)),
    "gather": (tasks.ROWS, lambda table, index: table[index], ("n", "width")),
    "convolution": (IMAGE, lambda x, w: F.conv1d(x, w), ("b", "o")),
    "sum of all": (tasks.TOTAL, lambda terms: terms.sum().reshape(1), ()),
    "scan down": (ROWS_COLS, lambda x: x.cumsum(0), ("cols",)),
    "causal": (ROWS_COLS, lambda x: x.triu(), ()),
    "counts rows": (ROWS_COLS, lambda x: x + torch.arange(x.shape[0])[:, None], ("cols",)),
    "normalised by all": (ROWS_COLS, lambda x: x / x.norm(), ()),
    "insists on its sizes": (ROWS_COLS, lambda x: x.view(37, 70) * 2, ()),
    "neighbours": (ROWS_COLS, lambda x: x + x.roll(1, 1), ("rows",)),
    "branches on rows": (ROWS_COLS, tall, ()),
}


def small(task: Task, most: int = 40) -> Task:
    return replace(task, dimensions=tuple(replace(one, size=min(one.size, most)) for one in task.dimensions))


def inputs_of(task: Task, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for name, spec in task.specs().items():
        if spec.dtype.is_float:
            made[name] = torch.randn(spec.shape, generator=generator)
        else:
            made[name] = torch.randint(0, task.sizes["entries"], spec.shape, generator=generator)
    return made


def large_call(task: Task, function: Function, tensors: dict[str, torch.Tensor], made: torch.Tensor) -> LargeCall:
    def call(given: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return (function(**{name: one.clone() for name, one in given.items()}),)

    return LargeCall(task, task.sizes, call, tensors, {"out": made}, ValueTraits(), lambda expected, comparison: True)


@pytest.fixture(autouse=True)
def nothing_known() -> None:
    large._known.clear()


@pytest.mark.parametrize("name", CUT)
def test_a_reference_is_cut_where_it_is_independent(name: str) -> None:
    task, function, wanted = CUT[name]
    task = small(task, 70 if task is ROWS_COLS else 24)
    tensors = inputs_of(task)
    made = function(**tensors)
    call = large_call(task, function, tensors, made)
    assert tuple(large.independent_axes(call, most=made.numel() // 5 + 1)[0]) == wanted
    found = judge_large(call, most=made.numel() // 5 + 1)
    assert not found.wrong
    assert found.elements == made.numel()
    assert (found.parts > 1) or not wanted or name == "argmax"
    assert bool(found.note) is not bool(wanted)


def test_parts_are_the_whole_and_about_as_large_as_asked() -> None:
    task = small(tasks.MATMUL, 64)
    axes = parts.sliceable(task)
    assert list(axes) == ["m", "n"]
    pieces = parts.parts_of(task, task.sizes, axes, 3000)
    assert {(len(one["m"]), len(one["n"])) for one in pieces} == {(16, 16)}, "the rows and the columns in turn"
    seen = torch.zeros(64, 64)
    cutting = parts.Cutting(axes)
    for one in pieces:
        cutting.result(seen, 0, one).add_(1)
        assert cutting.inputs({"a": seen, "b": seen}, one)["b"].shape == (64, 16)
    assert bool((seen == 1).all())


def test_weights_that_every_part_takes_are_not_worked_on_for_every_row() -> None:
    layer = tasks.task("layer", {"x": "f32 m k", "w": "f32 n k"}, "f32 m", {"m": 64, "k": 32, "n": 128})
    axes = parts.sliceable(layer)
    assert list(axes) == ["m"]
    pieces = parts.parts_of(layer, layer.sizes, axes, 64)
    assert len(pieces) == 1, "64 rows are half of what the weights are"
    longer = {**layer.sizes, "m": 512}
    assert {len(one["m"]) for one in parts.parts_of(layer, longer, axes, 64)} == {64}, (
        "a part is as large as the weights"
    )


def test_an_image_that_every_part_takes_is_not_worked_on_for_every_channel() -> None:
    shapes = {"x": "f32 batch length", "w": "f32 channels taps"}
    sizes = {"batch": 4, "length": 4096, "channels": 64, "taps": 3}
    task = tasks.task("images", shapes, "f32 batch channels", sizes)
    axes = parts.sliceable(task)
    assert list(axes) == ["batch", "channels"]
    pieces = parts.parts_of(task, task.sizes, axes, 4000)
    assert {(len(one["batch"]), len(one["channels"])) for one in pieces} == {(1, 64)}, "no channel alone"


# -- faults --


def _nothing(made: torch.Tensor, place: int) -> torch.Tensor:
    return made


def _one_element(made: torch.Tensor, place: int) -> torch.Tensor:
    made.view(-1)[place % made.numel()] += 1.0
    return made


def _a_nan(made: torch.Tensor, place: int) -> torch.Tensor:
    made.view(-1)[place % made.numel()] = math.nan
    return made


def _last_row(made: torch.Tensor, place: int) -> torch.Tensor:
    made[-1] = 0.5
    return made


def _coarse(made: torch.Tensor, place: int) -> torch.Tensor:
    return made.to(torch.float8_e5m2).float()


def _last_bit(made: torch.Tensor, place: int) -> torch.Tensor:
    return torch.nextafter(made, torch.full_like(made, math.inf))


FAULTS = {one.__name__: one for one in (_nothing, _one_element, _a_nan, _last_row, _coarse, _last_bit)}
OPERATIONS = ("pointwise", "softmax", "layernorm", "matmul", "mean", "convolution", "in place", "gather")


def whole(call: LargeCall) -> bool:
    """Whether the usual way, all at once, finds it right."""
    (expected,) = expectations(call.call, call.tensors, call.task.precision)
    return compare(call.found["out"], expected).right


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(OPERATIONS), st.sampled_from(sorted(FAULTS)), st.integers(0, 10**6), st.integers(400, 4000))
def test_parts_say_what_the_whole_says(operation: str, fault: str, place: int, most: int) -> None:
    task, function, _ = CUT[operation]
    task = small(task, 20 + place % 50)
    if operation == "convolution":
        task = IMAGE
    tensors = inputs_of(task, place)
    made = FAULTS[fault](function(**tensors).clone(), place)
    call = large_call(task, function, tensors, made)
    large._known.clear()
    found: Findings = judge_large(call, most)
    assert (not found.wrong) is whole(call)
    assert (not found.wrong) is (fault in ("_nothing", "_last_bit"))
    if fault in ("_one_element", "_a_nan"):
        (told,) = found.wrong
        at = [int(one) for one in torch.unravel_index(torch.tensor(place % made.numel()), made.shape)]
        assert list(told.first[0].index) == at, "where it lies in the whole result"
        assert told.elements == made.numel()


def test_a_reference_that_is_run_whole_is_compared_in_pieces() -> None:
    task = ROWS_COLS
    tensors = inputs_of(task)
    made = tensors["x"] / tensors["x"].norm()
    made[30, 4] += 0.1
    found = judge_large(large_call(task, CUT["normalised by all"][1], tensors, made), most=700)
    (told,) = found.wrong
    assert told.first[0].index == (30, 4)
    assert found.parts == 4
    assert "in no dimension" in found.note


def test_a_reference_too_large_to_be_run_whole_is_judged_in_parts_all_the_same() -> None:
    def softmax(logits: torch.Tensor) -> torch.Tensor:
        if logits.shape[0] > 8:
            raise torch.OutOfMemoryError("no room")
        return torch.softmax(logits, -1)

    task = small(tasks.SOFTMAX)
    tensors = inputs_of(task)
    made = torch.softmax(tensors["logits"], -1)
    found = judge_large(large_call(task, softmax, tensors, made), most=640)
    assert not found.wrong
    assert found.elements == made.numel()
    assert "could not be compared with a whole call" in found.note


def test_the_arithmetic_of_the_search_is_f64() -> None:
    """A sum in f32 differs with the number of rows that are added beside it; in f64 that is not seen."""
    seen = []

    def call(given: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        seen.append(given["x"].dtype)
        return (given["x"] * 2,)

    in_f64(call, {"x": torch.ones(3)})
    assert seen == [torch.float64]
