"""How a call is made: with content while there is memory for it, else without."""

from __future__ import annotations

import pytest
import torch

from tilewright.records import DType
from tilewright.tasks import trials
from tilewright.tasks.probing_records import ProbeTensor
from tilewright.tasks.trials import Trials

X = (ProbeTensor("x", DType.F32, ("rows", "cols"), None),)


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
    tried = Trials(torch.neg, (ProbeTensor("input", DType.F32, ("rows",), None),), (), 60.0)
    found = [tried.attempt({"input": (rows,)}) is not None for rows in range(2, 6)]
    assert found == [True, True, True, False]
    tried.prolong(1.0)
    assert tried.spent < 1
    assert tried.attempt({"input": (5,)}) is not None
