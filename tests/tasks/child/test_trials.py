"""How a call is made: with content while there is memory for it, else without; sizes that torch does not look at."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tilewright.records import DType, TensorInput
from tilewright.tasks.child import trials
from tilewright.tasks.child.trials import StrictCalls, StrictFunctions, Trials

X = (TensorInput("x", DType.F32, ("rows", "cols")),)


def test_a_call_that_needs_too_much_memory_is_made_without_content() -> None:
    devices = []

    def positions(x: torch.Tensor) -> torch.Tensor:
        devices.append(x.device.type)
        if x.device.type == "cpu" and len(x) > 100:
            raise MemoryError
        return torch.softmax(x @ x.mT, -1) @ x

    made = Trials(positions, X, (), 60.0).run({"x": (4096, 16)})
    assert made.shapes == ((4096, 16),)
    assert devices == ["cpu", "meta"]


def test_what_is_refused_with_content_is_refused() -> None:
    def narrow(x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] > 8:
            raise ValueError("too wide")
        return x * 2

    tried = Trials(narrow, X, (), 60.0)
    assert tried.attempt({"x": (4, 9)}) is None
    assert tried.attempt({"x": (4, 8)}) is not None


def test_after_a_slow_call_smaller_ones_still_have_content(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "_SLOW_SECONDS", 0.0)
    devices = []

    def double(x: torch.Tensor) -> torch.Tensor:
        devices.append(x.device.type)
        return x * 2

    tried = Trials(double, X, (), 60.0)
    for rows in (4096, 4095, 512):
        tried.run({"x": (rows, 1024)})
    assert devices == ["cpu", "meta", "cpu"]


def test_trials_that_are_used_up_can_be_prolonged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "_TRIALS", 2)
    tried = Trials(torch.neg, (TensorInput("input", DType.F32, ("rows",)),), (), 60.0)
    found = [tried.attempt({"input": (rows,)}) is not None for rows in range(2, 6)]
    assert found == [True, True, True, False]
    tried.prolong(1.0)
    assert tried.spent < 1
    assert tried.attempt({"input": (5,)}) is not None


CHANNELS = (4, 6)
SIZES = (7, 1)
BIASES = (None, 4, 6, 3, 12)


def calls() -> Iterator[tuple[Any, tuple[int, ...], tuple[int, ...], int | None, dict[str, Any]]]:
    weights = ((6, 4, 3), (4, 6, 3), (6, 2, 3), (4, 4, 2))
    for channels, size, weight, bias in itertools.product(CHANNELS, SIZES, weights, BIASES):
        for more in ({}, {"groups": 2}, {"padding": 1}, {"dilation": 3}):
            for function in (F.conv1d, F.conv_transpose1d):
                yield function, (2, channels, size), weight, bias, more


def succeeds(function: Any, shapes: list[tuple[int, ...] | None], more: dict[str, Any]) -> bool:
    given = [None if shape is None else torch.zeros(shape) for shape in shapes]
    try:
        return bool(function(*given, **more).numel())
    except (RuntimeError, ValueError):
        return False


def test_convolutions_are_refused_alike() -> None:
    outcomes = set()
    for function, image, weight, bias, more in calls():
        shapes = [image, weight, None if bias is None else (bias,)]
        real = succeeds(function, shapes, more)
        with torch.device("meta"), StrictCalls():
            without_content = succeeds(function, shapes, more)
        assert without_content == real, (function.__name__, shapes, more)
        outcomes.add(real)
    assert outcomes == {True, False}


@pytest.mark.parametrize("padding", [0, (1, 0)])
def test_an_image_smaller_than_its_filter_is_refused(padding: Any) -> None:
    with (
        torch.device("meta"),
        StrictCalls(),
        pytest.raises(ValueError, match=r"a filter of \[3, 2, 5, 5\] .* is larger"),
    ):
        F.conv2d(torch.empty(1, 2, 6, 4), torch.empty(3, 2, 5, 5), padding=padding)


@pytest.mark.parametrize(
    ("name", "axis"), [("weight_ih_l0", 0), ("weight_ih_l0", 1), ("weight_hh_l0", 0), ("weight_hh_l1", 1)]
)
def test_an_lstm_refuses_weights_that_do_not_fit(name: str, axis: int) -> None:
    layer = torch.nn.LSTM(6, 8, 2)
    state = dict(layer.named_parameters())
    with StrictFunctions(), torch.no_grad():
        torch.func.functional_call(layer, state, (torch.rand(5, 3, 6),))
        shape = list(state[name].shape)
        shape[axis] += 4
        with pytest.raises((ValueError, RuntimeError)):
            torch.func.functional_call(layer, {**state, name: torch.rand(shape)}, (torch.rand(5, 3, 6),))
