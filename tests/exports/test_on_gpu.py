"""The exported package on a GPU: the kernels' own results, streams, graphs, compiled calls, what falls back."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def arguments(rows: int = 64, cols: int = 256) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator("cuda").manual_seed(rows)
    make = {"generator": generator, "device": "cuda"}
    return torch.randn(rows, cols, **make), torch.randn(cols, **make)  # type: ignore[call-overload]


def truth(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


def same(x: torch.Tensor, weight: torch.Tensor, results: tuple[torch.Tensor, torch.Tensor]) -> bool:
    return torch.allclose(results[0], truth(x, weight), atol=1e-5) and results[1].shape == (x.shape[0],)


@pytest.fixture(autouse=True)
def _no_fall_back() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's own, of what its compiler imports
        yield


def test_runs_its_kernels(package: ModuleType) -> None:
    for rows in (1, 64, 1000):
        x, weight = arguments(rows)
        assert same(x, weight, package._op._native.call(x, weight, None, 1e-6))
        assert same(x, weight, package.row_scale(x, weight))
        assert same(x, weight, torch.ops.tilewright_exported_row_scale.row_scale(x, weight))


def test_runs_on_the_current_stream_and_in_a_graph(package: ModuleType) -> None:
    x, weight = arguments()
    package.row_scale(x, weight)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        results = package.row_scale(x, weight)
    stream.synchronize()
    assert same(x, weight, results)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = package.row_scale(x, weight)
    x.mul_(2.0).add_(1.0)
    graph.replay()
    torch.cuda.synchronize()
    assert same(x, weight, results)


def test_is_compiled_and_differentiated(package: ModuleType) -> None:
    x, weight = arguments()
    compiled = torch.compile(lambda a, b: package.row_scale(a, b)[0] + 1, fullgraph=True)
    assert torch.allclose(compiled(x, weight), truth(x, weight) + 1, atol=1e-5)
    warnings.simplefilter("ignore")  # the gradient is the reference's, which is said once
    x.requires_grad_()
    package.row_scale(x, weight)[0].sum().backward()
    found, x.grad = x.grad, None
    truth(x, weight).sum().backward()
    assert found is not None
    assert x.grad is not None
    assert torch.allclose(found, x.grad, atol=1e-4)


def test_what_no_kernel_takes_runs_the_reference_and_says_so(package: ModuleType) -> None:
    x, weight = arguments(cols=252)  # nobody built for it
    with pytest.warns(RuntimeWarning, match="no build was exported for"):
        results = package.row_scale(x, weight)
    assert same(x, weight, results)
    wide, weight = arguments(cols=256)
    with pytest.warns(RuntimeWarning, match="x is not contiguous"):
        package.row_scale(wide.t().contiguous().t(), weight)
    with pytest.raises(RuntimeError, match="beyond the range of a float"):
        package.row_scale(wide, weight, None, 1e300)
