"""Inside the child: what a function's gradients depend on, found by tracing them, and what autograd would keep.

The joint graph of results and gradients is written down operation by operation. Walked back from the gradients it says
which inputs they need; where it is cut at a result, it says what they need once that result is kept.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tilewright.records import Task
from tilewright.records.reaching import reached
from tilewright.reference import ReferenceProblem
from tilewright.reference.torch_calls import TORCH_DTYPE, flat_results
from tilewright.tasks.child.input_values import draw
from tilewright.tasks.questions import Cut, DerivativeAnswer, DerivativeRequest

_MOST_RESULTS = 4  # of which every selection is looked at
# Operations that take a tensor for its shape and dtype alone.
_LIKE = ("zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like")
_NEW = ("new_zeros", "new_ones", "new_full", "new_empty", "new_empty_strided")
_SHAPE_ONLY = frozenset({*_LIKE, *_NEW, "sym_size", "sym_numel", "sym_stride"})

Tensors = dict[str, torch.Tensor]


def differentiate(function: Callable[..., Any], request: DerivativeRequest) -> DerivativeAnswer:
    """Which results and inputs have gradients, and what these need."""
    task = request.task
    given = drawn(task, request.sizes)
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
    """The least and the greatest that a result holds, where they are numbers."""
    numbers = result.detach().double()
    numbers = numbers[numbers.isfinite()]
    return (float(numbers.min()), float(numbers.max())) if numbers.numel() else (0.0, 0.0)


def drawn(task: Task, sizes: Mapping[str, int]) -> Tensors:
    """Every tensor of the task at these sizes."""
    specs = task.specs(sizes)
    return {
        one.name: draw(specs[one.name], one.values, sizes, 5000 + position)
        for position, one in enumerate(task.tensors)
        if one.name in specs
    }


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


# -- what the gradients need --


def _cuts(
    function: Callable[..., Any], task: Task, given: Tensors, weights: Sequence[torch.Tensor], by: tuple[str, ...]
) -> tuple[Cut, ...]:
    """For every selection of kept results: the inputs that the gradients still need. The first keeps none."""
    from torch.fx.experimental.proxy_tensor import make_fx

    names = list(given)

    def joint(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.enable_grad():
            leaves = leaves_of(dict(zip(names, values[: len(names)], strict=True)))
            results = flat_results(function(**arguments_of(task, leaves)))
            found = gradients_of(results, leaves, values[len(names) :])
        gradients = {name: one for name, one in zip(floats(leaves), found, strict=True) if one is not None}
        return (*(one.detach() for one in results), *(gradients[name] for name in by))

    graph = make_fx(joint, decomposition_table=decompositions(), tracing_mode="real")(*given.values(), *weights).graph
    nodes = list(graph.nodes)
    places = [one for one in nodes if one.op == "placeholder"]
    inputs = dict(zip(places, names, strict=False))
    returned = nodes[-1].args[0]
    results = {
        one.name: undetached(node)
        for one, node in zip(task.outputs, returned, strict=False)
        if one.dtype.is_float and undetached(node) not in places
    }
    gradients = returned[len(task.outputs) :]
    cuts: list[Cut] = []
    candidates = list(results)[:_MOST_RESULTS]
    for count in range(len(candidates) + 1):
        for kept in itertools.combinations(candidates, count):
            met = _met(gradients, {results[name] for name in kept})
            used = tuple(name for name in kept if results[name] in met)
            if used == kept:
                cuts.append(Cut(kept, tuple(inputs[one] for one in places if one in met and one in inputs)))
    return tuple(cuts)


def decompositions() -> Any:
    """So that what an operation takes and does not look at, such as a norm's bias, is seen to be such."""
    from torch._decomp import core_aten_decompositions, get_decompositions

    aten: Any = torch.ops.aten
    norms = (aten.native_layer_norm, aten.native_group_norm, aten._fused_rms_norm)
    return {**core_aten_decompositions(), **get_decompositions(norms)}


def undetached(node: Any) -> Any:
    while str(node.target).startswith(("aten.detach", "aten.alias")):
        node = node.args[0]
    return node


def _met(wanted: Sequence[Any], kept: set[Any]) -> set[Any]:
    """The nodes on the way back from those wanted; what lies behind a kept one, or is taken for its shape, is not."""

    def before(node: Any) -> list[Any]:
        name = str(node.target).split(".")
        return [] if node in kept or (len(name) > 1 and name[1] in _SHAPE_ONLY) else node.all_input_nodes

    return reached(wanted, before)


def _autograd_bytes(function: Callable[..., Any], task: Task) -> int | None:
    """What autograd keeps between forward and backward at the task's own sizes; nothing is computed for that."""
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
                # What was made and is not returned must live on, or its storage's address is given away again.
                alive = function(**arguments_of(task, leaves_of(made)))
    except Exception:  # it needs content, or knows no such tensors
        return None
    del alive
    return sum(int(one.nbytes()) for one in kept.values())
