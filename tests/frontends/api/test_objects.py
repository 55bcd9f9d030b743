"""Modules, methods, closures and names of packages as requests, and what is made of them in their place."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.store.records_for_store import ENVIRONMENT, SETTINGS, attempt
from tests.tasks.in_process import ask_here
from torch import nn

import tilewright as tw
from tilewright.frontends.api.objects import BoundKernel, object_request
from tilewright.frontends.api.requests import installed_name, is_named_object, named_object, resolved, task_of
from tilewright.records import Ending, Origin, Task
from tilewright.runtime import ReferenceUsed
from tilewright.store import Request, Store
from tilewright.tasks import TaskError, module_call
from tilewright.tasks.errors import BadArgument

KERNEL = """\
//! op      {op}(x, weight) -> y
//! out     y: x.dtype[x.shape]
//! need    x.dtype == f32
//! let     n = x.numel, cols = weight.numel
//! launch  scaled<<<ceil_div(n, 128), 128>>>(x, weight, y, n, cols)
__global__ void __launch_bounds__(128) scaled(const float* x, const float* w, float* y, long long n, long long cols) {{
  long long i = blockIdx.x * (long long)128 + threadIdx.x;
  if (i < n) y[i] = x[i] * w[i % cols] * 2.0f;
}}
"""


class Scaled(nn.Module):
    def __init__(self, size: int, factor: float = 2.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.factor = factor

    def forward(self, x: torch.Tensor, extra: torch.Tensor | None = None, **kwargs: Any) -> torch.Tensor:
        scaled = x * self.weight * self.factor
        return scaled if extra is None else scaled + extra

    def raised(self, min: torch.Tensor) -> torch.Tensor:
        return min * self.weight + self.factor


class Dropping(Scaled):
    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return nn.functional.dropout(super().forward(x), 0.5, self.training)


@pytest.fixture(scope="module", autouse=True)
def asked_here(home: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        ask_here(patch)
        yield


def task_for(asked: Any, **shapes: str) -> Task:
    task = task_of(object_request(asked, shapes, {}, {}).request)
    assert task is not None
    return task


def made(asked: Any, **shapes: str) -> BoundKernel:
    """A kernel for an object, put into the library as if it had been written and verified."""
    request = object_request(asked, shapes, {}, {}).request
    task = task_of(request)
    assert task is not None
    folder = Store().create_run(task, SETTINGS, ENVIRONMENT, request)
    folder.attempt(1).save_text("kernel.cu", KERNEL.format(op=task.name))
    folder.attempt(1).finish(replace(attempt(1, 5.0), tune=None))
    folder.end(Ending.ATTEMPTS)
    Store().library.add(folder)
    found = tw.make(asked, gpu="H200", quiet=True, **shapes)
    assert isinstance(found, BoundKernel)
    return found


@pytest.fixture(scope="module")
def module() -> Scaled:
    return Scaled(8)


@pytest.fixture(scope="module")
def bound(module: Scaled) -> BoundKernel:
    return made(module, x="4x8:f32")


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def test_parameters_are_inputs_and_numbers_are_held(bound: BoundKernel) -> None:
    task = bound.task
    assert (task.name, task.origin) == ("scaled", Origin.MODULE)
    assert [(one.name, one.parameter) for one in task.tensors] == [("x", False), ("weight", True)]
    assert {one.name: one.varies for one in task.dimensions} == {"rows": True, "cols": True}
    assert "always factor = 2.0" in task.assumptions
    call = module_call(task)
    assert call is not None
    assert (call.arguments, call.state) == ({"x": "x"}, {"weight": "weight"})


def test_it_is_called_like_the_module_and_follows_its_parameters(bound: BoundKernel, module: Scaled) -> None:
    x = torch.randn(4, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for weight in (torch.randn(8), torch.zeros(8)):
            module.weight.copy_(weight)
            torch.testing.assert_close(bound(x), module(x))
            torch.testing.assert_close(bound(x=x, extra=None), module(x))
        module.weight = nn.Parameter(torch.randn(8))
        torch.testing.assert_close(bound(x), module(x))
    assert "scaled<<<" in bound.explain(x)
    assert str(bound.kernel) in bound.explain(x)


def test_what_the_kernel_was_not_made_for_runs_the_module(bound: BoundKernel, module: Scaled) -> None:
    x = torch.randn(4, 8)
    with pytest.warns(ReferenceUsed, match="the kernel was made without extra, so the original runs"):
        torch.testing.assert_close(bound(x, torch.ones(8)), module(x, torch.ones(8)))
    module.factor = 5.0
    with pytest.warns(ReferenceUsed, match="factor has changed since the kernel was made"):
        torch.testing.assert_close(bound(x), module(x))
    assert "factor has changed since the kernel was made" in bound.explain(x)
    module.factor = 2.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bound(x)
    with pytest.raises(TypeError), pytest.warns(ReferenceUsed, match="more arguments than it takes"):
        bound(x, None, 3)


def test_a_module_that_trains_otherwise_runs_itself_in_training() -> None:
    dropping = Dropping(8)
    kernel, x = made(dropping, x="4x8:f32"), torch.randn(4, 8)
    with pytest.warns(ReferenceUsed, match="it is in training mode"):
        assert (kernel(x) == 0).any()
    dropping.eval()
    torch.testing.assert_close(kernel(x), dropping(x))


def test_an_equal_module_finds_the_kernel_again(bound: BoundKernel) -> None:
    other = Scaled(8)
    other.weight.fill_(1.0)
    again = tw.make(other, x="4x8:f32", gpu="H200", quiet=True)
    assert again.kernel == bound.kernel
    assert object_request(copy.deepcopy(other), {}, {}, {}).request == object_request(Scaled(8), {}, {}, {}).request
    assert object_request(Scaled(8, 3.0), {}, {}, {}).request != object_request(Scaled(8), {}, {}, {}).request


def test_a_method_is_made_of_too() -> None:
    task = task_for(Scaled(8).raised, min="4x8:f32")
    assert (task.name, [one.name for one in task.tensors]) == ("scaled_raised", ["min_in", "weight"])
    call = module_call(task)
    assert call is not None
    assert call.arguments == {"min_in": "min"}


def test_the_only_argument_may_be_called_anything() -> None:
    assert [one.name for one in task_for(nn.LayerNorm(8), x="4x8:f32").tensors] == ["input", "weight", "bias"]
    with pytest.raises(TaskError, match="Scaled has no such parameter; it has x, extra"):
        task_for(Scaled(8), y="4x8:f32", z="4x8:f32")


def test_a_mask_stays_inside() -> None:
    masked = nn.Module.__new__(Masked)
    nn.Module.__init__(masked)
    masked.register_buffer("mask", torch.ones(8, 8).tril().bool())
    task = task_for(masked, x="2x8x8:f32")
    assert [one.name for one in task.tensors] == ["x"]
    assert "the buffer mask is part of the reference, not an input" in task.assumptions


class Masked(nn.Module):
    mask: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.masked_fill(~self.mask, -1.0)


# -- by name --


@pytest.mark.parametrize("words", ["softmax: over the last dimension", "GELU of x", "ops.py:gelu", "port a: b(c) of d"])
def test_words_and_files_are_no_names(words: str) -> None:
    assert not is_named_object(words)


def test_names_of_installed_packages() -> None:
    request = resolved(Request("torch.nn:LayerNorm(8, eps=1e-3)", {"x": "4x8:f32"}))
    assert "eps=0.001" in request.text
    assert (request.function, request.module) == ("LayerNorm", "make_layernorm().eval()")
    assert resolved(Request("torch.nn.functional:silu", {"input": "8:f32"})).function == "silu"
    file = torch.nn.modules.activation.__file__
    assert installed_name(f"{file}:ReLU()") == "torch.nn.modules.activation:ReLU()"
    assert isinstance(named_object("torch.nn:ReLU"), nn.ReLU)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nowhere.at:All", "nowhere.at:All: no package called nowhere.at can be imported"),
        ("torch.nowhere:All", "torch.nowhere cannot be imported: ModuleNotFoundError"),
        ("torch.nn:Nothing(3)", "torch.nn has no Nothing"),
        ("torch.nn:Linear(3", "a bracket is not closed"),
        ("torch.nn:Linear(3)", r"torch.nn:Linear\(3\) fails: TypeError"),
        ("torch.nn:Linear(3 4)", "are no arguments of a call"),
        ("torch:float32(3)", "is a dtype, which takes no arguments"),
        ("torch:softmax", "softmax does not say which arguments it takes; write a function"),
    ],
)
def test_names_that_lead_nowhere(text: str, message: str) -> None:
    with pytest.raises(BadArgument, match=message):
        resolved(Request(text, {"x": "8:f32"}))


def test_classes_and_objects_that_are_no_request() -> None:
    with pytest.raises(BadArgument, match=r"Scaled is a class; give an instance of it: Scaled\(...\)"):
        object_request(Scaled, {}, {}, {})
    with pytest.raises(BadArgument, match="is no plain Python function"):
        object_request(object(), {}, {}, {})
    with pytest.raises(BadArgument, match=r"Path\.exists is a method of an object that is no nn\.Module"):
        object_request(Path("x").exists, {}, {}, {})


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))
        self._scale = 0.5
        self.powers = [4.0]
        self.act = nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(x) * self.weight * self._scale * self.powers[0]


def _set_power(module: Nested) -> None:
    module.powers[0] = 30.0


@pytest.mark.parametrize(
    "change",
    [
        lambda module: setattr(module, "_scale", 20.0),
        _set_power,
        lambda module: setattr(module, "act", nn.ReLU()),
        lambda module: module.register_forward_hook(lambda *given: given[-1] + 7.0),
        lambda module: module.act.register_forward_hook(lambda *given: given[-1] + 7.0),
    ],
    ids=["a private number", "a number in a list", "another layer", "a hook", "a hook within"],
)
def test_a_module_that_was_changed_runs_itself(change: Any) -> None:
    module = Nested()
    kernel = made(module, x="4x8:f32")
    x = torch.randn(4, 8)
    torch.testing.assert_close(kernel(x), module(x))
    change(module)
    with pytest.warns(ReferenceUsed, match="so the original runs"):
        torch.testing.assert_close(kernel(x), module(x))
