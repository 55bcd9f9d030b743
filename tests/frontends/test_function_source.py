"""A function as a text of its own."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import bfloat16

from tilewright.frontends.arguments import BadArgument
from tilewright.frontends.function_source import function_source, source_and_globals

EPS = 1e-3
SCALES = (1.0, (2, 3))
x = object()  # a parameter of the same name has nothing to do with it
LOCK = x


def halved(value: torch.Tensor) -> torch.Tensor:
    return value * 0.5 if value.dim() > 99 else again(value)


def again(value: torch.Tensor) -> torch.Tensor:
    return halved(value) if value.dim() > 99 else value / 2


def passes_through(function: Any) -> Any:
    return function


@passes_through
def uses_much(x: torch.Tensor, eps: float = EPS, *, times: int = 2) -> torch.Tensor:
    shifted = [F.gelu(part) + math.pi for part in (x,)]
    return halved(shifted[0].to(bfloat16).float()) * SCALES[1][0] + eps * times


def test_the_text_computes_what_the_function_does() -> None:
    namespace: dict[str, Any] = {}
    text = function_source(uses_much)
    exec(text, namespace)
    value = torch.randn(4, 8)
    torch.testing.assert_close(namespace["uses_much"](value), uses_much(value))
    torch.testing.assert_close(namespace["uses_much"](value, 0.5, times=3), uses_much(value, 0.5, times=3))
    for line in ("import torch.nn.functional as F", "import math", "from torch import bfloat16", "EPS = 0.001"):
        assert line in text, line
    assert "passes_through" not in text
    assert function_source(uses_much) == text


def test_what_a_text_was_made_from_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = [1.0]
    monkeypatch.setitem(globals(), "SCALES", (2.0, numbers))
    text, used = source_and_globals(uses_much)
    assert {"F", "math", "halved", "again", "EPS", "SCALES"} <= {one.name for one in used}
    assert all(one.is_as_it_was for one in used)
    numbers[0] = 4.0  # in place
    assert [one.name for one in used if not one.is_as_it_was] == ["SCALES"]
    assert source_and_globals(uses_much)[0] != text


def uses_an_object(x: torch.Tensor) -> torch.Tensor:
    return x if LOCK else x * 2


def test_what_a_text_cannot_hold_is_named() -> None:
    with pytest.raises(BadArgument, match="uses LOCK, a object"):
        function_source(uses_an_object)
    around = 3.0

    def closes_over(x: torch.Tensor) -> torch.Tensor:
        return x * around

    with pytest.raises(BadArgument, match="uses around of the function around it"):
        function_source(closes_over)
    with pytest.raises(BadArgument, match="no plain Python function"):
        function_source(torch.nn.functional.gelu)
    with pytest.raises(BadArgument, match="no plain function"):
        function_source(lambda x: x)
