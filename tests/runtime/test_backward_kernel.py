"""Gradients by backward kernels, on the emulator: against f64, compiled, in training, twice, some unwanted.

Forward and backward are files of the playbook; a warning would say that a reference ran in the place of one.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tasks.in_process import ask_here

from tilewright.frontends.api.make import task_reference
from tilewright.frontends.finding.swapping import by_rows
from tilewright.playbook.tracing import trace
from tilewright.playbook.understanding import answer
from tilewright.records import Derivative, Task
from tilewright.runtime import GradientNotSupported, LoadError, Operation, ReferenceUsed, load
from tilewright.runtime.backward import Backward
from tilewright.tasks import TaskOptions, backward_task, task_from_source, task_op_line

SOURCE = """
import torch
import torch.nn.functional as F

def rms_norm(x, weight, eps: float = 1e-6):
    h = x.float()
    return (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + eps)).to(x.dtype) * weight

def layer_norm(x, weight, bias):
    return F.layer_norm(x, (x.shape[-1],), weight, bias)

def softmax(x):
    return torch.softmax(x, -1)

def swiglu(gate, up):
    return F.silu(gate) * up

def bias_gelu(x, bias):
    return F.gelu(x + bias)

def add_norm(x, residual, weight):
    total = x + residual
    return total * torch.rsqrt(total.square().mean(-1, keepdim=True) + 1e-6) * weight, total

def masked(x, keep, scale):
    y = torch.where(keep > 0, x, 0.0) * scale
    return y.sin(), y.argmax(-1), y * y
"""
SHAPES = {
    "rms_norm": ("x", "weight"),
    "layer_norm": ("x", "weight", "bias"),
    "softmax": ("x",),
    "swiglu": ("gate", "up"),
    "bias_gelu": ("x", "bias"),
    "masked": ("x", "keep", "scale"),
    "add_norm": ("x", "residual", "weight"),
}
COLUMNS = ("weight", "bias", "scale")
ALLOWED = {torch.float32: 4e-6, torch.bfloat16: 1.6e-2}


@pytest.fixture(scope="module", autouse=True)
def strictly() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        ask_here(patch)
        warnings.simplefilter("error", ReferenceUsed)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


@cache
def _tasks(name: str, dtype: str) -> tuple[Task, Task]:
    shapes = {one: "64x96" if one not in COLUMNS else "96" for one in SHAPES[name]}
    texts = {one: f"{shape}:{'i32' if one == 'keep' else dtype}" for one, shape in shapes.items()}
    task = task_from_source(SOURCE, name, texts, {}, TaskOptions())
    return task, backward_task(task, TaskOptions())


def operation(task: Task, folder: Path, *, reference: bool = True) -> Operation:
    scope: dict[str, Any] = {}
    exec(task.reference, scope)
    found = answer(task, lambda request: trace(scope[task.function], request))
    step = next(iter(found.structures), found.draft)
    path = folder / f"{task.name}_{task.hash}.cu"
    path.write_text(step.write(task_op_line(task)))
    return load(path, reference=task_reference(task) if reference else None)


def paired(forward: Operation, backward: Operation, derivative: Derivative | None) -> Operation:
    assert derivative is not None
    gradients = dict(zip(derivative.results, derivative.gradients, strict=True))
    return forward.with_backward(backward, gradients, derivative.by)


def with_gradients(name: str, folder: Path, dtype: str = "f32") -> tuple[Operation, Task]:
    task, backward = _tasks(name, dtype)
    return paired(operation(task, folder), operation(backward, folder), backward.derivative), task


def drawn(task: Task, rows: int = 5, cols: int = 40) -> dict[str, torch.Tensor]:
    torch.manual_seed(3)
    kinds = {"f32": torch.float32, "bf16": torch.bfloat16, "i32": torch.int32}
    made = {}
    for one in task.tensors:
        values = torch.randn([{"rows": rows, "cols": cols}[label] for label in one.dimensions])
        made[one.name] = values.to(kinds[one.dtype.value])
        if one.dtype.is_float:
            made[one.name].requires_grad_()
    return made


def tuple_of(returned: Any) -> tuple[torch.Tensor, ...]:
    return returned if isinstance(returned, tuple) else (returned,)


def pulled(function: Any, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor | None]:
    """The gradients of every tensor for fixed gradients of every result that has one."""
    results = [one for one in tuple_of(function(**tensors)) if one.requires_grad]
    generator = torch.Generator().manual_seed(4)
    weights = [torch.randn(one.shape, generator=generator).bfloat16().to(one.dtype) for one in results]
    wanted = {name: one for name, one in tensors.items() if one.requires_grad}
    found = torch.autograd.grad(results, list(wanted.values()), weights, allow_unused=True)
    return dict(zip(wanted, found, strict=True))


@pytest.mark.parametrize(("name", "dtype"), [("layer_norm", "f32"), ("rms_norm", "bf16"), ("add_norm", "f32")])
def test_gradients_are_those_of_f64(name: str, dtype: str, folder: Path) -> None:
    _check_gradients(name, dtype, folder)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("name", SHAPES)
def test_gradients_of_every_function_are_those_of_f64(name: str, dtype: str, folder: Path) -> None:
    _check_gradients(name, dtype, folder)


def _check_gradients(name: str, dtype: str, folder: Path) -> None:
    op, task = with_gradients(name, folder, dtype)
    tensors = drawn(task)
    wide = {n: t.detach().double().requires_grad_() if t.requires_grad else t for n, t in tensors.items()}
    found, expected = pulled(op, tensors), pulled(_function(task), wide)
    for each, one in found.items():
        other = expected[each]
        assert one is not None
        assert other is not None
        assert one.dtype is tensors[each].dtype
        error = (one.double() - other).abs() / (other.abs() + other.abs().mean())
        assert float(error.max()) < ALLOWED[one.dtype], f"{name}: {each}"


def _function(task: Task) -> Any:
    """In the arithmetic of its arguments, where it says f32."""
    scope: dict[str, Any] = {}
    exec(task.reference.replace(".float()", ".double()"), scope)
    return scope[task.function]


def test_a_stack_of_rows_is_laid_flat(folder: Path) -> None:
    task, backward = _tasks("add_norm", "f32")
    assert backward.derivative is not None
    assert {name for name, _ in task.leading} == {"x", "residual"}
    ranks = {"x": 2, "residual": 2, "weight": 1, "y0": 2, "y1": 2}
    gradients = dict(zip(backward.derivative.results, backward.derivative.gradients, strict=True))
    op = operation(task, folder)
    pair = Backward(operation(backward, folder), gradients, backward.derivative.by, ranks, frozenset(("x", "residual")))
    both = Operation(op.files, None, op.fallback.reference, backward=pair)
    tensors = drawn(task, rows=6)
    stacked = {n: t.detach().reshape(2, 3, 40).requires_grad_() if t.dim() == 2 else t for n, t in tensors.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReferenceUsed)  # of the forward, whose file does not say that it takes them
        found = pulled(both, stacked)
    expected = pulled(_function(task), stacked)
    for name, one in found.items():
        assert one is not None
        assert one.shape == stacked[name].shape
        torch.testing.assert_close(one, expected[name], rtol=1e-4, atol=1e-5)
    assert not pair.matches(op.op, [stacked["x"], stacked["x"], stacked["x"]])


def test_compiled_whole_it_gives_the_same(folder: Path) -> None:
    op, task = with_gradients("rms_norm", folder)
    tensors = drawn(task)
    compiled = torch.compile(lambda **given: op(**given), fullgraph=True, backend="aot_eager", dynamic=True)
    eager = pulled(op, tensors)
    for rows in (5, 7):
        tensors = drawn(task, rows)
        eager = pulled(op, tensors)
        for name, one in pulled(compiled, tensors).items():
            assert torch.equal(one, eager[name])  # type: ignore[arg-type]


def test_torch_finds_nothing_wrong_with_the_operator(folder: Path) -> None:
    op, task = with_gradients("layer_norm", folder)
    found = torch.library.opcheck(op.torch_op, tuple(drawn(task).values()))
    assert set(found.values()) == {"SUCCESS"}


def test_a_model_trains_with_it(folder: Path) -> None:
    op, _ = with_gradients("layer_norm", folder)

    class Norm(torch.nn.Module):
        def __init__(self, by_kernel: bool) -> None:
            super().__init__()
            self.by_kernel = by_kernel
            self.linear = torch.nn.Linear(16, 40)
            self.weight = torch.nn.Parameter(torch.ones(40))
            self.bias = torch.nn.Parameter(torch.zeros(40))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.linear(x)
            if self.by_kernel:
                return op(h, self.weight, self.bias)  # type: ignore[no-any-return]
            return torch.nn.functional.layer_norm(h, (40,), self.weight, self.bias)

    ours, theirs = Norm(True), Norm(False)
    theirs.load_state_dict(ours.state_dict())
    data = torch.randn(6, 16)
    for model in (ours, theirs):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(data).square().mul(torch.arange(40.0)).mean().backward()
            optimizer.step()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
        assert one.grad is not None


def test_only_what_is_wanted_is_given(folder: Path) -> None:
    op, task = with_gradients("layer_norm", folder)
    tensors = {name: one.detach().requires_grad_(name == "weight") for name, one in drawn(task).items()}
    op(**tensors).sum().backward()
    assert {name for name, one in tensors.items() if one.grad is not None} == {"weight"}


def test_only_what_the_backward_takes_is_kept(folder: Path) -> None:
    op, task = with_gradients("layer_norm", folder)
    tensors, kept = drawn(task), []
    with torch.autograd.graph.saved_tensors_hooks(lambda one: kept.append(one.data_ptr()) or one, lambda one: one):
        op(**tensors)
    assert kept == [tensors["x"].data_ptr(), tensors["weight"].data_ptr()]


def test_results_without_gradient_and_unused_ones(folder: Path) -> None:
    op, task = with_gradients("masked", folder)
    tensors = drawn(task)
    sine, place, square = op(**tensors)
    assert (sine.requires_grad, place.requires_grad, square.requires_grad) == (True, False, True)
    sine.sum().backward()  # nothing depends on the other
    plain = {n: t.detach().requires_grad_(t.requires_grad) for n, t in tensors.items()}
    _function(task)(**plain)[0].sum().backward()
    torch.testing.assert_close(tensors["x"].grad, plain["x"].grad)
    torch.testing.assert_close(tensors["scale"].grad, plain["scale"].grad)


def test_gradients_of_gradients_come_from_the_reference(folder: Path) -> None:
    op, task = with_gradients("layer_norm", folder)
    found = []
    for function in (op, _function(task)):
        tensors = drawn(task)
        (once,) = torch.autograd.grad(function(**tensors).pow(3).sum(), tensors["x"], create_graph=True)
        once.square().sum().backward()
        found.append(tensors["x"].grad)
    torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=1e-3)


def test_where_a_result_was_kept_gradients_of_gradients_are_refused(folder: Path) -> None:
    op, task = with_gradients("add_norm", folder)
    tensors = drawn(task)
    normed, total = op(**tensors)
    with pytest.raises(GradientNotSupported, match="need its inputs, and y1 was kept in their place"):
        torch.autograd.grad(normed.sum() + total.sum(), tensors["x"], create_graph=True)


def test_without_a_reference_gradients_of_gradients_are_refused(folder: Path) -> None:
    task, backward = _tasks("swiglu", "f32")
    op = paired(
        operation(task, folder, reference=False), operation(backward, folder, reference=False), backward.derivative
    )
    tensors = drawn(task)
    made = op(**tensors).sum()
    with pytest.raises(GradientNotSupported, match="need a reference"):
        torch.autograd.grad(made, tensors["up"], create_graph=True)
    op(**tensors).sum().backward()
    assert tensors["up"].grad is not None


def test_the_backward_of_another_op_is_refused(folder: Path) -> None:
    forward, _ = _tasks("swiglu", "f32")
    _, backward = _tasks("rms_norm", "f32")
    with pytest.raises(LoadError, match="rms_norm_backward is no backward of swiglu: swiglu has no x"):
        paired(operation(forward, folder, reference=False), operation(backward, folder), backward.derivative)


EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def _swiglu(*by: str) -> Operation:
    return load(EXAMPLES / "swiglu.cu").with_backward(load(EXAMPLES / "swiglu_backward.cu"), {"y": "grad_y"}, by)


def test_pairs_of_the_same_files_are_operators_of_their_own() -> None:
    right = _swiglu("gate", "up")
    other = _swiglu("up", "gate")  # somebody's mistake, which must not become the first one's
    assert right.torch_op is not other.torch_op
    gate, up = (torch.randn(2, 16, dtype=torch.float16, requires_grad=True) for _ in range(2))
    found = torch.autograd.grad(right(gate, up).sum(), [gate, up])
    expected = torch.autograd.grad((torch.nn.functional.silu(gate) * up).sum(), [gate, up])
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2)


class _Times:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def reference(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(x) * self.factor


def _by_default(factor: float) -> Any:
    def reference(x: torch.Tensor, *, k: float = factor) -> torch.Tensor:
        return torch.nn.functional.silu(x) * k

    return reference


@pytest.mark.parametrize("made", [lambda k: _Times(k).reference, _by_default], ids=["methods", "defaults by name"])
def test_references_that_differ_in_what_they_hold_are_told_apart(made: Any) -> None:
    first = load(EXAMPLES / "silu.cu", reference=made(1.0))
    load(EXAMPLES / "silu.cu", reference=made(100.0))
    x = torch.randn(2, 4, dtype=torch.float64)  # which no file takes
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReferenceUsed)
        torch.testing.assert_close(torch.vmap(first)(x), torch.nn.functional.silu(x))


def test_a_backward_for_some_inputs_refuses_the_others(tmp_path: Path) -> None:
    text = (EXAMPLES / "swiglu_backward.cu").read_text()
    text = text.replace("-> grad_gate, grad_up", "-> grad_up").replace(
        "//! out     grad_gate: gate.dtype[gate.shape]\n", ""
    )
    text = text.replace("grad_y, gate, up, grad_gate, grad_up, n", "grad_y, gate, up, grad_up, grad_up, n")
    (tmp_path / "k.cu").write_text(text)
    part = load(EXAMPLES / "swiglu.cu").with_backward(load(tmp_path / "k.cu"), {"y": "grad_y"}, ["up"])
    gate, up = (torch.randn(2, 16, dtype=torch.float16, requires_grad=True) for _ in range(2))
    with pytest.raises(GradientNotSupported, match="gate requires grad, and its backward gives no gradient of it"):
        part(gate, up)


def test_an_operation_that_changes_something_takes_no_backward() -> None:
    backward = load(EXAMPLES / "rmsnorm_backward.cu")
    with pytest.raises(LoadError, match="add_rmsnorm changes residual in place"):
        load(EXAMPLES / "add_rmsnorm.cu").with_backward(backward, {"y": "grad_y"}, ["x", "weight"])


class _Dropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> None:
        return None


def test_a_result_whose_gradient_nobody_has() -> None:
    silu = load(EXAMPLES / "silu.cu", reference=torch.nn.functional.silu)
    x = torch.randn(8, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReferenceUsed)
        (found,) = torch.autograd.grad(_Dropped.apply(silu(x)).sum() + x.sum(), x, create_graph=True)  # type: ignore[no-untyped-call]
    torch.testing.assert_close(found, torch.ones(8))


def test_a_reference_in_another_order_is_refused() -> None:
    with pytest.raises(LoadError, match="the reference takes up, gate, and swiglu takes gate, up"):
        load(EXAMPLES / "swiglu.cu", reference=lambda up, gate: torch.nn.functional.silu(gate) * up)


def test_a_gradient_of_another_shape_is_refused(tmp_path: Path) -> None:
    text = (EXAMPLES / "swiglu_backward.cu").read_text()
    text = text.replace("grad_gate: gate.dtype[gate.shape]", "grad_gate: gate.dtype[gate.shape[1], gate.shape[0]]")
    (tmp_path / "k.cu").write_text(text)
    turned = load(EXAMPLES / "swiglu.cu").with_backward(load(tmp_path / "k.cu"), {"y": "grad_y"}, ["gate", "up"])
    gate, up = (torch.randn(2, 16, dtype=torch.float16, requires_grad=True) for _ in range(2))
    with pytest.raises(GradientNotSupported, match=r"the gradient of gate in the shape \[16, 2\]"):
        turned(gate, up).sum().backward()


def test_rows_are_laid_flat_only_where_all_lead_alike() -> None:
    add = by_rows(torch.add, (0, 1))
    for one, other in (((4, 1, 8), (1, 4, 8)), ((2, 3, 8), (2, 3, 8))):
        a, b = torch.randn(one), torch.randn(other)
        torch.testing.assert_close(add(a, b), a + b)
    with pytest.raises(RuntimeError, match="size of tensor"):
        add(torch.randn(2, 3, 8), torch.randn(3, 2, 8))


@pytest.fixture
def leading_norm(folder: Path) -> Operation:
    """A pair of loaded files, of which the forward's has a `lead` line and only it a reference."""
    task, backward = _tasks("rms_norm", "f32")
    operation(task, folder)
    path = folder / f"{task.name}_{task.hash}.cu"
    first, rest = path.read_text().split("//! out", 1)
    leading = folder / "leading.cu"
    leading.write_text(f"{first}//! lead    x: 2\n//! out{rest}")
    forward = load(leading, reference=task_reference(task))
    return paired(forward, operation(backward, folder, reference=False), backward.derivative)


@pytest.mark.parametrize("shape", [(2, 3, 40), (40,), (1, 2, 3, 40)])
def test_leading_dimensions_of_loaded_files_are_laid_flat(
    shape: tuple[int, ...], leading_norm: Operation, folder: Path
) -> None:
    task, _ = _tasks("rms_norm", "f32")
    tensors = {"x": torch.randn(shape, requires_grad=True), "weight": torch.randn(40, requires_grad=True)}
    expected = pulled(_function(task), tensors)
    compiled = torch.compile(lambda **given: leading_norm(**given), fullgraph=True, backend="aot_eager")
    for called in (leading_norm, compiled):
        for name, one in pulled(called, tensors).items():
            torch.testing.assert_close(one, expected[name], rtol=1e-4, atol=1e-5)


def test_what_the_backward_file_does_not_take_gets_the_gradients_of_the_reference(leading_norm: Operation) -> None:
    task, _ = _tasks("rms_norm", "f32")
    tensors = {"x": torch.randn(2, 40).double().requires_grad_(), "weight": torch.randn(40).double().requires_grad_()}
    expected = pulled(_function(task), tensors)
    with pytest.warns(ReferenceUsed) as said:
        found = [pulled(leading_norm, tensors) for _ in range(2)]
    assert sum("no file of the backward kernel takes this call" in str(one.message) for one in said) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReferenceUsed)
        found.append(pulled(torch.compile(lambda **given: leading_norm(**given), backend="aot_eager"), tensors))
    for each in found:
        for name, one in each.items():
            torch.testing.assert_close(one, expected[name], rtol=1e-5, atol=1e-6)
