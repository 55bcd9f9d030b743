"""Products for Hopper on one: right in every layout, at odd sizes, and on numbers that f16 parts do not hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product as every
from pathlib import Path

import pytest
import torch
from tests.playbook.hopper_products import Product

import tilewright
from tilewright.playbook.gemms.program import Kept, Triangle
from tilewright.records import DType

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs a Hopper GPU"
    ),
]

LAYOUTS = tuple(every((False, True), (False, True)))
ALLOWED = {DType.F32: 5e-7, DType.F16: 5e-4, DType.BF16: 4e-3}  # relative, in the mean square

HALVES = (
    *(Product((1, 640, 1064, 416), DType.BF16, *layout) for layout in LAYOUTS),
    *(Product((3, 200, 264, 200), DType.F16, *layout, batched=True) for layout in LAYOUTS),
    Product((1, 8, 8, 8), DType.F16, True, True),
    Product((1, 4096, 4352, 136), DType.BF16),
    Product((1, 4096, 4352, 136), DType.BF16, bias=True, activation="gelu"),
    Product((1, 256, 264, 8200), DType.BF16, bias=True, activation="gelu", pieces=True),
    Product((1, 520, 776, 1000), DType.BF16, bias=True, activation="gelu"),
    Product((1, 520, 776, 1000), DType.F16, bias=True, activation="gelu", residual=True),
    Product((1, 4360, 4104, 4104), DType.BF16, b_transposed=True, bias=True, activation="gelu"),  # blocks share tiles
    Product((3, 1496, 2056, 3080), DType.F16, True, True, batched=True, residual=True),
    Product((1, 4360, 4104, 4104), DType.BF16),
    Product((1, 520, 520, 1000), DType.BF16, kept=Kept(Triangle.LOWER, 3)),
    Product((1, 520, 520, 200), DType.F16, bias=True, kept=Kept(Triangle.UPPER)),
)
SINGLES = (
    *(Product((1, *sizes), DType.F32, *layout) for sizes in ((640, 1064, 416), (203, 517, 301)) for layout in LAYOUTS),
    *(Product((3, 200, 264, 64), DType.F32, *layout, batched=True) for layout in LAYOUTS),
    Product((1, 1, 1, 1)),
    Product((1, 130, 4096, 20)),
    Product((1, 8320, 8452, 40)),
    Product((1, 300, 517, 40), bias=True),
    Product((1, 256, 512, 9000)),
    *(Product((1, 130, 256, 20001), DType.F32, *layout, pieces=True) for layout in LAYOUTS),
    Product((1, 520, 777, 1000), bias=True, activation="gelu", residual=True),
    Product((1, 512, 512, 512), kept=Kept(Triangle.UPPER, -2)),
    Product((1, 260, 260, 600), bias=True, kept=Kept(Triangle.LOWER, 1)),
    Product((1, 640, 1064, 416), fused=True),
    Product((1, 6000, 1032, 200), fused=True),
    Product((1, 6000, 1032, 200), b_transposed=True, fused=True),
    Product((1, 6000, 1032, 200), fused=True, ready_b=True),
    Product((3, 1000, 1032, 420), b_transposed=True, batched=True, fused=True, ready_b=True, bias=True),
    Product((3, 200, 264, 200), batched=True, fused=True, bias=True, activation="relu"),
    Product((1, 256, 260, 70004), fused=True, pieces=True),
    Product((1, 130, 1064, 420), b_transposed=True, fused=True, bias=True, activation="gelu"),
    Product((3, 200, 264, 200), b_transposed=True, batched=True, fused=True),
    Product((1, 128, 516, 70004), b_transposed=True, fused=True, pieces=True),
    Product((1, 512, 512, 512), fused=True, kept=Kept(Triangle.LOWER)),
)


def _run(form: Product, tensors: list[torch.Tensor], folder: Path) -> torch.Tensor:
    path = folder / "product.cu"
    path.write_text(form.text)
    operation = tilewright.load(str(path))
    found, again = operation(*tensors), operation(*tensors)
    assert isinstance(found, torch.Tensor)
    assert isinstance(again, torch.Tensor)
    assert torch.equal(found.nan_to_num(), again.nan_to_num())
    return found


def _error(found: torch.Tensor, truth: torch.Tensor) -> float:
    return float((found.double() - truth).norm() / truth.norm().clamp_min(1e-300))


@pytest.mark.parametrize("form", [*HALVES, *SINGLES], ids=str)
def test_products_are_right(form: Product, tmp_path: Path) -> None:
    tensors = form.draw("cuda")
    assert _error(_run(form, tensors, tmp_path), form.truth(tensors)) < ALLOWED[form.dtype]


def _outlier(size: float, rows: slice) -> tuple[torch.Tensor, torch.Tensor]:
    """One large number in rows, which meets zeros alone."""
    a, b = torch.randn(384, 1024, device="cuda"), torch.randn(1024, 512, device="cuda")
    a[rows, 300], b[300] = size, 0.0
    return a, b


def _scaled() -> tuple[torch.Tensor, torch.Tensor]:
    """Columns of a and rows of b far apart, their products alike."""
    far = 10.0 ** torch.empty(1024, device="cuda").uniform_(-6, 6)
    return torch.randn(384, 1024, device="cuda") * far, torch.randn(1024, 512, device="cuda") / far[:, None]


def _times(a: float, b: float) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(384, 1024, device="cuda") * a, torch.randn(1024, 512, device="cuda") * b


AWKWARD: dict[str, Callable[[], tuple[torch.Tensor, torch.Tensor]]] = {
    "an outlier of 1e8 in every row": lambda: _outlier(1e8, slice(None)),
    "an outlier of 1e12 in one row": lambda: _outlier(1e12, slice(200, 201)),
    "an outlier of 1e4": lambda: _outlier(1e4, slice(None)),
    "columns far apart": _scaled,
    "1e30 times 1e-30": lambda: _times(1e30, 1e-30),
    "denormals": lambda: _times(1e-40, 1e30),
    "zeros": lambda: _times(0.0, 1.0),
}


@pytest.mark.parametrize("name", AWKWARD)
@pytest.mark.parametrize(("fused", "ready_b"), [(False, False), (True, False), (True, True)])
def test_awkward_numbers_are_as_exact_as_in_f32(name: str, fused: bool, ready_b: bool, tmp_path: Path) -> None:
    a, b = AWKWARD[name]()
    form = Product((1, 384, 512, 1024), fused=fused, ready_b=ready_b)
    assert _error(_run(form, [a, b], tmp_path), form.truth([a, b])) < ALLOWED[DType.F32]
    other = replace(form, a_transposed=not fused, b_transposed=True)
    turned = [a if fused else a.T.contiguous(), b.T.contiguous()]
    assert _error(_run(other, turned, tmp_path), form.truth([a, b])) < ALLOWED[DType.F32]


def test_a_number_that_keeps_few_bits_is_found_among_many_tiles(tmp_path: Path) -> None:
    """It is all of two results: elsewhere it meets zeros, or numbers that it is nothing beside."""
    form = Product((1, 4096, 4352, 64))
    a, b = form.draw("cuda")
    a[3000, 5], b[:, 77] = 1e-12, 0.0
    a[7], b[5, 4300], b[5, 77] = 0.0, 1e-12, 1.0
    a[7, 5] = 1.0
    found, truth = _run(form, [a, b], tmp_path), form.truth([a, b])
    assert _error(found, truth) < ALLOWED[DType.F32]
    few = [(3000, 77), (7, 4300)]
    assert all(abs(float(found[place]) / 1e-12 - 1.0) < 1e-6 for place in few)


@pytest.mark.parametrize("fused", [False, True])
def test_infinities_and_nan_come_out_where_f32_has_them(fused: bool, tmp_path: Path) -> None:
    """Small whole numbers, so that sums are exact; products of infinities with zeros among them."""
    a = torch.randint(-2, 3, (384, 1024), device="cuda") / 2
    b = torch.randint(-2, 3, (1024, 512), device="cuda") / 2
    a[0, 3], a[1, 5], a[2, 5], b[7, 300] = torch.inf, -torch.inf, torch.nan, torch.inf
    a[130, 1], a[130, 2] = torch.inf, -torch.inf
    for turned in (False, True):
        form = Product((1, 384, 512, 1024), b_transposed=turned, fused=fused)
        found = _run(form, [a, b.T.contiguous() if turned else b], tmp_path)
        assert torch.equal(found.isnan(), (a @ b).isnan())
        assert torch.equal(found.nan_to_num(), (a @ b).nan_to_num())
