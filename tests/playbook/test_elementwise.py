"""Every row of the table of elementwise operations, in a kernel and against f64."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.playbook.agreement import load_structure
from tests.playbook.placed import Placed

from tilewright.playbook.elementwise import TABLE, Takes
from tilewright.playbook.understanding import any_graph

_X, _Y = "x: {0}[rows, cols]", "x: {0}[rows, cols]; y: {0}[rows, cols]"
_SPECIAL = torch.tensor([0.0, -0.0, 1.0, -1.0, 0.5, 2.5, 30.0, -0.003])
# what calls an operation by another name than torch's
_CALLS = {"neg": "-x", "ndtri": "torch.special.ndtri(x)", "erfcx": "torch.special.erfcx(x)", "relu": "torch.relu(x)"}
_CALLS |= {f"bessel_{one}": f"torch.special.{one}(x)" for one in ("i0", "i1", "i0e", "i1e")}
_CALLS |= {f"bessel_{one}": f"torch.special.bessel_{one}(x)" for one in ("j0", "j1")}
_CALLS |= {one: f"F.{one}(x)" for one in ("silu", "mish", "hardswish", "hardsigmoid")} | {
    "log_sigmoid": "F.logsigmoid(x)"
}
_WITHIN = {  # where a function is a number, and well-conditioned
    **dict.fromkeys(("log", "log2", "log10", "sqrt", "rsqrt"), "x.abs() + 0.1"),
    **dict.fromkeys(("asin", "acos", "atanh", "erfinv"), "x.tanh() * 0.9"),
    **dict.fromkeys(("tan", "log1p"), "x.abs().tanh()"),
    "acosh": "x.abs() + 1.5",
    "ndtri": "x.sigmoid() * 0.9 + 0.05",
}
_OF_WHOLE = ("gcd", "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not")


def _call(name: str, operands: int) -> str:
    call = _CALLS.get(name, f"torch.{name}(x{', y' if operands > 1 else ''})")
    return call.replace("(x", f"({_WITHIN[name]}", 1) if name in _WITHIN else call


ROWS = [one for one in TABLE if one.takes is not Takes.OWN]
_FLOATS = [one for one in ROWS if one.name not in _OF_WHOLE]


@pytest.mark.parametrize("first", range(0, len(_FLOATS), 10))
def test_they_are_right_in_f32(first: int, tmp_path: Path) -> None:
    rows = _FLOATS[first : first + 10]
    body = "return " + ", ".join(f"{_call(one.name, one.operands)}.to(torch.float32)" for one in rows)
    results = "; ".join(["f32[rows, cols]"] * len(rows))
    case = Placed("several", body, _Y.format("f32"), results, ())
    op = load_structure(any_graph(case.task, case.ask).draft, case.task, tmp_path)
    x, y = torch.randn(3, 37), torch.randn(3, 37)
    x[0, :8] = _SPECIAL
    double = case.function.callable(x.double(), y.double())
    for row, got, own in zip(rows, op(x, y), double, strict=True):
        want = torch.nextafter(x, y) if row.name == "nextafter" else own
        assert torch.allclose(got.double(), want.double(), 4e-6, 2e-6, equal_nan=True), row.name


def test_they_are_right_of_whole_numbers(tmp_path: Path) -> None:
    rows = [one for one in ROWS if one.name in _OF_WHOLE]
    body = "return " + ", ".join(_call(one.name, one.operands) for one in rows)
    case = Placed("whole", body, _Y.format("i32"), "; ".join(["i32[rows, cols]"] * len(rows)), ())
    op = load_structure(any_graph(case.task, case.ask).draft, case.task, tmp_path)
    x, y = (torch.randint(-60, 60, (3, 37), dtype=torch.int32) for _ in range(2))
    for row, got, want in zip(rows, op(x, y), case.function.callable(x, y), strict=True):
        assert torch.equal(got, want), row.name


def test_what_differs_in_16_bits_is_refused() -> None:
    case = Placed("next", "return torch.nextafter(x, y)", _Y.format("bf16"), "bf16[rows, cols]", ())
    with pytest.raises(Exception, match="nextafter of f32"):
        any_graph(case.task, case.ask)


def test_a_name_is_in_the_table_once() -> None:
    assert len({one.name for one in TABLE}) == len(TABLE)
