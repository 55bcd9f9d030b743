"""A PyTorch function as a graph of ATen operations. `trace` runs inside the reference's process.

The function is called with fake tensors, which have shapes and dtypes but no content: nothing is computed, and any size
is cheap. It is called several times with different sizes and numbers, so that a constant that follows a size shows it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from tilewright.records import NumberInput, Task


@dataclass(frozen=True)
class Probe:
    """Sizes and numbers of one call."""

    sizes: dict[str, int]
    numbers: dict[str, float]


@dataclass(frozen=True)
class TraceRequest:
    task: Task
    probes: tuple[Probe, ...]


@dataclass(frozen=True)
class Node:
    """A reference to an earlier node."""

    index: int


Scalar = int | float | bool | str | None


@dataclass(frozen=True)
class Items:
    """A list among the arguments."""

    values: tuple[Node | Scalar, ...]


TracedArgument = Node | Items | Scalar


@dataclass(frozen=True)
class TracedTensor:
    shape: tuple[int, ...]
    dtype: str  # PyTorch's name without "torch."


@dataclass(frozen=True)
class TracedNode:
    """One operation. `target` is ATen's name without the overload, or `input`, `constant`, `getitem`."""

    target: str
    arguments: tuple[TracedArgument, ...]
    keywords: dict[str, TracedArgument]
    results: tuple[TracedTensor | None, ...]
    overload: str = ""


@dataclass(frozen=True)
class Trace:
    nodes: tuple[TracedNode, ...]
    outputs: tuple[int, ...]  # results, then every tensor changed in place


@dataclass(frozen=True)
class Traces:
    """One trace for each probe."""

    traces: tuple[Trace, ...]


def trace(function: Callable[..., Any], request: TraceRequest) -> Traces:
    """The handler: every probe's graph."""
    return Traces(tuple(_trace_one(function, request.task, probe) for probe in request.probes))


def _trace_one(function: Callable[..., Any], task: Task, probe: Probe) -> Trace:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    from tilewright.reference.torch_calls import TORCH_DTYPE, call_reference

    inputs = tuple(
        replace(one, value=probe.numbers.get(one.name, one.value)) if isinstance(one, NumberInput) else one
        for one in task.inputs
    )
    probed = replace(task, inputs=inputs)
    specs = task.specs(probe.sizes)
    with FakeTensorMode(allow_non_fake_inputs=True):
        tensors = [torch.empty(spec.shape, dtype=TORCH_DTYPE[spec.dtype]) for spec in specs.values()]

    def whole(*given: Any) -> tuple[Any, ...]:
        return call_reference(function, probed, dict(zip(specs, given, strict=True)))

    functional = torch.func.functionalize(whole, remove="mutations_and_views")
    module = make_fx(functional, decomposition_table=_decompositions(), tracing_mode="fake")(*tensors)
    return _records(module, tuple(specs))


@cache
def _decompositions() -> dict[Any, Any]:
    """PyTorch's own rules, but for the operations that are read as they are. Made once: it takes a second."""
    from torch._decomp import core_aten_decompositions

    from tilewright.playbook.operations import POINTWISE_RULES
    from tilewright.playbook.reductions import REDUCTION_RULES

    kept = {*POINTWISE_RULES, *REDUCTION_RULES}
    table: Any = core_aten_decompositions()
    return {op: rule for op, rule in table.items() if _name(op).removesuffix("_") not in kept}


def _name(target: Any) -> str:
    """`aten.add.Tensor` is `add`; operations of other libraries keep their library's name."""
    if target is operator.getitem:
        return "getitem"
    words = str(target).split(".")
    known = words[0] in ("aten", "prims") and len(words) > 1
    return words[1].removesuffix("_copy") if known and words[1] != "_to_copy" else words[1] if known else str(target)


def _records(module: Any, names: tuple[str, ...]) -> Trace:
    numbers: dict[Any, int] = {}
    nodes: list[TracedNode] = []
    outputs: tuple[int, ...] = ()
    waiting = iter(names)
    for node in module.graph.nodes:
        if node.op == "output":
            returned = node.args[0] if isinstance(node.args[0], (tuple, list)) else (node.args[0],)
            outputs = tuple(numbers[one] for one in returned)
            continue
        numbers[node] = len(nodes)
        if node.op == "placeholder":
            nodes.append(TracedNode("input", (next(waiting),), {}, _results(node)))
        elif node.op == "get_attr":
            tensor = getattr(module, node.target)
            single = tensor.numel() == 1
            nodes.append(TracedNode("constant", (tensor.item() if single else None,), {}, (_tensor(tensor),)))
        else:
            arguments = tuple(_argument(one, numbers) for one in node.args)
            keywords = {key: _argument(one, numbers) for key, one in node.kwargs.items()}
            overload = str(node.target).rpartition(".")[2]
            nodes.append(TracedNode(_name(node.target), arguments, keywords, _results(node), overload))
    return Trace(tuple(nodes), outputs)


def _results(node: Any) -> tuple[TracedTensor | None, ...]:
    value = node.meta.get("val")
    several = value if isinstance(value, (tuple, list)) else (value,)
    return tuple(_tensor(one) if hasattr(one, "dtype") else None for one in several)


def _tensor(tensor: Any) -> TracedTensor:
    return TracedTensor(tuple(int(size) for size in tensor.shape), str(tensor.dtype).removeprefix("torch."))


def _argument(value: Any, numbers: dict[Any, int]) -> TracedArgument:
    if isinstance(value, (tuple, list)):
        return Items(tuple(_single(one, numbers) for one in value))
    return _single(value, numbers)


def _single(value: Any, numbers: dict[Any, int]) -> Node | Scalar:
    if value in numbers if hasattr(value, "graph") else False:
        return Node(numbers[value])
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value).removeprefix("torch.")
