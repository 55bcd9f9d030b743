"""A backward kernel in an exported package: what it is given and what becomes of its results."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from tests.store.records_for_store import ENVIRONMENT, SETTINGS, attempt

from tilewright.exports import torch_package
from tilewright.exports.cuda_project import Target, export
from tilewright.exports.source import Source, from_files, with_backward
from tilewright.kernel_file import parse
from tilewright.records import (
    Derivative,
    Dimension,
    DType,
    Ending,
    NumberInput,
    SavedTensor,
    ScalarType,
    Task,
    TaskOutput,
    TensorInput,
)
from tilewright.store import LibraryKernel, Store

REFERENCE = """\
import torch


def scaled_tanh(x, weight, factor):
    return torch.tanh(x) * weight * factor
"""
BACKWARD = f"""{REFERENCE}

def scaled_tanh_backward(grad_y, x, weight, factor):
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        weight = weight.detach().requires_grad_()
        y = scaled_tanh(x, weight, factor)
        return torch.autograd.grad((y,), (x, weight), (grad_y,))
"""
# What they compute is no business of these tests: on the CPU the references run.
FORWARD_FILE = """\
//! op      scaled_tanh(x, weight, factor: float) -> y
//! lead    x: 2
//! need    x.dtype == f32 and weight.dtype == f32 and x.ndim == 2
//! out     y: f32[x.shape]
//! launch  run<<<ceil_div(x.numel, 128), 128>>>(x, y, x.numel)
__global__ void run(const float* x, float* y, int n) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i < n) y[i] = x[i];
}
"""
BACKWARD_FILE = """\
//! op      scaled_tanh_backward(grad_y, x, weight, factor: float) -> grad_x, grad_weight
//! need    grad_y.dtype == f32 and x.ndim == 2
//! out     grad_x: f32[x.shape]
//! out     grad_weight: f32[weight.shape]
//! launch  run<<<1, 128>>>(grad_y, grad_x, grad_weight)
__global__ void run(const float* grad_y, float* grad_x, float* grad_weight) {
  grad_x[threadIdx.x] = grad_weight[0] = grad_y[0];
}
"""
ROWS = Dimension("rows", 64), Dimension("cols", 32)


def tensor(name: str, *dimensions: str) -> TensorInput:
    return TensorInput(name, DType.F32, dimensions)


def forward_task() -> Task:
    inputs = (tensor("x", "rows", "cols"), tensor("weight", "cols"), NumberInput("factor", ScalarType.FLOAT, 0.5))
    outputs = (TaskOutput("y", DType.F32, ("rows", "cols")),)
    return Task("scaled_tanh", REFERENCE, "scaled_tanh", inputs, outputs, ROWS, leading=(("x", 2),))


def backward_task(forward: Task) -> Task:
    derivative = Derivative(
        forward.hash,
        "scaled_tanh",
        ("y",),
        ("grad_y",),
        (SavedTensor("x", 1), SavedTensor("weight", 1)),
        ("x", "weight"),
    )
    outputs = TaskOutput("grad_x", DType.F32, ("rows", "cols")), TaskOutput("grad_weight", DType.F32, ("cols",))
    name = "scaled_tanh_backward"
    inputs = (tensor("grad_y", "rows", "cols"), *forward.inputs)
    return Task(name, BACKWARD, name, inputs, outputs, ROWS, derivative=derivative)


def put_into_library(task: Task, text: str) -> LibraryKernel:
    folder = Store().create_run(task, SETTINGS, ENVIRONMENT, None)
    folder.attempt(1).save_text("kernel.cu", text)
    folder.attempt(1).finish(replace(attempt(1, 5.0), kernel=parse(text).identity[:20], tune=None))
    folder.end(Ending.ATTEMPTS)
    return Store().library.add(folder)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEWRIGHT_HOME", str(tmp_path_factory.mktemp("home")))
        kernel = put_into_library(forward_task(), FORWARD_FILE)
        alone = with_backward(from_files([kernel.path], Store()), Store())
        assert alone.task is not None
        assert alone.backward is None
        put_into_library(backward_task(forward_task()), BACKWARD_FILE)
        return with_backward(alone, Store())


@pytest.fixture
def package(source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Without its launch path, which nothing here takes."""
    monkeypatch.setattr(torch_package, "build_extension", lambda sources: None)
    done = export(source, Target.TORCH, tmp_path / "out", "exported_tanh")
    assert any("gradients are computed by scaled_tanh_backward, which is" in note for note in done.notes)
    assert (tmp_path / "out" / "exported_tanh" / "backward" / "kernels" / "scaled_tanh_backward.cu").is_file()
    assert "Gradients of CUDA tensors are computed by a kernel too" in (tmp_path / "out" / "README.md").read_text()
    assert '"exported_tanh", "exported_tanh.backward"' in (tmp_path / "out" / "pyproject.toml").read_text()
    monkeypatch.syspath_prepend(str(tmp_path / "out"))
    return importlib.import_module("exported_tanh")


def truth(x: torch.Tensor, weight: torch.Tensor, factor: float) -> torch.Tensor:
    return torch.tanh(x) * weight * factor


def same(found: Any, expected: Any) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def drawn(*shape: int) -> list[torch.Tensor]:
    return [torch.randn(shape, requires_grad=True), torch.randn(shape[-1], requires_grad=True)]


def test_an_exported_package_has_the_backward_kernel(package: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = drawn(4, 32)
    with pytest.warns(RuntimeWarning, match="its gradient is the reference's"):  # on the CPU
        found = torch.autograd.grad(package.scaled_tanh(*tensors, 0.5).sum(), tensors)
    same(found, torch.autograd.grad(truth(*tensors, 0.5).sum(), tensors))
    calls: list[tuple[Any, ...]] = []
    operator = package._op._backward_op._op
    monkeypatch.setattr(package._op, "_has_kernel", lambda inputs: True)  # as if these were CUDA tensors
    monkeypatch.setattr(package._op._backward_op, "_op", lambda *values: calls.append(values) or operator(*values))
    for shape in ((5, 32), (2, 3, 32), (32,)):
        tensors, gradient = drawn(*shape), torch.randn(shape)
        found = torch.autograd.grad(package.scaled_tanh(*tensors, 0.5), tensors, gradient)
        same(found, torch.autograd.grad(truth(*tensors, 0.5), tensors, gradient))
    assert [(tuple(values[0].shape), tuple(values[1].shape), values[3]) for values in calls] == [
        ((5, 32), (5, 32), 0.5), ((6, 32), (6, 32), 0.5), ((1, 32), (1, 32), 0.5)
    ]  # fmt: skip
    twice = []
    for function in (package.scaled_tanh, truth):  # gradients of gradients are the reference's
        (first,) = torch.autograd.grad(function(*tensors, 0.5).sum(), tensors[:1], create_graph=True)
        twice.append(torch.autograd.grad(first.square().sum(), tensors))
    same(*twice)


@pytest.mark.slow
def test_compiled_whole_it_is_the_same(package: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package._op, "_has_kernel", lambda inputs: True)
    tensors = drawn(5, 32)
    compiled = torch.compile(package.scaled_tanh, fullgraph=True, backend="aot_eager")
    same(
        torch.autograd.grad(compiled(*tensors, 0.5).sum(), tensors),
        torch.autograd.grad(truth(*tensors, 0.5).sum(), tensors),
    )


def test_which_calls_the_kernel_is_for(package: ModuleType) -> None:
    assert package._op._TAKES == (("gradient", 0), ("input", 0), ("input", 1), ("input", 2))
    assert package._op._GIVES == (0, 1)
    assert not package._op._has_kernel(drawn(4, 32))  # on the CPU
    cuda = [torch.empty(one.shape, device="meta") for one in drawn(4, 32)]
    assert not package._op._has_kernel(cuda)


def test_other_exports_say_that_it_is_left_out(source: Source, tmp_path: Path) -> None:
    done = export(source, Target.CUDA, tmp_path / "cuda", "scaled_tanh")
    assert source.backward is not None
    assert source.backward.provenance is not None
    said = f"is a separate export: tilewright export {source.backward.provenance.run} --to cuda"
    assert any(note.endswith(said) for note in done.notes)
