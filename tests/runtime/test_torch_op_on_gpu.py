"""Operations as torch's operators on a real GPU: compiled by Inductor, in CUDA graphs, exported, differentiated."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.runtime import plans
from tests.runtime.conftest import Make

from tilewright.runtime import NoKernelApplies, Operation, ReferenceUsed

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]

CUBE = plans.TWICE.replace("twice", "cube").replace("x[i] + x[i]", "x[i] * x[i] * x[i]")


def randn(*shape: int, **options: Any) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", **options)


@pytest.fixture
def cube(gpu_make: Make) -> Operation:
    return gpu_make(CUBE, reference=plans.cube_reference)


def quietly(function: Callable[..., Any], *args: Any) -> Any:
    """A call in which the kernel must run."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", ReferenceUsed)
        return function(*args)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_by_inductor(cube: Operation, mode: str, dynamic: bool) -> None:
    torch._dynamo.reset()
    function = torch.compile(lambda x: cube(x * 2) + 1, fullgraph=True, mode=mode, dynamic=dynamic)
    for rows in (64, 64, 64, 96, 128):
        x = randn(rows, 256)
        torch.testing.assert_close(quietly(function, x), (2 * x) ** 3 + 1, rtol=1e-4, atol=1e-4)


def test_inductor_keeps_the_strides_that_were_traced(gpu_make: Make) -> None:
    """What comes from a transposition is made contiguous by nobody: the reference runs, or it is refused."""
    torch._dynamo.reset()
    transposed = gpu_make(plans.TRANSPOSED)
    function = torch.compile(lambda x: transposed((x + 1).t().contiguous()) * 2, fullgraph=True)
    x = randn(64, 32)
    result = quietly(function, x)
    torch.testing.assert_close(result, (x + 1).t() * 2)
    strict = torch.compile(lambda x: transposed((x + 1).t()) * 2, fullgraph=True)
    with pytest.raises(NoKernelApplies, match="not contiguous"):
        strict(x)


def test_compiled_with_gradients(cube: Operation) -> None:
    torch._dynamo.reset()
    function = torch.compile(lambda x: (cube(x) * 2).sum(), fullgraph=True)
    x = randn(64, 256).requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReferenceUsed)
        function(x).backward()
        eager = x.detach().clone().requires_grad_()
        (cube(eager) * 2).sum().backward()
    torch.testing.assert_close(x.grad, 6 * x.detach() ** 2, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(eager.grad, x.grad)


def test_changed_in_place_in_compiled_code(gpu_make: Make) -> None:
    torch._dynamo.reset()
    accumulate = gpu_make(plans.IN_PLACE)

    def function(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        accumulate(y, x)
        return y * 2

    y, x = torch.ones(8, 64, device="cuda"), randn(8, 64)
    torch.testing.assert_close(quietly(torch.compile(function, fullgraph=True), y, x), (1 + x) * 2)
    torch.testing.assert_close(y, 1 + x)


def test_exported(cube: Operation) -> None:
    class Cubes(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return cube(x) + 1

    shapes = {"x": {0: torch.export.Dim("rows")}}
    exported = torch.export.export(Cubes(), (randn(8, 64),), dynamic_shapes=shapes)
    x = randn(24, 64)
    torch.testing.assert_close(quietly(exported.module(), x), x**3 + 1, rtol=1e-4, atol=1e-4)


def test_opcheck(cube: Operation) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReferenceUsed)
        for x in (randn(8, 64).requires_grad_(), randn(8, 64).t()):
            torch.library.opcheck(cube.torch_op, (x,))


def test_known_calls_notice_what_goes_on(cube: Operation) -> None:
    """The quick way has an entry for these tensors; a mode, a trace or a tangent must still be seen."""
    from torch.fx.experimental.proxy_tensor import make_fx

    x = randn(8, 64)
    quietly(cube, x)
    for before_dispatch in (False, True):
        graph = make_fx(lambda x: cube(x), pre_dispatch=before_dispatch)(x)
        assert "tilewright.cube_" in graph.code
    assert "tilewright::cube_" in str(torch.jit.trace(lambda x: cube(x), (x,)).graph)
    torch.testing.assert_close(quietly(torch.vmap(cube), x), x**3, rtol=1e-4, atol=1e-4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReferenceUsed)
        _, tangent = torch.func.jvp(cube, (x,), (x,))
        torch.testing.assert_close(tangent, 3 * x**3, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(torch.func.grad(lambda x: cube(x).sum())(x), 3 * x**2, rtol=1e-4, atol=1e-4)
        zeros = torch._efficientzerotensor((8, 64), device="cuda")  # they have no memory
        assert not cube(zeros).any()


def test_on_a_stream_and_in_a_graph(cube: Operation) -> None:
    x = randn(64, 256)
    compiled = torch.compile(lambda x: cube(x), fullgraph=True)
    quietly(compiled, x)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        result = quietly(cube.torch_op, x)
    stream.synchronize()
    torch.testing.assert_close(result, x**3, rtol=1e-4, atol=1e-4)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = cube.torch_op(x)
    x.fill_(2.0)
    graph.replay()
    torch.cuda.synchronize()
    assert (captured == 8).all()
