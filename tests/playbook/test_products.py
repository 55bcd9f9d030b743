"""Products: what is read of a graph, and the kernel files written from it, run on the emulator against f64."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.playbook.agreement import check, load_structure
from tests.playbook.product_functions import BY_NAME, CHAINS, PRODUCTS, VECTORS, traced_of

from tilewright.playbook.families import Structure
from tilewright.playbook.gemms.algebra import DIAGONAL, SUMS
from tilewright.playbook.gemms.program import Gemm, Kept, Triangle
from tilewright.playbook.gemms.reading import read
from tilewright.playbook.tracing import probes_of, trace
from tilewright.playbook.understanding import answer
from tilewright.records import DType

_ODD = ({"m": 19, "n": 33, "k": 21, "j": 7}, {"m": 72, "n": 72, "k": 40, "j": 8}, {"m": 1, "n": 1, "k": 1, "j": 1})


def _product(name: str) -> Gemm:
    (stage,) = read(traced_of(name)).stages
    assert isinstance(stage, Gemm)
    return stage


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("plain", (True, "a.shape[1]"), (False, "b.shape[1]")),
        ("finished", (True, "x.shape[1]"), (True, "w.shape[1]")),
        ("first_turned", (False, "a.shape[1]"), (False, "b.shape[1]")),
        ("both_turned", (False, "a.shape[1]"), (True, "b.shape[1]")),
        ("four_dimensions", (True, "a.shape[3]"), (False, "b.shape[1]")),
        ("matrix_vector", (True, "a.shape[1]"), (True, "b.shape[0]")),
    ],
)
def test_operands_lie_as_they_are(name: str, first: tuple[bool, str], second: tuple[bool, str]) -> None:
    product = _product(name)
    found = [(one.along_k, one.pitch.expression) for one in (product.a, product.b)]
    assert found == [first, second]


def test_leading_dimensions_are_rows_and_batches_are_batches() -> None:
    assert _product("four_dimensions").m.expression == "a.shape[0] * a.shape[1] * a.shape[2]"
    assert _product("batched").batch.expression == "a.shape[0]"
    assert _product("shared").b.batch_pitch.expression == "0"
    assert _product("half_turned").output.dtype is DType.F32
    assert _product("lower").kept == Kept(Triangle.LOWER, 2)


def test_what_follows_a_product_alone_is_done_on_its_sums() -> None:
    places = {one.name: (one.varies, one.parts) for one in _product("finished").epilogue_inputs}
    assert places == {"bias": (True, ()), "residual": (True, None), "s": (False, None)}
    assert len(read(traced_of("three_dimensions")).stages) == 1, "a view between two steps ends nothing"
    stages = read(traced_of("gated")).stages
    assert [isinstance(one, Gemm) for one in stages] == [True, True, True]


def test_algebra_is_applied_and_told() -> None:
    for name, note in (("sum_of_columns", SUMS), ("mean_of_columns", SUMS), ("diagonal_first", DIAGONAL)):
        chain = read(traced_of(name))
        assert chain.notes == (note,)
        products = [one for one in chain.stages if isinstance(one, Gemm)]
        assert all(one.n.is_one for one in products)
    assert read(traced_of("then_softmax")).notes == ()


def test_a_window_is_traced_at_several_numbers_of_windows() -> None:
    task = traced_of("plain").task
    wide = replace(task, dimensions=tuple(replace(one, at_least=16) for one in task.dimensions))
    for name in task.sizes:
        assert len({probe.sizes[name] // 16 for probe in probes_of(wide).probes}) > 1


def test_graphs_with_products_go_to_the_family() -> None:
    assert {"product-hopper-parts", "product-tensor-cores", "product-tiles"} <= _structures("plain").keys()


def _check(step: Structure, name: str, all_sizes: tuple[dict[str, int], ...], folder: Path) -> None:
    function, task = BY_NAME[name], traced_of(name).task
    op = load_structure(step, task, folder)
    for sizes in all_sizes:
        check(op, function, task, {one.name: sizes.get(one.name, one.size) for one in task.dimensions})


def _structures(name: str, gpu: str = "H200") -> dict[str, Structure]:
    made = BY_NAME[name].callable
    found = answer(replace(traced_of(name).task, gpu=gpu), lambda request: trace(made, request))
    return {one.id: one for one in found.every}


@pytest.mark.parametrize(
    ("name", "id"),
    [
        ("finished", "loops"),
        ("first_turned", "product-tensor-cores"),
        ("half_linear", "product-tensor-cores"),
        ("matrix_vector", "product-vector"),
        ("upper", "loops"),
    ],
)
def test_a_product_is_right_at_odd_sizes(name: str, id: str, tmp_path: Path) -> None:
    _check(_structures(name)[id], name, _ODD[:1], tmp_path)


def test_infinities_are_where_f32_has_them(tmp_path: Path) -> None:
    """Of halves, whose small parts are zeros; infinity times zero would be no number."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randint(1, 5, shape, generator=generator) / 2 for shape in ((19, 21), (21, 33)))
    a[0, 3], a[2, 5], a[4, 9], b[7, 3], b[9, 6] = torch.inf, torch.nan, torch.inf, -torch.inf, -torch.inf
    b[3, 8] = 0.0
    op = load_structure(_structures("plain")["product-tensor-cores"], traced_of("plain").task, tmp_path)
    assert torch.equal(op(a, b).nan_to_num(7.0, 8.0, 9.0), (a @ b).nan_to_num(7.0, 8.0, 9.0))


@pytest.mark.parametrize(
    ("name", "id", "gpu"),
    [
        ("plain", "product-tensor-cores", "A100"),
        ("both_turned", "product-tensor-cores", "A100"),
        ("plain", "product-tiles", "A100"),
        ("plain", "product-hopper-parts", "H200"),
    ],
)
def test_what_overflows_is_infinite_as_in_f32(name: str, id: str, gpu: str, tmp_path: Path) -> None:
    """Huge numbers of both signs: the first sum that overflows decides, and no infinity meets the other."""
    made = load_structure(_structures(name, gpu)[id], traced_of(name).task, tmp_path)
    torch.manual_seed(3)
    a, b = torch.randn(20, 72) * 1e30, torch.randn(72, 20) * 1e30
    a[1], b[:, 2] = a[1].abs(), b[:, 2].abs()
    got = made(a.T.contiguous(), b.T.contiguous()) if name == "both_turned" else made(a, b)
    assert torch.isinf(got).all()
    assert got[1, 2] == torch.inf
    assert torch.isinf(a @ b).all()


def test_sums_over_columns_are_right(tmp_path: Path) -> None:
    first, *_ = (one for id, one in _structures("mean_of_columns").items() if id != "loops")
    _check(first, "mean_of_columns", _ODD[:1], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("gpu", ["T4", "A100", "L4", "H200"])
@pytest.mark.parametrize("name", [one.name for one in (*PRODUCTS, *VECTORS, *CHAINS)])
def test_every_structure_is_right_everywhere(
    name: str, gpu: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_EMULATE", gpu)
    for step in _structures(name, gpu).values():
        _check(step, name, _ODD, tmp_path)
