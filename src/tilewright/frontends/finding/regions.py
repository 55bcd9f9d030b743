"""The parts of a recorded run that could be one kernel each: whole modules, whole functions, chains within a forward.

An operation belongs to one region at most: a chain takes in the modules that it consists of.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from tilewright.frontends.finding.chain_text import ChainText, chain_text
from tilewright.frontends.finding.frames import Chain, Leaves, chains, is_fusible_call, is_view, trace_frame
from tilewright.frontends.finding.naming import known_name
from tilewright.frontends.finding.operations import are_fusible, base_name, computing, is_attention
from tilewright.frontends.finding.recording import (
    Call,
    Layout,
    Operation,
    Recording,
    layout_of,
    record_function,
)
from tilewright.frontends.finding.report import RegionKind
from tilewright.tasks.reading.python_source import usable_name


@dataclass(repr=False)
class Region:
    """One region with all its calls. `owner` is the first module, the function, or the first module of a frame."""

    kind: RegionKind
    owner: Any
    name: str
    title: str
    calls: list[Call]
    inputs: dict[str, Layout]  # tensors that a call gives it, by name, and then parameters
    outputs: tuple[Layout, ...]
    operations: list[Operation]  # of one call
    chain: FrameChain | None = None
    held: dict[str, Any] = field(default_factory=dict)  # arguments of a function that are no tensors

    def __repr__(self) -> str:
        return f"<Region {self.title}, {len(self.calls)} calls>"

    @property
    def moved(self) -> list[Layout]:
        """What one kernel would have to read and write; an argument of which only the dtype is asked is not read."""
        read = {layout for one in self.operations for layout in one.reads}
        return [*(one for one in self.inputs.values() if one in read), *self.outputs]


@dataclass(frozen=True)
class FrameChain:
    """A chain, the frame it is a part of, and the function that it would become."""

    frame: fx.GraphModule
    leaves: Leaves
    chain: Chain
    text: ChainText


def find_regions(recording: Recording) -> list[Region]:
    taken: set[int] = set()  # calls that are a part of a region, by id
    found = [*_chain_regions(recording, taken), *_whole_regions(recording, taken)]
    return [one for one in found if len(computing(one.operations)) > 1 and _has_floats(one)]


def _has_floats(region: Region) -> bool:
    """Whether it works on data; what makes masks and positions runs once for a model and is not worth a kernel."""
    return any(one.dtype.is_floating_point for one in region.moved[: -len(region.outputs)])


# -- whole modules and functions --


def _whole_regions(recording: Recording, taken: set[int]) -> Iterator[Region]:
    groups: dict[Any, list[Call]] = {}
    until = -1
    for call in recording.calls:
        inside = call.first < until
        if id(call) in taken or inside or not _is_candidate(call, recording):
            continue
        until = call.last  # what it calls is a part of it
        groups.setdefault(_key(call), []).append(call)
    for calls in groups.values():
        yield _whole(calls, recording)


def _is_candidate(call: Call, recording: Recording) -> bool:
    operations = recording.within(call)
    results = tree_leaves(call.result)
    plain = bool(results) and all(isinstance(one, torch.Tensor) for one in results)
    if not plain or not call.tensors or not computing(operations):
        return False
    return are_fusible(operations) or (not call.is_module and is_attention(operations))


def _key(call: Call) -> Any:
    """Calls that one kernel serves: the same class or function, with the same numbers and layouts."""
    layouts = tuple(layout_of(one) for one in call.tensors)
    plain = tuple(repr(one) for one in tree_leaves((call.args, call.kwargs)) if not isinstance(one, torch.Tensor))
    if not call.is_module:
        return (call.owner, layouts, plain)
    held = tuple((name, value) for name, value in vars(call.owner).items() if isinstance(value, (int, float, str)))
    parameters = tuple((name, layout_of(one)) for name, one in call.owner.named_parameters())
    return (type(call.owner), layouts, plain, repr(held), parameters)


def _whole(calls: list[Call], recording: Recording) -> Region:
    call = calls[0]
    operations = recording.within(call)
    inputs, held = _arguments(call)
    names = [base_name(one) for one in operations]
    kind = RegionKind.MODULE if call.is_module else RegionKind.FUNCTION
    own = type(call.owner).__name__ if call.is_module else call.owner.__name__
    known = known_name(names, 1 if call.is_module else len(inputs))
    if call.is_module:
        inputs |= {name: layout_of(one) for name, one in state_of(call.owner).items()}
    title = f"{known} ({own})" if known and known.lower() not in own.lower() else own
    outputs = tuple(layout_of(one) for one in tree_leaves(call.result))
    return Region(kind, call.owner, usable_name(own), title, calls, inputs, outputs, operations, held=held)


def state_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """What a kernel for a module takes beside its arguments: parameters, and buffers of floats."""
    buffers = {name: one for name, one in module.named_buffers() if one.is_floating_point()}
    return {**dict(module.named_parameters()), **buffers}


def _arguments(call: Call) -> tuple[dict[str, Layout], dict[str, Any]]:
    """The tensors of a call by name, and what else it was given."""
    signature = inspect.signature(call.owner.forward if call.is_module else call.owner)
    bound = signature.bind(*call.args, **call.kwargs).arguments
    variadic = [one.name for one in signature.parameters.values() if one.kind is one.VAR_KEYWORD]
    for name in variadic:
        bound |= bound.pop(name, {})
    tensors = {name: layout_of(one) for name, one in bound.items() if isinstance(one, torch.Tensor)}
    return tensors, {name: one for name, one in bound.items() if not isinstance(one, torch.Tensor)}


# -- chains --


def _chain_regions(recording: Recording, taken: set[int]) -> Iterator[Region]:
    frames: dict[Any, list[Call]] = {}
    for call in recording.calls:
        if call.is_module and not are_fusible(recording.within(call)) and not _is_of_torch(call.owner):
            frames.setdefault((_key(call), _children_key(call.owner)), []).append(call)
    functions = {one.owner for one in recording.calls if not one.is_module and _is_candidate(one, recording)}
    for calls in frames.values():
        yield from _chains_of(calls, functions, recording, taken)


def _is_of_torch(module: torch.nn.Module) -> bool:
    return type(module).__module__.partition(".")[0] == "torch"


def _children_key(module: torch.nn.Module) -> tuple[Any, ...]:
    return tuple((name, type(one), one.extra_repr()) for name, one in module.named_modules() if name)


def _chains_of(calls: list[Call], functions: set[Any], recording: Recording, taken: set[int]) -> Iterator[Region]:
    call = calls[0]
    plain = isinstance(call.result, torch.Tensor) or type(call.result) in (tuple, list, dict)
    leaves, _ = Leaves.of(call.args, call.kwargs)
    frame = trace_frame(call.owner, leaves, functions) if plain and leaves.open else None
    if frame is None:
        return
    inner = _inner_calls(call, recording)
    values = _Values(frame, inner).of(call)
    if values is None:
        return

    def is_fusible(node: fx.Node) -> bool:
        if not _is_of_tensors(values.get(node)):
            return node.target is getattr and is_fusible_call(node)
        if node.op != "call_module":
            return node.target not in functions and is_fusible_call(node)
        seen = inner.get(str(node.target).removeprefix("module."))
        return seen is not None and are_fusible(recording.within(seen)) and bool(computing(recording.within(seen)))

    for chain in chains(frame.graph, is_fusible):
        if sum(not is_view(one) and one.target is not getattr for one in chain.nodes) > 1:
            region = _chain_region(FrameSeen(calls, frame, leaves, values), chain)
            if region is not None:
                _take(region, recording, taken)
                yield region


def _inner_calls(call: Call, recording: Recording) -> dict[str, Call]:
    """The calls of children within a call, by path below it."""
    prefix = f"{call.path}." if call.path else ""
    found: dict[str, Call] = {}
    for one in recording.calls:
        if one.is_module and one.path.startswith(prefix) and call.first <= one.first and one.last <= call.last:
            found.setdefault(one.path.removeprefix(prefix), one)
    return found


@dataclass(frozen=True)
class FrameSeen:
    calls: list[Call]
    frame: fx.GraphModule
    leaves: Leaves
    values: dict[fx.Node, Any]


class _Values(fx.Interpreter):
    """What every node of a frame stands for, without content; children give what they gave when recorded."""

    def __init__(self, frame: fx.GraphModule, inner: dict[str, Call]) -> None:
        super().__init__(frame, garbage_collect_values=False)
        self._inner = inner

    def of(self, call: Call) -> dict[fx.Node, Any] | None:
        _, values = Leaves.of(call.args, call.kwargs)
        try:
            with torch.no_grad():
                self.run(*values)
        except Exception:  # whatever cannot be done without content
            return None
        return self.env

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        return self._inner[str(target).removeprefix("module.")].result

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        found = super().get_attr(target, args, kwargs)
        return found.detach().to("meta") if isinstance(found, torch.Tensor) else found


def _is_of_tensors(value: Any) -> bool:
    leaves = tree_leaves(value)
    return bool(leaves) and all(isinstance(one, torch.Tensor) for one in leaves)


def _chain_region(seen: FrameSeen, chain: Chain) -> Region | None:
    given = [seen.values.get(one) for one in chain.inputs]
    left = [seen.values.get(one) for one in chain.outputs]
    if not all(isinstance(one, torch.Tensor) for one in (*given, *left)):
        return None
    own = type(seen.calls[0].owner).__name__
    words = [_word(seen.frame, one) for one in chain.nodes if not is_view(one) and one.target is not getattr]
    text = chain_text(seen.frame, chain, "_".join(words))
    if text is None:
        return None
    known = known_name(text.calls, sum(one.node is not None for one in text.inputs))
    name = usable_name(known.lower().replace(" + ", "_").replace(" ", "_") or "_".join(words).lower())
    text = chain_text(seen.frame, chain, name)
    assert text is not None
    tensors = {one.name: _value(seen, one.node, one.path) for one in text.inputs}
    operations = record_function(chain_function(text), *tensors.values())
    inputs = {name: layout_of(one) for name, one in tensors.items()}
    title = f"{known or ' + '.join(words)} (in {own})"
    outputs = tuple(layout_of(one) for one in left if isinstance(one, torch.Tensor))
    frame = FrameChain(seen.frame, seen.leaves, chain, text)
    return Region(RegionKind.CHAIN, seen.calls[0].owner, name, title, seen.calls, inputs, outputs, operations, frame)


def _word(frame: fx.GraphModule, node: fx.Node) -> str:
    if node.op == "call_module":
        return type(frame.get_submodule(str(node.target))).__name__
    target = node.target
    return str(target if isinstance(target, str) else getattr(target, "__name__", target)).strip("_")


def _value(seen: FrameSeen, node: fx.Node | None, path: str) -> torch.Tensor:
    if node is not None:
        found = seen.values[node]
        assert isinstance(found, torch.Tensor)
        return found
    tensor: torch.Tensor = attrgetter(path)(seen.calls[0].owner)
    return tensor.detach().to("meta")


def chain_function(text: ChainText) -> Callable[..., Any]:
    namespace: dict[str, Any] = {}
    exec(text.source, namespace)
    function: Callable[..., Any] = namespace[text.function]
    return function


def _take(region: Region, recording: Recording, taken: set[int]) -> None:
    """The modules that a chain consists of are no regions of their own where it is."""
    assert region.chain is not None
    targets = [str(one.target).removeprefix("module.") for one in region.chain.chain.nodes if one.op == "call_module"]
    for call in region.calls:
        inner = _inner_calls(call, recording)
        taken |= {id(inner[one]) for one in targets if one in inner}
