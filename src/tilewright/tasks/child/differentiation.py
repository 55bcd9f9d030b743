"""Runs in the child: finds what a function's gradients depend on, and prints them as Python lines.

The joint graph of results and gradients is traced with make_fx. Walking it back from the gradients gives the inputs
they need; stopping at a result gives what they need if that result is saved.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch

from tilewright.records import NumberInput, ScalarType, Task, TaskInput
from tilewright.records.gpu import reached
from tilewright.reference import ReferenceProblem
from tilewright.reference.torch_calls import TORCH_DTYPE, flat_results
from tilewright.tasks.child.input_values import draw_all
from tilewright.tasks.questions import DerivativeAnswer, DerivativeRequest, PrintedGradients, PrintRequest, SavedSet

_MOST_RESULTS = 4  # whose subsets are tried
# Operations that read only the shape and dtype of a tensor.
_LIKE = ("zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like")
_NEW = ("new_zeros", "new_ones", "new_full", "new_empty", "new_empty_strided")
_SHAPE_ONLY = frozenset({*_LIKE, *_NEW, "sym_size", "sym_numel", "sym_stride"})

Tensors = dict[str, torch.Tensor]


def differentiate(function: Callable[..., Any], request: DerivativeRequest) -> DerivativeAnswer:
    """Which results and inputs have gradients, and what the gradients depend on."""
    task = request.task
    given = draw_all(task, request.sizes, _SEED)
    with torch.enable_grad():
        leaves = leaves_of(given)
        returned = function(**arguments_of(task, leaves))
    results = flat_results(returned)
    if len(results) != len(task.outputs):
        raise ReferenceProblem(f"the function returned {len(results)} results where {len(task.outputs)} were expected")
    differentiable = tuple(one.requires_grad for one in results)
    if not any(differentiable):
        return DerivativeAnswer("", differentiable, (), (), None)
    weights = [torch.randn_like(one) for one in results if one.requires_grad]
    found = gradients_of(results, leaves, weights)
    by = tuple(name for name, one in zip(floats(leaves), found, strict=True) if one is not None)
    structure = "one" if isinstance(returned, torch.Tensor) else "flat" if _is_flat(returned) else "nested"
    cuts = _cuts(function, task, given, weights, by)
    ranges = tuple(_range(one) for one in results)
    return DerivativeAnswer(structure, differentiable, by, cuts, _autograd_bytes(function, task), ranges)


def _range(result: torch.Tensor) -> tuple[float, float]:
    """The finite minimum and maximum of a result."""
    numbers = result.detach().double()
    numbers = numbers[numbers.isfinite()]
    return (float(numbers.min()), float(numbers.max())) if numbers.numel() else (0.0, 0.0)


def leaves_of(given: Mapping[str, torch.Tensor]) -> Tensors:
    return {
        name: one.detach().requires_grad_() if one.is_floating_point() else one.detach() for name, one in given.items()
    }


def floats(leaves: Tensors) -> Tensors:
    return {name: one for name, one in leaves.items() if one.is_floating_point()}


def arguments_of(task: Task, tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    return {
        **{one.name: tensors.get(one.name) for one in task.tensors},
        **{one.name: one.value for one in task.numbers},
    }


def _is_flat(returned: Any) -> bool:
    return isinstance(returned, (tuple, list)) and all(isinstance(one, torch.Tensor) for one in returned)


def gradients_of(
    results: Sequence[torch.Tensor], leaves: Tensors, weights: Sequence[torch.Tensor]
) -> tuple[torch.Tensor | None, ...]:
    wanted = [one for one in results if one.requires_grad]
    made: tuple[torch.Tensor | None, ...] = torch.autograd.grad(
        wanted, list(floats(leaves).values()), weights, allow_unused=True
    )
    return made


def _joint_graph(
    function: Callable[..., Any],
    task: Task,
    given: Tensors,
    weights: Sequence[torch.Tensor],
    by: tuple[str, ...],
    mode: Literal["real", "symbolic"],
) -> list[Any]:
    """The nodes of a graph from the inputs and incoming gradients to the results and the gradients `by` inputs."""
    from torch._decomp import core_aten_decompositions, get_decompositions
    from torch.fx.experimental.proxy_tensor import make_fx

    names = list(given)

    def joint(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.enable_grad():
            leaves = leaves_of(dict(zip(names, values[: len(names)], strict=True)))
            results = flat_results(function(**arguments_of(task, leaves)))
            found = gradients_of(results, leaves, values[len(names) :])
        gradients = {name: one for name, one in zip(floats(leaves), found, strict=True) if one is not None}
        return (*(one.detach() for one in results), *(gradients[name] for name in by if name in gradients))

    # Decomposed, a norm's backward shows that it does not read its bias.
    aten: Any = torch.ops.aten
    norms = get_decompositions((aten.native_layer_norm, aten.native_group_norm, aten._fused_rms_norm))
    table: Any = {**core_aten_decompositions(), **norms}
    return list(make_fx(joint, decomposition_table=table, tracing_mode=mode)(*given.values(), *weights).graph.nodes)


def _cuts(
    function: Callable[..., Any], task: Task, given: Tensors, weights: Sequence[torch.Tensor], by: tuple[str, ...]
) -> tuple[SavedSet, ...]:
    """For every subset of results that may be saved, the inputs that the gradients still need. The first is empty."""
    names = list(given)
    nodes = _joint_graph(function, task, given, weights, by, "real")
    places = [one for one in nodes if one.op == "placeholder"]
    inputs = dict(zip(places, names, strict=False))
    returned = nodes[-1].args[0]
    results = {
        one.name: undetached(node)
        for one, node in zip(task.outputs, returned, strict=False)
        if one.dtype.is_float and undetached(node) not in places
    }
    gradients = returned[len(task.outputs) :]
    cuts: list[SavedSet] = []
    candidates = list(results)[:_MOST_RESULTS]
    for count in range(len(candidates) + 1):
        for kept in itertools.combinations(candidates, count):
            met = _met(gradients, {results[name] for name in kept})
            used = tuple(name for name in kept if results[name] in met)
            if used == kept:
                cuts.append(SavedSet(kept, tuple(inputs[one] for one in places if one in met and one in inputs)))
    return tuple(cuts)


def undetached(node: Any) -> Any:
    while str(node.target).startswith(("aten.detach", "aten.alias")):
        node = node.args[0]
    return node


def _met(wanted: Sequence[Any], kept: set[Any]) -> set[Any]:
    """The nodes that the wanted ones depend on, without going past saved results or reads of a shape."""

    def before(node: Any) -> list[Any]:
        name = str(node.target).split(".")
        return [] if node in kept or (len(name) > 1 and name[1] in _SHAPE_ONLY) else node.all_input_nodes

    return reached(wanted, before)


def _autograd_bytes(function: Callable[..., Any], task: Task) -> int | None:
    """The bytes that autograd saves for backward at the task's sizes, found with fake tensors."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    kept: dict[int, Any] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept.setdefault(storage._cdata, storage)
        return tensor

    try:
        with FakeTensorMode(allow_non_fake_inputs=True), torch.enable_grad():
            made = {name: torch.empty(spec.shape, dtype=TORCH_DTYPE[spec.dtype]) for name, spec in task.specs().items()}
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                # Intermediate tensors must stay alive: storages are identified by address.
                alive = function(**arguments_of(task, leaves_of(made)))
    except Exception:  # the function reads values, or does not support fake tensors
        return None
    del alive
    return sum(int(one.nbytes()) for one in kept.values())


# -- gradients as Python lines --

_SEED = 5
_FACTORS = (1.3173, 0.7291)  # scale the float arguments of the two traces to values that no source contains
_MOST_LINES = 60
_CLOSE = 1e-4  # the lines may compute in f32; a wrong formula is further off
_OPERATORS = {operator.mul: "*", operator.add: "+", operator.sub: "-", operator.floordiv: "//", operator.truediv: "/"}
_LEFT_OUT = ("device", "layout", "pin_memory")  # determined by the operands


class _NotPrintable(Exception):
    pass


def printed(function: Callable[..., Any], request: PrintRequest) -> PrintedGradients:
    """Lines that compute the gradients, and the variables that hold them; no lines if the graph cannot be printed."""
    try:
        texts = [_text(function, request, factor) for factor in _FACTORS]
    except _NotPrintable:
        return PrintedGradients((), ())
    made = texts[0]
    if texts[0] != texts[1] or len(made.lines) > _MOST_LINES:
        return PrintedGradients((), ())
    right = all(_agrees(function, request, made, sizes) for sizes in request.other_sizes)
    return made if right else PrintedGradients((), ())


def _numbered(task: Task, factor: float) -> Task:
    """The task with its float arguments scaled; integers may decide shapes, so they stay."""
    inputs: list[TaskInput] = []
    for one in task.inputs:
        if isinstance(one, NumberInput):
            if one.type is not ScalarType.FLOAT or not one.value or not one.takes(one.value * factor):
                raise _NotPrintable
            inputs.append(replace(one, value=one.value * factor))
        else:
            inputs.append(one)
    return replace(task, inputs=tuple(inputs))


def _text(function: Callable[..., Any], request: PrintRequest, factor: float) -> PrintedGradients:
    task = _numbered(request.task, factor)
    given = draw_all(task, request.sizes, _SEED)
    with torch.enable_grad():
        first = flat_results(function(**arguments_of(task, leaves_of(given))))
    weights = [torch.randn_like(one) for one in first if one.requires_grad]
    nodes = _joint_graph(function, task, given, weights, request.by, "symbolic")
    return _Printing(request, task, nodes, list(given)).text()


class _Printing:
    def __init__(self, request: PrintRequest, task: Task, nodes: list[Any], names: list[str]) -> None:
        self._request = request
        places = [one for one in nodes if one.op == "placeholder"]
        returned = nodes[-1].args[0]
        self._inputs = dict(zip(places, names, strict=False))
        self._names: dict[Any, str] = dict(zip(places[len(names) :], request.gradients, strict=True))
        self._names |= {place: name for place, name in self._inputs.items() if name in request.inputs}
        for output, node in zip(task.outputs, returned, strict=False):
            if output.name in request.results:
                self._names[undetached(node)] = output.name
        self._wanted = returned[len(task.outputs) :]
        self._nodes = nodes
        self._numbers = {float(one.value): one.name for one in task.numbers}
        self._dtypes = request.dtypes
        self._lines: list[str] = []

    def text(self) -> PrintedGradients:
        ends = {*self._names}
        needed = reached(self._wanted, lambda node: () if node in ends or _is_size(node) else node.all_input_nodes)
        for node in self._nodes:
            if node in needed and node not in ends:
                self._print(node)
        return PrintedGradients(tuple(self._lines), tuple(self._names[one] for one in self._wanted))

    def _print(self, node: Any) -> None:
        if node.op != "call_function":
            raise _NotPrintable  # an input that is not saved, or a constant tensor
        if _is_size(node):
            self._names[node] = self._size(*node.args)
            return
        if str(node.target).startswith(("aten.detach", "aten.alias")):
            self._names[node] = self._names[node.args[0]]
            return
        name = f"{node.name}_"
        while name in self._names.values():
            name += "_"
        self._lines.append(f"{name} = {self._call(node)}")
        self._names[node] = name

    def _size(self, tensor: Any, axis: int) -> str:
        """The expression of a size; for an input that is not saved, from another tensor with that dimension."""
        if tensor in self._names:
            return f"{self._names[tensor]}.shape[{axis}]"
        name = self._inputs.get(tensor)
        label = self._request.labels.get(name or "", ())
        if not label or label[axis] not in self._request.known_sizes:
            raise _NotPrintable
        return self._request.known_sizes[label[axis]]

    def _call(self, node: Any) -> str:
        if node.target in _OPERATORS:
            one, other = (self._argument(value) for value in node.args)
            return f"({one} {_OPERATORS[node.target]} {other})"
        if node.target is operator.getitem:
            return f"{self._names[node.args[0]]}[{node.args[1]}]"
        if not isinstance(node.target, torch._ops.OpOverload):
            raise _NotPrintable
        if "device" in node.kwargs and "_to_copy" not in str(node.target):
            raise _NotPrintable  # a factory call, with the device of the trace
        keywords = {key: value for key, value in node.kwargs.items() if key not in _LEFT_OUT}
        listed = [self._argument(value) for value in node.args]
        listed += [f"{key}={self._argument(value)}" for key, value in keywords.items()]
        return f"torch.ops.{node.target}({', '.join(listed)})"

    def _argument(self, value: Any) -> str:
        if value in self._names if hasattr(value, "graph") else False:
            return self._names[value]
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(self._argument(one) for one in value)}]"
        if isinstance(value, torch.dtype):
            return self._dtypes.get(str(value), str(value))
        if isinstance(value, float) and value in self._numbers:
            return self._numbers[value]
        if value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and abs(value) < 1e300):
            return repr(value)
        if isinstance(value, torch.memory_format):
            return str(value)
        raise _NotPrintable


def _is_size(node: Any) -> bool:
    return str(node.target).startswith("aten.sym_size")


def _agrees(
    function: Callable[..., Any], request: PrintRequest, made: PrintedGradients, sizes: Mapping[str, int]
) -> bool:
    """Whether the lines agree with autograd at other sizes, in f64."""
    task = request.task
    given = {
        name: one.double() if one.is_floating_point() else one for name, one in draw_all(task, sizes, _SEED).items()
    }
    with torch.enable_grad():
        leaves = leaves_of(given)
        results = flat_results(function(**arguments_of(task, leaves)))
        weights = [torch.randn_like(one) for one in results if one.requires_grad]
        expected = dict(zip(floats(leaves), gradients_of(results, leaves, weights), strict=True))
    scope: dict[str, Any] = {"torch": torch, **{one.name: one.value for one in task.numbers}}
    scope |= {name: given[name] for name in request.inputs}
    named = dict(zip((one.name for one in task.outputs), results, strict=True))
    scope |= {name: named[name].detach() for name in request.results}
    scope |= dict(zip(request.gradients, weights, strict=True))
    try:
        exec("\n".join(made.lines), scope)
    except Exception:  # operations may refuse sizes other than those of the trace
        return False
    return all(_close(scope[text], expected[name]) for text, name in zip(made.returned, request.by, strict=True))


def _close(one: torch.Tensor, other: torch.Tensor | None) -> bool:
    if other is None or one.shape != other.shape:
        return False
    return bool(((one - other).abs() <= _CLOSE * (other.abs() + other.abs().mean())).all())
