"""A function as a text of its own."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import bfloat16

import tilewright as tw
from tilewright.tasks.errors import BadArgument
from tilewright.tasks.lifting.definition_source import FunctionText, function_text

EPS = 1e-3
SCALES = (1.0, (2, 3))
x = object()  # a parameter of the same name has nothing to do with it
LOCK = x


def function_source(function: Callable[..., Any]) -> str:
    return function_text(function).source


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
    text, used = (found := function_text(uses_much)).source, found.globals
    assert {"F", "math", "halved", "again", "EPS", "SCALES"} <= {one.name for one in used}
    assert all(one.holds() for one in used)
    numbers[0] = 4.0  # in place
    assert [one.name for one in used if not one.holds()] == ["SCALES"]
    assert function_text(uses_much).source != text


@torch.no_grad()
def wrapped(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def calls_wrapped(x: torch.Tensor) -> torch.Tensor:
    return wrapped(x)


def uses_an_object(x: torch.Tensor) -> torch.Tensor:
    return x if LOCK else x * 2


def test_what_a_text_cannot_hold_is_named() -> None:
    with pytest.raises(BadArgument, match="uses LOCK, a object"):
        function_source(uses_an_object)
    with pytest.raises(BadArgument, match="no plain Python function"):
        function_source(torch.nn.functional.gelu)
    with pytest.raises(BadArgument, match="a lambda cannot be found"):
        function_source(eval("lambda x: x"))
    with pytest.raises(BadArgument, match="calls wrapped, which a decorator has wrapped"):
        function_source(calls_wrapped)


def run(text: FunctionText, *args: Any, **kwargs: Any) -> Any:
    namespace: dict[str, Any] = {}
    exec(text.source, namespace)
    return namespace[text.function](*args, **kwargs)


def closing_over(around: Any, weight: Any) -> Any:
    def closes_over(x: torch.Tensor, shift: float = 1.0) -> torch.Tensor:
        return halved(x) * around * weight + shift

    return closes_over


def test_numbers_from_around_are_held_and_tensors_refused() -> None:
    weight, value = 0.5, torch.randn(4, 8)
    function = closing_over(3.0, weight)
    text = function_text(function)
    assert "around = 3.0" in text.source
    torch.testing.assert_close(run(text, value, 0.5), function(value, 0.5))
    with pytest.raises(BadArgument, match="closes_over uses the tensor weight of the enclosing function; pass it as a"):
        function_text(closing_over(3.0, torch.randn(8)))


def test_a_number_from_around_that_has_become_another_is_noticed() -> None:
    around = 2.0

    def grow() -> None:
        nonlocal around
        around = 3.0

    def closes_over(x: torch.Tensor) -> torch.Tensor:
        return x * around

    found = function_text(closes_over).globals
    assert all(one.holds() for one in found)
    grow()
    assert not all(one.holds() for one in found)


def test_lambdas_are_found_by_where_they_stand() -> None:
    value = torch.randn(4)
    for number, one in enumerate([lambda x: x + 1, lambda x: x * 2, lambda x: (lambda y: y * 5)(x) + EPS]):
        torch.testing.assert_close(run(function_text(one), value), one(value), msg=str(number))
    tripled = lambda x: x * 3  # noqa: E731
    assert function_text(tripled).function == "tripled"


# -- what is read of modules of one's own --

MODULES = {
    "tw_consts": "EPS = 0.25\nLOWEST = float('-inf')\nTABLE = {}\n",
    "tw_helpers": """\
import math
import torch.nn.functional as F
from torch import bfloat16
import tw_consts

EPS = 4.0

def sized(x):
    return F.relu(x) * EPS + tw_consts.EPS + math.pi

class Holder:
    value = 1
""",
    "tw_ops": """\
import torch
import tw_consts
import tw_consts as C
import tw_helpers
from tw_helpers import sized as measured

EPS = 0.5

def reads(x, low: float = tw_consts.LOWEST):
    y = [tw_helpers.F.gelu(part) for part in (x,)]
    return torch.clamp(measured(y[0]) + tw_helpers.sized(x) * EPS + C.EPS.real, min=low).to(tw_helpers.bfloat16)

def reads_a_table(x):
    return x * tw_consts.TABLE["a"]

def reads_a_class(x):
    return x * tw_helpers.Holder.value

def reads_a_whole_module(x):
    return x * getattr(tw_consts, "EPS")

def reads_what_is_not_there(x):
    return x * tw_consts.NOTHING

def imports_inside(x):
    from tw_consts import EPS as inner
    return x * inner

def has_a_variable_of_the_name(x):
    return x * C.EPS + sum(C for C in (1, 2))
""",
}


@pytest.fixture
def ops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("tw_ops")
    for name in MODULES:
        sys.modules.pop(name, None)


def test_what_is_read_of_own_modules_stands_in_the_text(ops: ModuleType) -> None:
    text = function_source(ops.reads)
    assert "tw_consts_EPS = 0.25" in text
    assert "import tw_" not in text
    assert "from tw_" not in text
    namespace: dict[str, Any] = {}
    exec(text, namespace)  # three constants called EPS, each where it belongs
    value = torch.randn(4, 8)
    torch.testing.assert_close(namespace["reads"](value), ops.reads(value))
    assert text.count("F.relu") == 1  # one function, by whatever way it is reached


def test_a_change_in_a_module_of_ones_own_is_a_change_of_the_text(ops: ModuleType) -> None:
    helpers, consts = sys.modules["tw_helpers"], sys.modules["tw_consts"]
    text, used = (found := function_text(ops.reads)).source, found.globals
    assert all(one.holds() for one in used)
    for module, name, value in ((consts, "EPS", 0.75), (helpers, "EPS", 3.0), (helpers, "sized", halved)):
        before = getattr(module, name)
        setattr(module, name, value)
        assert not all(one.holds() for one in used), name
        changed = function_text(ops.reads).source
        assert changed != text, name
        namespace: dict[str, Any] = {}
        exec(changed, namespace)
        torch.testing.assert_close(namespace["reads"](torch.ones(3)), ops.reads(torch.ones(3)))
        setattr(module, name, before)
    assert all(one.holds() for one in used)


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        ("reads_a_table", "uses tw_consts.TABLE, a dict that a source text cannot hold; pass it as a parameter"),
        ("reads_a_class", "uses tw_helpers.Holder, the class Holder that a source text cannot hold"),
        ("reads_a_whole_module", "uses the module tw_consts as a whole.*write tw_consts.NAME"),
        ("reads_what_is_not_there", "uses tw_consts.NOTHING, and tw_consts has no such name"),
        ("imports_inside", "imports tw_consts inside it.*import it at the top of the file"),
        ("has_a_variable_of_the_name", "has a variable called C"),
    ],
)
def test_what_cannot_be_captured_is_named(ops: ModuleType, function: str, sentence: str) -> None:
    with pytest.raises(BadArgument, match=f"^{function} {sentence}"):
        function_source(getattr(ops, function))


def decorated_helper(x: torch.Tensor) -> torch.Tensor:
    return x + 1


helper = tw.kernel(decorated_helper)


def calls_a_kernel(x: torch.Tensor) -> torch.Tensor:
    return helper(x) * 2


def test_another_kernel_is_taken_as_its_function() -> None:
    namespace: dict[str, Any] = {}
    exec(function_source(calls_a_kernel), namespace)
    assert namespace["calls_a_kernel"](torch.ones(1)).item() == 4.0
