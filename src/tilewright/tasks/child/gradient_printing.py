"""Inside the child: the gradients as lines of Python that take kept results in the place of inputs.

The joint graph is traced with sizes as symbols and walked back from the gradients to what is kept. It is traced twice,
with other values of the function's numbers, so that a number in it is known to be an argument or a constant. What was
printed is run at other sizes beside autograd before it is believed.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from tilewright.records import NumberInput, ScalarType, Task, TaskInput
from tilewright.records.reaching import reached
from tilewright.reference.torch_calls import flat_results
from tilewright.tasks.child.differentiation import (
    arguments_of,
    decompositions,
    drawn,
    floats,
    gradients_of,
    leaves_of,
    undetached,
)
from tilewright.tasks.questions import PrintedGradients, PrintRequest

_FACTORS = (1.3173, 0.7291)  # of the numbers, in the two traces: nothing that a function would have of itself
_MOST_LINES = 60
_CLOSE = 1e-4  # the lines may say f32 on the way; a wrong formula is further off
_OPERATORS = {operator.mul: "*", operator.add: "+", operator.sub: "-", operator.floordiv: "//", operator.truediv: "/"}
_LEFT_OUT = ("device", "layout", "pin_memory")  # which follow from the operands


class _NotPrintable(Exception):
    pass


def printed(function: Callable[..., Any], request: PrintRequest) -> PrintedGradients:
    """The lines and the gradients' names in them; no lines where the graph cannot be printed."""
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
    """The task with other floats, as far as it takes them; whole numbers decide about shapes and stay."""
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
    from torch.fx.experimental.proxy_tensor import make_fx

    task = _numbered(request.task, factor)
    given = drawn(task, request.sizes)
    names = list(given)

    def joint(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.enable_grad():
            leaves = leaves_of(dict(zip(names, values[: len(names)], strict=True)))
            results = flat_results(function(**arguments_of(task, leaves)))
            found = dict(zip(floats(leaves), gradients_of(results, leaves, values[len(names) :]), strict=True))
        made = tuple(found[name] for name in request.by)
        return (*(one.detach() for one in results), *(one for one in made if one is not None))

    with torch.enable_grad():
        first = flat_results(function(**arguments_of(task, leaves_of(given))))
    weights = [torch.randn_like(one) for one in first if one.requires_grad]
    graph = make_fx(joint, decomposition_table=decompositions(), tracing_mode="symbolic")(*given.values(), *weights)
    return _Printing(request, task, list(graph.graph.nodes), names).text()


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
            raise _NotPrintable  # an input that is not kept after all, or a tensor of constants
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
        """A size of a tensor; one of an input that is not kept, by what else has it."""
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
            raise _NotPrintable  # a tensor made from nothing, on the device where it was traced
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
    """Whether the lines say at other sizes, in f64, what autograd says."""
    task = request.task
    given = {name: one.double() if one.is_floating_point() else one for name, one in drawn(task, sizes).items()}
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
    except Exception:  # whatever an operation says of sizes that it was not traced with
        return False
    return all(_close(scope[text], expected[name]) for text, name in zip(made.returned, request.by, strict=True))


def _close(one: torch.Tensor, other: torch.Tensor | None) -> bool:
    if other is None or one.shape != other.shape:
        return False
    return bool(((one - other).abs() <= _CLOSE * (other.abs() + other.abs().mean())).all())
