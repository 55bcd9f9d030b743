"""Decorated functions and finished kernels in torch's hands: compiled, exported, differentiated; what they return."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import DefragResult

import pytest
import torch
from tests.frontends.recordings import put_into_library
from tests.tasks.in_process import ask_here

import tilewright as tw
from tilewright.frontends.api.decorator import DecoratedKernel, KernelFamily
from tilewright.frontends.api.make import Made
from tilewright.runtime import ReferenceUsed
from tilewright.store import LibraryKernel

POINTWISE = """\
//! op      {name}({parameters}) -> {results}
{outs}
//! need    x.dtype == f32
//! let     n = x.numel
//! launch  {name}<<<ceil_div(n, 128), 128>>>(x, {results}, n)
__global__ void {name}(const float* x, {pointers}, long long n) {{
  long long i = blockIdx.x * 128ll + threadIdx.x;
  if (i < n) {{ {body} }}
}}
"""
FACTOR = 3.0


def pointwise(name: str, **bodies: str) -> str:
    return POINTWISE.format(
        name=name,
        parameters="x",
        results=", ".join(bodies),
        outs="\n".join(f"//! out     {one}: x.dtype[x.shape]" for one in bodies),
        pointers=", ".join(f"float* {one}" for one in bodies),
        body=" ".join(f"{one}[i] = {body};" for one, body in bodies.items()),
    )


IN_PLACE = """\
//! op      added_up(y!, x)
//! need    x.dtype == f32 and y.dtype == f32 and x.numel == y.numel
//! let     n = x.numel
//! launch  added_up<<<ceil_div(n, 128), 128>>>(y, x, n)
__global__ void added_up(float* y, const float* x, long long n) {
  long long i = blockIdx.x * 128ll + threadIdx.x;
  if (i < n) y[i] += x[i];
}
"""


def cubed(x: torch.Tensor) -> torch.Tensor:
    return x * x * x * FACTOR


def as_dict(x: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"low": x - 1, "high": x + 1}


def as_pair(x: torch.Tensor) -> Any:
    return DefragResult(x - 1, x + 1)  # a named tuple of the standard library


def nested(x: torch.Tensor) -> list[Any]:
    return [x - 1, (None, x + 1)]


def added_up(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    y += x
    return y


KERNELS = {
    cubed: pointwise("cubed", y=f"{FACTOR}f * x[i] * x[i] * x[i]"),
    as_dict: pointwise("as_dict", y0="x[i] - 1.f", y1="x[i] + 1.f"),
    nested: pointwise("nested", y0="x[i] - 1.f", y1="x[i] + 1.f"),
    as_pair: pointwise("as_pair", y0="x[i] - 1.f", y1="x[i] + 1.f"),
    added_up: IN_PLACE,
}


@pytest.fixture(scope="module", autouse=True)
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, LibraryKernel]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEWRIGHT_HOME", str(tmp_path_factory.mktemp("home")))
        ask_here(patch)
        kernels = {}
        for function, text in KERNELS.items():
            shapes = {"y": "4x6:f32", "x": "4x6:f32"} if function is added_up else {"x": "4x6:f32"}
            kernels[function.__name__] = put_into_library(function, text, **shapes)
        yield kernels


@pytest.fixture
def x() -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(4, 6)


def arguments(function: Any, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (x.clone(), x) if function is added_up else (x,)


def quietly(function: Any, *args: Any) -> Any:
    """A call in which the kernel must run: the function itself would be said."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", ReferenceUsed)
        return function(*args)


@pytest.mark.parametrize("function", KERNELS, ids=lambda function: function.__name__)
def test_what_is_returned_has_the_form_that_the_function_gives_it(
    function: Any, x: torch.Tensor, library: dict[str, LibraryKernel]
) -> None:
    expected = function(*arguments(function, x))
    for made in (tw.kernel(function), Made(library[function.__name__], None, own_reference=True)):
        given = arguments(function, x)
        answer = quietly(made, *given)
        assert type(answer) is type(expected)
        torch.testing.assert_close(answer, expected)
        assert (answer is given[0]) == (function is added_up)
        if function is not added_up:  # nobody can hand back a tensor of another dtype but the function itself
            with pytest.warns(ReferenceUsed):
                assert type(made(x.double())) is type(expected)


@pytest.mark.parametrize("function", KERNELS, ids=lambda function: function.__name__)
@pytest.mark.parametrize("kind", ["decorated", "made"])
def test_compiled_whole_at_any_size(
    function: Any, kind: str, x: torch.Tensor, library: dict[str, LibraryKernel]
) -> None:
    kernel = tw.kernel(function) if kind == "decorated" else Made(library[function.__name__], None, own_reference=True)
    graphs: list[str] = []

    def backend(module: Any, inputs: Any) -> Any:
        graphs.append(module.code)
        return module.forward

    torch._dynamo.reset()
    compiled = torch.compile(lambda *args: kernel(*args), backend=backend, fullgraph=True, dynamic=True)
    for rows in (4, 5, 9):
        given = arguments(function, torch.randn(rows, 6))
        expected = function(*[one.clone() for one in given])
        answer = quietly(compiled, *given)
        torch.testing.assert_close(answer, expected)
        assert type(answer) is type(expected)
        assert (answer is given[0]) == (function is added_up)
    assert len(graphs) == 1
    assert f"torch.ops.tilewright.{function.__name__}_" in graphs[0]


def test_a_global_that_changes_is_noticed_in_compiled_code(x: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    decorated = tw.kernel(cubed)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: decorated(x), backend="eager", fullgraph=True)
    torch.testing.assert_close(quietly(compiled, x), cubed(x))
    monkeypatch.setitem(globals(), "FACTOR", 5.0)
    with pytest.warns(ReferenceUsed):
        torch.testing.assert_close(compiled(x), 5.0 * x * x * x)


def test_a_kernel_made_later_is_taken_by_compiled_calls_too(
    x: torch.Tensor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    decorated = tw.kernel(cubed)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: decorated(x), backend="eager", fullgraph=True)
    with monkeypatch.context() as patch:
        patch.setenv("TILEWRIGHT_HOME", str(tmp_path))  # where nothing has been made yet
        with pytest.warns(ReferenceUsed):
            compiled(x)
    torch.testing.assert_close(compiled(x), cubed(x))  # nobody has told it of the other library
    decorated._operations.clear()
    called: list[Any] = []
    monkeypatch.setattr(KernelFamily, "run_values", lambda self, *values: called.append(values) or cubed(*values))
    compiled(x)
    assert not called
    decorated.forget()
    torch.testing.assert_close(quietly(compiled, x), cubed(x))
    assert len(called) == 1


class Holds(torch.nn.Module):
    """A kernel as a part of a module, and one as its method."""

    def __init__(self, kernel: Any) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((6,), 0.5))
        self.kernel = kernel

    @tw.kernel
    def doubled(self, x: torch.Tensor) -> torch.Tensor:
        return x + x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.kernel(x * self.weight)


@pytest.mark.parametrize("kind", ["decorated", "made"])
def test_exported_with_the_operator_and_differentiated(
    kind: str, x: torch.Tensor, library: dict[str, LibraryKernel]
) -> None:
    kernel = tw.kernel(cubed) if kind == "decorated" else Made(library["cubed"], None, own_reference=True)
    module = Holds(kernel)
    with pytest.warns(ReferenceUsed, match="backward"):
        module(x).sum().backward()
    weight = module.weight.detach().clone().requires_grad_()
    cubed(x * weight).sum().backward()
    torch.testing.assert_close(module.weight.grad, weight.grad)
    for strict in (False, True):
        torch._dynamo.reset()
        shapes = {"x": {0: torch.export.Dim("rows")}}
        exported = torch.export.export(module, (x,), dynamic_shapes=shapes, strict=strict)
        targets = [str(node.target) for node in exported.graph.nodes if node.op == "call_function"]
        assert any(target.startswith("tilewright.cubed_") for target in targets)
        assert not any("empty" in target for target in targets)
        other = torch.randn(9, 6)
        torch.testing.assert_close(exported.module()(other), cubed(other * module.weight))


def test_a_method_gets_its_object(x: torch.Tensor) -> None:
    module = Holds(None)
    with pytest.warns(ReferenceUsed, match="doubled"):
        torch.testing.assert_close(module.doubled(x), x + x)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: module.doubled(x), backend="eager", fullgraph=True)
    with pytest.warns(ReferenceUsed, match="traced"):
        torch.testing.assert_close(compiled(x), x + x)
    assert isinstance(Holds.doubled, DecoratedKernel)


@tw.kernel
def here(x: torch.Tensor) -> torch.Tensor:
    return x - 1


def test_copies_and_pickles_are_the_same_kernel(x: torch.Tensor, library: dict[str, LibraryKernel]) -> None:
    made = Made(library["cubed"], None, own_reference=True)
    for kernel in (made, tw.kernel(cubed), Holds(made), Holds(tw.kernel(cubed))):
        for copied in (copy.deepcopy(kernel), copy.copy(kernel), pickle.loads(pickle.dumps(kernel))):
            with torch.no_grad():
                torch.testing.assert_close(quietly(copied, x), quietly(kernel, x))
    assert pickle.loads(pickle.dumps(here)) is here
    assert pickle.loads(pickle.dumps(Holds.doubled)) is Holds.doubled


def test_under_autocast_an_op_takes_tensors_as_they_are(x: torch.Tensor) -> None:
    @tw.kernel
    def product(a: torch.Tensor) -> torch.Tensor:
        return a @ a.t()

    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (x @ x.t()).dtype is torch.bfloat16
        with pytest.warns(ReferenceUsed):
            assert product(x).dtype is torch.float32
        assert quietly(tw.kernel(cubed), x).dtype is torch.float32
