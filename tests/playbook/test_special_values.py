"""NaN, infinities, zeros, denormals and huge numbers: elements come out as PyTorch has them, in every structure.

Every operation that families and loops have rules for stands in a table here. PyTorch itself leaves open, and nothing
here compares: sums and products that overflow or vanish in one order and not in another, which of several NaN a
pooling's index names, and bilinear interpolation between infinities, which is not the same in eager and compiled code.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.playbook.agreement import load_structure
from tests.playbook.functions import Function, ask_of, task_of
from tests.playbook.placed import Placed

from tilewright.playbook.families import Structure
from tilewright.playbook.understanding import answer, any_graph
from tilewright.records import Task

_HELD = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
_ENDS = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-40, -1e-40, 1.3e-38, 3e38, -3e38)
_NUMBERS = (
    *_ENDS,
    0.5,
    -0.5,
    1.0,
    -1.0,
    2.5,
    3.0,
    -3.0,
    6.5,
    -6.5,
    25.0,
    -25.0,
    89.0,
    -89.0,
    1e-3,
    1e10,
    -1e19,
    -100.3,
)
_OF_ONE = """
F.hardsigmoid(x);F.hardswish(x);F.mish(x);F.silu(x);torch.sigmoid(x);torch.relu(x);F.elu(x);F.celu(x);F.selu(x)
F.softplus(x);F.relu6(x);F.gelu(x);F.gelu(x, approximate='tanh');F.logsigmoid(x);F.softsign(x);F.tanhshrink(x)
F.softshrink(x, 0.5);F.hardshrink(x, 0.5);F.leaky_relu(x);F.hardtanh(x);F.threshold(x, 0.1, 2.0);x.clamp(-1, 1)
x.clamp(min=0.5);x.clamp(max=0.5);torch.exp(x);torch.exp2(x);torch.expm1(x);torch.log(x);torch.log2(x);torch.log10(x)
torch.log1p(x);torch.sqrt(x);torch.rsqrt(x);torch.reciprocal(x);torch.abs(x);torch.neg(x);torch.sign(x);torch.sgn(x)
torch.square(x);torch.sin(x);torch.cos(x);torch.tan(x);torch.tanh(x);torch.sinh(x);torch.cosh(x);torch.asin(x)
torch.acos(x);torch.atan(x);torch.asinh(x);torch.acosh(x);torch.atanh(x);torch.erf(x);torch.erfc(x);torch.floor(x)
torch.ceil(x);torch.round(x);torch.trunc(x);torch.frac(x);torch.round(x, decimals=2);torch.isnan(x);torch.isinf(x)
torch.isfinite(x);torch.nan_to_num(x);x ** 2;x ** 3;x ** 4;x ** 0.5;x ** -0.5;x ** -1;x ** 0;x ** 1.5;x ** -2;2.0 ** x
x == 0;x != x;x > 0.5;x <= -3;x.bool();x.logical_not();x.half();x.bfloat16().float();torch.remainder(x, 3.0)
torch.remainder(x, -0.75);torch.fmod(x, -0.75);x // 3.0;x // -0.75;torch.div(x, 3.0, rounding_mode='trunc');x / 3.0
torch.sinc(x);torch.lgamma(x);torch.digamma(x);torch.logit(x, 1e-3);torch.special.entr(x);torch.erfinv(x);x * 0.0
x.masked_fill(x > 1, float('-inf'));torch.where(x > 0, x, 0.0);torch.isposinf(x);torch.clamp(x, float('-inf'), 3.0)
"""
_OF_TWO = """
torch.clamp(x, y, y + 1);torch.clamp(x, min=y);torch.clamp(x, max=y);torch.maximum(x, y);torch.minimum(x, y)
torch.lerp(x, y, 0.25);torch.lerp(x, y, 0.75);torch.lerp(x, y, y);torch.where(x > y, x, y);torch.add(x, y, alpha=0.5)
torch.fmax(x, y);torch.fmin(x, y);x + y;x - y;x * y;x / y;torch.atan2(x, y);torch.pow(x, y);torch.remainder(x, y)
torch.fmod(x, y);x // y;torch.div(x, y, rounding_mode='trunc');torch.logaddexp(x, y);torch.xlogy(x, y);x == y;x != y
x < y;x <= y;x > y;x >= y;x.logical_and(y);x.logical_xor(y);torch.heaviside(x, y);torch.addcmul(x, x, y)
torch.addcdiv(x, y, x);x * F.hardsigmoid(y);torch.rsub(x, y, alpha=0.5);F.prelu(x, y[:1, 0]);torch.special.xlog1py(x, y)
F.mse_loss(x, y, reduction='none');F.smooth_l1_loss(x, y, reduction='none');F.huber_loss(x, y, reduction='none')
"""
_OF_ROWS = """
x.sum(-1);x.mean(-1);x.prod(-1);x.var(-1);x.std(-1);x.norm(dim=-1);x.norm(1, -1);x.norm(0, -1);x.norm(3, -1)
torch.nansum(x, -1);F.layer_norm(x, x.shape[-1:]);F.rms_norm(x, x.shape[-1:]);F.normalize(x, dim=-1);x.cumsum(-1)
x.cumprod(-1);x.sum(0);x.prod(0);F.pairwise_distance(x, x.flip(0))
"""
_OF_ORDER = """
x.amax(-1);x.amin(-1);x.max(-1).values;x.max(-1).indices;x.min(-1).indices;x.argmax(-1);x.argmin(-1);x.any(-1);x.all(-1)
x.max();x.min();x.norm(float('inf'), -1);x.norm(float('-inf'), -1);torch.logsumexp(x, -1);torch.softmax(x, -1)
torch.log_softmax(x, -1);torch.count_nonzero(x, -1);torch.cummax(x, -1).values;torch.cummax(x, -1).indices
torch.cummin(x, -1).values;torch.cummin(x, -1).indices;x.sort(-1).values;x.sort(-1, descending=True).values
x.argsort(dim=-1, stable=True);x.argsort(dim=-1, stable=True, descending=True);torch.topk(x, 3, -1).values
torch.topk(x, 3, -1, largest=False).values;x.kthvalue(2, -1).values;x.amax(0);x.argmin(0);x.softmax(0)
torch.logcumsumexp(x, -1)
"""
_POOLED = (
    ("F.max_pool2d(x, 3, 1, 1)", "f32[batch, heads, height, width]"),
    ("F.avg_pool2d(x, 3, 1, 1)", "f32[batch, heads, height, width]"),
    ("F.avg_pool2d(x, 3, 1, 1, count_include_pad=False)", "f32[batch, heads, height, width]"),
    ("F.max_pool2d(x, 2)", "f32[batch, heads, h = height / 2, w = width / 2]"),
    ("F.avg_pool2d(x, 2)", "f32[batch, heads, h = height / 2, w = width / 2]"),
    ("F.adaptive_avg_pool2d(x, 3)", "f32[batch, heads, 3, 3]"),
)


def _expressions(text: str) -> list[str]:
    return [one for line in text.strip().split("\n") for one in line.split(";")]


def _same(found: torch.Tensor, own: torch.Tensor, truth: torch.Tensor, least: float) -> torch.Tensor:
    """Where a result is what PyTorch has at the dtype, or in f64; numbers up to a few roundings, and to `least`."""
    if not found.is_floating_point():
        return (found == own) | (found == truth.to(found.dtype))
    wide, held = found.double(), truth.to(found.dtype).double()
    same = torch.zeros_like(found, dtype=torch.bool)
    for other in (own.double(), held):
        same |= (wide == other) | (wide.isnan() & other.isnan())
    off = (own.double() - truth.double()).abs().nan_to_num(0.0, 0.0, 0.0)
    return same | ((wide - held).abs() <= 64 * torch.finfo(found.dtype).eps * held.abs() + 8 * off + least)


def _structures(task: Task, function: Function, every: bool = True) -> Iterator[tuple[str, Structure]]:
    """Loops, and whatever a family writes or its first version alone."""
    ask = ask_of(function)
    found = (answer(task, ask), any_graph(task, ask))
    for step in {one.id: one for each in found for one in (each.every if every else (each.draft,))}.values():
        yield step.id, step


def _check(
    function: Function,
    task: Task,
    given: tuple[torch.Tensor, ...],
    folder: Path,
    names: list[str],
    least: float = 1e-37,
    every: bool = True,
) -> None:
    own, truth = function.callable(*given), function.callable(*(one.double() for one in given))
    for id, step in _structures(task, function, every):
        found = load_structure(step, task, folder)(*given)
        for name, one, *others in zip(names, *map(_several, (found, own, truth)), strict=True):
            right = _same(one, *others, least)
            places = (~right).nonzero()[:3].tolist()
            shown = [(place, *(float(each[tuple(place)]) for each in (one, *others))) for place in places]
            assert not shown, f"{id}: {name}: place, found, PyTorch's, in f64: {shown}"


def _several(results: torch.Tensor | tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return results if isinstance(results, tuple) else (results,)


_TOGETHER = [
    pytest.param(dtype, some, id=f"{dtype}-{some[0]}")
    for dtype, texts in (("f32", (_OF_ONE, _OF_TWO)), ("bf16", (_OF_TWO,)))
    for text in texts
    for start in range(0, len(_expressions(text)), 14)
    for some in (_expressions(text)[start : start + 14],)
]


@pytest.mark.parametrize(("dtype", "expressions"), _TOGETHER)
def test_what_is_no_number_is_none_in_the_result(dtype: str, expressions: list[str], tmp_path: Path) -> None:
    function = Function("ends", f"return {', '.join(expressions)}", f"x: {dtype}[rows, cols]; y: {dtype}[rows, cols]")
    numbers = torch.tensor(_NUMBERS).to(_HELD[dtype])
    x = numbers[:, None].expand(len(numbers), len(numbers)).contiguous()
    task = task_of(function, {"rows": 64, "cols": 32})
    _check(function, task, (x, x.t().contiguous()), tmp_path, expressions)


def _rows(ends: tuple[float, ...]) -> torch.Tensor:
    """Rows with none, one, several or nothing but ends."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(40, 64, generator=generator)
    for number, row in enumerate(rows):
        count = (0, 1, 2, 5, 30, 64)[number % 6]
        at = torch.randperm(64, generator=generator)[:count]
        chosen = torch.randint(0, len(ends), (count,), generator=generator)
        row[at] = torch.tensor(ends)[chosen if number % 5 else torch.full_like(chosen, number // 5 % len(ends))]
    return torch.cat([rows, torch.tensor(ends)[:, None].expand(-1, 64)])


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["first", "every"])
@pytest.mark.parametrize("expression", [*_expressions(_OF_ROWS), *_expressions(_OF_ORDER)])
def test_rows_of_what_is_no_number(expression: str, every: bool, tmp_path: Path) -> None:
    x = _rows(_ENDS if expression in _expressions(_OF_ORDER) else _ENDS[:5])
    function = Function("ends", f"return {expression}")
    task = task_of(function, {"rows": len(x), "cols": 64})
    _check(function, task, (x,), tmp_path, [expression], least=4e-6, every=every)  # sums to 0 of numbers around 1


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    x, drawn = (make(3, 2, 8, 8, generator=generator) for make in (torch.randn, torch.rand))
    for low, number in ((0.0, math.nan), (0.12, -math.inf), (0.24, math.inf)):
        x[(drawn > low) & (drawn < low + 0.08)] = number
    x[0, 0], x[0, 1], x[1, 0, :4] = -math.inf, math.nan, -math.inf
    return x


@pytest.mark.parametrize(("expression", "results"), _POOLED)
def test_windows_of_what_is_no_number(expression: str, results: str, images: torch.Tensor, tmp_path: Path) -> None:
    case = Placed("ends", f"return {expression}", "x: f32[batch, heads, height, width]", results, ())
    _check(case.function, case.task, (images,), tmp_path, [expression])


def test_a_place_in_a_window_of_nothing_but_minus_infinity_is_in_the_tensor(
    images: torch.Tensor, tmp_path: Path
) -> None:
    for numbers in ("3, 1, 1", "3, 1, 1, 2", "2, 2, 1"):
        body = f"return F.max_pool2d(x, {numbers}, return_indices=True)[1]"
        size = {"3, 1, 1, 2": "- 2", "2, 2, 1": "/ 2 + 1"}.get(numbers, "+ 0")
        results = f"i64[batch, heads, h = height {size}, w = width {size}]"
        case = Placed("places", body, "x: f32[batch, heads, height, width]", results, ())
        x = images.nan_to_num(-math.inf, math.inf, -math.inf)
        (step,) = any_graph(case.task, case.ask).every
        assert torch.equal(load_structure(step, case.task, tmp_path)(x), case.function.callable(x)), numbers


@pytest.mark.parametrize("largest", [True, False])
def test_what_is_chosen_of_a_row_of_nan_is_in_the_row(largest: bool, tmp_path: Path) -> None:
    function = Function("chosen", f"return torch.topk(x, 3, -1, largest={largest})")
    x = _rows(_ENDS)
    task = task_of(function, {"rows": len(x), "cols": 64})
    for id, step in _structures(task, function):
        values, places = load_structure(step, task, tmp_path)(x)
        assert ((places >= 0) & (places < 64)).all(), id
        assert torch.equal(x.gather(-1, places).nan_to_num(7.0), values.nan_to_num(7.0)), id
