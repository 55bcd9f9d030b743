"""The body of one module's `forward` as a graph of what it calls, and the chains in it that could be one kernel.

A child module is one node. Arguments that are no tensors are as they were at the recorded call; the graph holds for
calls that agree in them. What cannot be followed this way - a loop over values, a shape taken apart - has no graph.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from tilewright.frontends.finding.operations import ELEMENTWISE, names
from tilewright.tasks.lifting.source_text import undecorated
from tilewright.tasks.reading.python_source import usable_name

ROOT = "module."  # before every path of a frame
_PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.device)

# Functions and methods whose results could be computed as their inputs come by, by their last names.
_POINTWISE = ELEMENTWISE | names(
    "truediv relu6 to float half bfloat16 type_as dropout layer_norm softmin invert cross_entropy nll_loss"
)
_VIEWS = names(
    "getitem getattr size view reshape unsqueeze squeeze transpose contiguous expand cat chunk split flatten"
)
_SHAPES = frozenset(("dtype", "shape", "device", "size", "ndim", "dim"))


@dataclass(frozen=True)
class Leaves:
    """The arguments of a call laid flat: those that a graph takes, and those that it holds."""

    spec: TreeSpec
    open: tuple[int, ...]  # places of tensors and other objects
    held: tuple[tuple[int, Any], ...]

    @staticmethod
    def of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Leaves, list[Any]]:
        leaves, spec = tree_flatten((args, kwargs))
        places = tuple(place for place, one in enumerate(leaves) if not isinstance(one, _PLAIN))
        held = tuple((place, one) for place, one in enumerate(leaves) if isinstance(one, _PLAIN))
        return Leaves(spec, places, held), [leaves[place] for place in places]

    def with_open(self, values: Iterable[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        leaves: dict[int, Any] = dict(self.held)
        leaves.update(zip(self.open, values, strict=True))
        made: tuple[tuple[Any, ...], dict[str, Any]] = tree_unflatten(
            [leaves[place] for place in range(len(leaves))], self.spec
        )
        return made


class Frame(torch.nn.Module):
    """A module's own forward as a root of its own, called with the open leaves of a recorded call."""

    def __init__(self, module: torch.nn.Module, leaves: Leaves) -> None:
        super().__init__()
        self.module = module
        self._leaves = leaves

    def run(self, *values: Any) -> Any:
        args, kwargs = self._leaves.with_open(values)
        return type(self.module).forward(self.module, *args, **kwargs)


class _Tracer(fx.Tracer):
    """`is_leaf`: which children stay nodes. A module that is no child, such as a function made a layer, is followed."""

    proxy_buffer_attributes = True  # else what is worked out from a mask would be a constant

    def __init__(self, is_leaf: Callable[[torch.nn.Module], bool]) -> None:
        super().__init__()
        self._is_leaf = is_leaf

    def is_leaf_module(self, m: torch.nn.Module, module_qualified_name: str) -> bool:
        return self._is_leaf(m)

    def call_module(self, m: Any, forward: Any, args: Any, kwargs: Any) -> Any:
        try:
            self.path_of_module(m)
        except NameError:
            return forward(*args, **kwargs)
        return super().call_module(m, forward, args, kwargs)


def trace_frame(
    module: torch.nn.Module, leaves: Leaves, functions: Collection[Callable[..., Any]] = ()
) -> fx.GraphModule | None:
    """The graph of a module's forward; None where it cannot be followed. Its children and `functions` are nodes."""
    with _as_nodes(type(module).forward.__globals__, functions):
        return _traced(Frame(module, leaves), _argument_names(module, leaves), lambda one: one is not module)


def trace_whole(module: torch.nn.Module, leaves: Leaves) -> fx.GraphModule | None:
    """The same with its children's bodies in it."""
    return _traced(Frame(module, leaves), _argument_names(module, leaves), lambda one: False)


@contextmanager
def _as_nodes(namespace: dict[str, Any], functions: Collection[Callable[..., Any]]) -> Iterator[None]:
    """While the block goes on, functions that are called with proxies become nodes."""
    before = {}
    for name, value in namespace.items():
        plain = undecorated(value)
        if any(plain is one for one in functions):
            before[name] = value
    namespace.update({name: _node_of(undecorated(value)) for name, value in before.items()})
    try:
        yield
    finally:
        namespace.update(before)


def _node_of(function: Callable[..., Any]) -> Callable[..., Any]:
    def called(*args: Any, **kwargs: Any) -> Any:
        proxy = next((one for one in tree_flatten((args, kwargs))[0] if isinstance(one, fx.Proxy)), None)
        if proxy is None:
            return function(*args, **kwargs)
        return proxy.tracer.create_proxy("call_function", function, args, kwargs)

    return called


def _argument_names(module: torch.nn.Module, leaves: Leaves) -> list[str]:
    """What `forward` calls the open leaves; one within a tuple is called after it and its place."""
    args, kwargs = tree_unflatten([f"leaf{place}" for place in range(leaves.spec.num_leaves)], leaves.spec)
    try:
        bound = inspect.signature(type(module).forward).bind(module, *args, **kwargs).arguments
    except (TypeError, ValueError):
        bound = {}
    found: dict[str, str] = {}
    for name, value in bound.items():
        pairs = value.items() if isinstance(value, dict) else [(name, value)]
        for own, one in pairs:
            inner = tree_flatten(one)[0]
            found |= {leaf: own if len(inner) == 1 else f"{own}_{place}" for place, leaf in enumerate(inner)}
    names: list[str] = []
    for place in leaves.open:
        names.append(usable_name(found.get(f"leaf{place}", f"argument_{place}"), (*names, "self"), "x"))
    return names


def _traced(root: Frame, arguments: list[str], is_leaf: Callable[[torch.nn.Module], bool]) -> fx.GraphModule | None:
    names = ", ".join(arguments)
    namespace: dict[str, Any] = {}
    exec(f"def forward(self, {names}):\n    return self.run({names})", namespace)
    kind = type("Frame", (Frame,), {"forward": namespace["forward"]})
    root.__class__ = kind
    try:
        graph = _Tracer(is_leaf).trace(root)
    except Exception:  # control flow that depends on what is not known, or anything a proxy cannot do
        return None
    if any(one.op == "get_attr" and not str(one.target).startswith(ROOT) for one in graph.nodes):
        return None  # a tensor that is neither an argument nor a parameter nor a buffer
    return fx.GraphModule(root, graph)


# -- chains --


@dataclass(frozen=True)
class Chain:
    """Nodes of a frame that could be one kernel, in order; `inputs` come from outside, `outputs` are used outside."""

    nodes: tuple[fx.Node, ...]
    inputs: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]


def chains(graph: fx.Graph, is_fusible: Callable[[fx.Node], bool]) -> list[Chain]:
    """The largest sets of fusible nodes that hang together and that nothing else has to run in between.

    Nodes with as many others before them on the longest way can have none of those between them.
    """
    depth: dict[fx.Node, int] = {}
    group: dict[fx.Node, int] = {}
    for number, node in enumerate(graph.nodes):
        before = [(depth[one], _is_chained(one, is_fusible)) for one in node.all_input_nodes]
        own = _is_chained(node, is_fusible)
        depth[node] = max((one + (not fusible and not own) for one, fusible in before), default=0) + (not own)
        group[node] = number
        if own:
            for one in node.all_input_nodes:
                if _is_chained(one, is_fusible) and depth[one] == depth[node]:
                    _join(group, group[one], group[node])
    sets: dict[int, list[fx.Node]] = {}
    for node in graph.nodes:
        if _is_chained(node, is_fusible):
            sets.setdefault(group[node], []).append(node)
    return [made for nodes in sets.values() if (made := _chain(nodes)) is not None]


def _join(group: dict[fx.Node, int], one: int, other: int) -> None:
    for node, number in group.items():
        if number == one:
            group[node] = other


def _is_chained(node: fx.Node, is_fusible: Callable[[fx.Node], bool]) -> bool:
    return node.op in ("call_function", "call_method", "call_module") and is_fusible(node)


def _chain(nodes: list[fx.Node]) -> Chain | None:
    """Without the views at its ends, which cost nothing; None where nothing is left that computes."""
    kept = list(nodes)
    while kept:
        inside = {*kept}
        edge = [one for one in kept if is_view(one) and (_ends(one, inside) or _begins(one, inside))]
        if not edge:
            break
        kept = [one for one in kept if one not in edge]
    if not kept:
        return None
    while asked := [one for one in _given(kept) if one.target is getattr and one not in kept]:
        kept = [*asked, *kept]  # the dtype of an input goes with the chain, not into it
    inside, given = {*kept}, _given(kept)
    left = tuple(node for node in kept if any(user not in inside for user in node.users))
    return Chain(tuple(kept), tuple(given), left)


def _given(nodes: list[fx.Node]) -> dict[fx.Node, None]:
    return dict.fromkeys(one for node in nodes for one in node.all_input_nodes if one not in nodes)


def _ends(node: fx.Node, inside: set[fx.Node]) -> bool:
    return not any(user in inside for user in node.users)


def _begins(node: fx.Node, inside: set[fx.Node]) -> bool:
    return not any(one in inside for one in node.all_input_nodes)


def last_name(node: fx.Node) -> str:
    """`silu` of `torch.nn.functional.silu`, `mul` of `operator.mul`."""
    target = node.target
    name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
    return str(name).rpartition(".")[2].strip("_")


def is_view(node: fx.Node) -> bool:
    return node.op in ("call_function", "call_method") and last_name(node) in _VIEWS


def is_fusible_call(node: fx.Node) -> bool:
    """Of nodes that are no modules."""
    if node.target is getattr:
        return node.args[1] in _SHAPES
    if node.target is operator.getitem:
        return isinstance(node.args[0], fx.Node) and last_name(node.args[0]) not in ("",)
    return last_name(node) in _POINTWISE or last_name(node) in _VIEWS
