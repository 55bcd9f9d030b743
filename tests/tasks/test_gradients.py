"""Backward tasks: what they say, what they keep, and which functions have none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.tasks.in_process import ask_here

from tilewright.records import Task, from_json, to_json
from tilewright.tasks import TaskError, TaskOptions, backward_task, derivative_words, task_from_source, task_op_line

SOURCE = """
import torch
import torch.nn.functional as F

def rms_norm(x, weight, eps: float = 1e-6):
    h = x.float()
    return (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + eps)).to(x.dtype) * weight

def layer_norm(x, weight, bias):
    return F.layer_norm(x, (x.shape[-1],), weight, bias)

def swiglu(gate, up):
    return F.silu(gate) * up

def nested(x, residual, keep):
    return {"scores": (torch.where(keep, x, 0).exp() + residual, x.argmax(-1))}

def loss(x, target):
    return F.cross_entropy(x, target)

def halved(x):
    half = x.shape[-1] // 2
    return x[..., :half] * x[..., half:]

def named_badly(grad_y, y):
    return grad_y.sin() * y

def add_norm(x, residual, weight, eps: float = 1e-6):
    total = x + residual
    return total * torch.rsqrt(total.square().mean(-1, keepdim=True) + eps) * weight, total

def gate(x, y, slope: float = 2.5):
    return torch.sigmoid((x + y) * slope)

def in_place(x):
    return x.mul_(2)

def place(x):
    return x.argmax(-1)

def total(x):
    return x.sum(-1)

def both(x, y):
    return x + y
"""


@pytest.fixture(scope="module", autouse=True)
def here() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        ask_here(patch)
        yield


def made(function: str, **shapes: str) -> tuple[Task, Task]:
    task = task_from_source(SOURCE, function, shapes, {}, TaskOptions())
    return task, backward_task(task, TaskOptions())


def _function(task: Task) -> Any:
    scope: dict[str, Any] = {}
    exec(task.reference, scope)
    return scope[task.function]


@pytest.mark.parametrize(
    ("function", "shapes", "line", "kept"),
    [
        (
            "rms_norm",
            {"x": "12x32:bf16", "weight": "32:bf16"},
            "rms_norm_backward(grad_y, x, weight, eps: float = 1e-06) -> grad_x, grad_weight",
            ("x", "weight"),
        ),
        (
            "layer_norm",
            {"x": "12x32:f32", "weight": "32:f32", "bias": "32:f32"},
            "layer_norm_backward(grad_y, x, weight) -> grad_x, grad_weight, grad_bias",
            ("x", "weight"),
        ),
        (
            "swiglu",
            {"gate": "12x32:f16", "up": "12x32:f16"},
            "swiglu_backward(grad_y, gate, up) -> grad_gate, grad_up",
            ("gate", "up"),
        ),
        (
            "nested",
            {"x": "12x32:f32", "residual": "12x32:f32", "keep": "12x32:bool"},
            "nested_backward(grad_y0, x, keep) -> grad_x, grad_residual",
            ("x", "keep"),
        ),
        ("loss", {"x": "12x32:f32", "target": "12:i64"}, "loss_backward(grad_y, x, target) -> grad_x", ("x", "target")),
        ("halved", {"x": "12x32:f32"}, "halved_backward(grad_y, x) -> grad_x", ("x",)),
        (
            "named_badly",
            {"grad_y": "12x32:f32", "y": "12x32:f32"},
            "named_badly_backward(grad_out, grad_y, y) -> grad_grad_y, grad_y_",
            ("grad_y", "y"),
        ),
    ],
    ids=lambda one: one if isinstance(one, str) and one.isidentifier() else "",
)
def test_it_takes_what_the_gradients_need_and_gives_what_autograd_does(
    function: str, shapes: dict[str, str], line: str, kept: tuple[str, ...]
) -> None:
    task, backward = made(function, **shapes)
    derivative = backward.derivative
    assert derivative is not None
    assert task_op_line(backward) == line
    assert tuple(one.name for one in derivative.saved) == kept
    assert derivative.forward == task.hash
    assert derivative.autograd_bytes is not None
    assert derivative.saved_bytes <= derivative.autograd_bytes
    assert from_json(Task, to_json(backward)) == backward
    torch.manual_seed(0)
    given = {n: _drawn(spec.shape, str(spec.dtype)) for n, spec in backward.specs().items()}
    tensors = {name: given.get(name, torch.randn(spec.shape)) for name, spec in task.specs().items()}
    leaves = {n: one.clone().requires_grad_() if one.is_floating_point() else one for n, one in tensors.items()}
    results = _flat(_function(task)(**leaves))
    taken = [one for one, output in zip(results, task.outputs, strict=True) if output.name in derivative.results]
    expected = torch.autograd.grad(
        taken, [leaves[name] for name in derivative.by], [given[name] for name in derivative.gradients]
    )
    with torch.no_grad():  # as the referee calls it
        found = _function(backward)(**given)
    for one, other, output in zip(found, expected, backward.outputs, strict=True):
        assert torch.equal(one, other), output.name
        assert one.shape == backward.output_specs()[output.name].shape


def _drawn(shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    if dtype == "bool":
        return torch.rand(shape) < 0.5
    if dtype == "i64":
        return torch.randint(0, 8, shape)
    return torch.randn(shape).to({"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[dtype])


def _flat(returned: Any) -> list[torch.Tensor]:
    if isinstance(returned, torch.Tensor):
        return [returned]
    parts = returned.values() if isinstance(returned, dict) else returned
    return [one for part in parts for one in _flat(part)]


@pytest.mark.parametrize(
    ("function", "shapes", "line", "kept"),
    [
        (
            "add_norm",
            {"x": "12x32:bf16", "residual": "12x32:bf16", "weight": "32:bf16"},
            "add_norm_backward(grad_y0, grad_y1, weight, y1, eps: float = 1e-06) -> grad_x, grad_residual, grad_weight",
            ["the result y1 (768 bytes)", "weight (64 bytes)"],
        ),
        (
            "gate",
            {"x": "12x32:f32", "y": "12x32:f32"},
            "gate_backward(grad_out, out, slope: float = 2.5) -> grad_x, grad_y",
            ["the result out (1.5 KiB)"],
        ),
    ],
    ids=["add_norm", "gate"],
)
def test_results_are_kept_where_inputs_would_be_more(
    function: str, shapes: dict[str, str], line: str, kept: list[str]
) -> None:
    task, backward = made(function, **shapes)
    derivative = backward.derivative
    assert derivative is not None
    assert task_op_line(backward) == line
    said = " ".join(derivative_words(derivative))
    assert all(one in said for one in kept)
    assert derivative.autograd_bytes is not None
    assert derivative.saved_bytes <= derivative.autograd_bytes
    # At another size, in f64, with another number.
    torch.manual_seed(0)
    sizes = {"rows": 7, "cols": 10}
    tensors = {n: torch.randn(spec.shape).double().requires_grad_() for n, spec in task.specs(sizes).items()}
    numbers = {one.name: 0.37 for one in task.numbers}
    results = _flat(_function(task)(**tensors, **numbers))
    weights = [torch.randn_like(one) for one in results]
    expected = torch.autograd.grad(results, [tensors[name] for name in derivative.by], weights)
    named = dict(zip((one.name for one in task.outputs), results, strict=True))
    given = {one.name: (named if one.is_result else tensors)[one.name].detach() for one in derivative.saved}
    found = _function(backward)(**dict(zip(derivative.gradients, weights, strict=True)), **given, **numbers)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="other ranks"):
        _function(backward)(**{n: one[None] for n, one in zip(derivative.gradients, weights, strict=True)}, **given)


def test_people_are_told_what_is_kept_and_who_gets_no_gradient() -> None:
    _, backward = made("nested", x="12x32:f32", residual="12x32:f32", keep="12x32:bool")
    assert backward.derivative is not None
    assert derivative_words(backward.derivative) == [
        "gradients by x, residual, of y0 of nested",
        "no gradient by keep, which holds bool",
        "saves x (1.5 KiB), keep (384 bytes) from the forward and recomputes everything else",
        "1.88 KiB in all; autograd would save 1.88 KiB",
    ]


def test_what_the_forward_knows_of_its_dimensions_holds_of_the_backward() -> None:
    task, backward = made("halved", x="12x32:f32")
    assert {one.name: one for one in backward.dimensions} == {one.name: one for one in task.dimensions}
    assert backward.outputs[0].shape == task.tensors[0].dimensions


@pytest.mark.parametrize(
    ("function", "shapes", "found"),
    [
        ("in_place", {"x": "12x32:f32"}, "in_place changes x in place, which has no gradient"),
        ("place", {"x": "12x32:f32"}, "place has no gradients: no result is a differentiable"),
        ("place", {"x": "12x32:i64"}, "place has no floating-point input"),
        ("total", {"x": "12x32:f32"}, "the size cols of total does not follow from the gradients of its results"),
        ("both", {"x": "12x32:f32", "y": "12x32:f32"}, "of both would prove nothing: grad_x equals grad_out"),
    ],
)
def test_functions_without_gradients_worth_a_kernel_are_refused(
    function: str, shapes: dict[str, str], found: str
) -> None:
    with pytest.raises(TaskError, match=found):
        made(function, **shapes)


def test_a_backward_has_no_backward() -> None:
    _, backward = made("swiglu", gate="12x32:f32", up="12x32:f32")
    with pytest.raises(TaskError, match="is a backward task; for second"):
        backward_task(backward, TaskOptions())
