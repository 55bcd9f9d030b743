"""A chain of a frame as a plain PyTorch function: its text, and where each of its inputs comes from."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from tilewright.frontends.finding.frames import ROOT, Chain, Leaves, last_name, trace_whole
from tilewright.tasks.reading.python_source import usable_name

_SIGNATURE = re.compile(r"def forward\(self(?:, )?(?P<taken>.*?)\)(?: -> [^:]+)?:")
_FREED = re.compile(r";  [\w = ]+ = None$", re.MULTILINE)


@dataclass(frozen=True)
class ChainInput:
    """A value of the frame, or a parameter or buffer of its module by its path."""

    name: str
    node: fx.Node | None
    path: str = ""


@dataclass(frozen=True)
class ChainText:
    source: str
    function: str
    inputs: tuple[ChainInput, ...]
    calls: tuple[str, ...]  # what it computes, by the names of functions


@dataclass
class _Writer:
    frame: fx.GraphModule
    chain: Chain
    graph: fx.Graph = field(default_factory=fx.Graph)
    inputs: list[ChainInput] = field(default_factory=list)
    made: dict[fx.Node, fx.Node] = field(default_factory=dict)  # of the frame -> of the function
    paths: dict[str, fx.Node] = field(default_factory=dict)

    def run(self, name: str) -> ChainText | None:
        for node in self.chain.inputs:
            self._take(node)
        for node in self.chain.nodes:
            if node.op == "call_module":
                if not self._inline(node):
                    return None
            else:
                self.made[node] = self.graph.node_copy(node, self.made.__getitem__)
        results = [self.made[node] for node in self.chain.outputs]
        self.graph.output(results[0] if len(results) == 1 else tuple(results))
        self.graph.lint()
        return ChainText(self._text(name), name, tuple(self.inputs), self._calls())

    def _take(self, node: fx.Node) -> None:
        if node.op == "get_attr":
            self.made[node] = self._parameter(str(node.target))
            return
        source = node.args[0] if node.target is operator.getitem else node
        named = source if isinstance(source, fx.Node) and source.op == "call_module" else node
        name = self._free_name(named.name.removeprefix("module_"))
        self.made[node] = self.graph.placeholder(name)
        self.inputs.append(ChainInput(name, node))

    def _parameter(self, target: str) -> fx.Node:
        path = target.removeprefix(ROOT)
        if path not in self.paths:
            name = self._free_name(path.rpartition(".")[2])  # equal chains in other places have equal texts
            self.paths[path] = self.graph.placeholder(name)
            self.inputs.append(ChainInput(name, None, path))
        return self.paths[path]

    def _free_name(self, wanted: str) -> str:
        return usable_name(wanted, [one.name for one in self.inputs], "x")

    def _inline(self, node: fx.Node) -> bool:
        """The body of a child module in the place of its call."""
        place = str(node.target)
        leaves, values = Leaves.of(node.args, dict(node.kwargs))
        inner = trace_whole(self.frame.get_submodule(place), leaves)
        if inner is None or not all(isinstance(one, fx.Node) for one in values):
            return False
        made: dict[fx.Node, fx.Node] = {}
        given = iter(values)
        for one in inner.graph.nodes:
            if one.op == "placeholder":
                made[one] = self.made[next(given)]
            elif one.op == "get_attr":
                if not isinstance(operator.attrgetter(str(one.target))(inner), torch.Tensor):
                    return False
                made[one] = self._parameter(f"{place}.{str(one.target).removeprefix(ROOT)}")
            elif one.op == "output":
                if not isinstance(one.args[0], fx.Node):
                    return False
                self.made[node] = made[one.args[0]]
            elif one.op == "call_module":
                return False
            else:
                made[one] = self.graph.node_copy(one, made.__getitem__)
        return True

    def _calls(self) -> tuple[str, ...]:
        return tuple(last_name(one) for one in self.graph.nodes if one.op in ("call_function", "call_method"))

    def _text(self, name: str) -> str:
        """As Python; placeholders come first there whatever their order."""
        for node in [one for one in self.graph.nodes if one.op == "placeholder"]:
            first = next(iter(self.graph.nodes))
            if first is not node and first.op != "placeholder":
                first.prepend(node)
        code = self.graph.python_code("self")
        body = _FREED.sub("", code.src.strip("\n"))
        taken = ", ".join(one.name for one in self._in_order())
        body = _SIGNATURE.sub(f"def {name}({taken}):", body, count=1)
        lines = [line.rstrip() for line in body.splitlines() if line.strip()]
        used = {*re.findall(r"\w+", "\n".join(lines))}
        found = sorted((own, value) for own, value in code.globals.items() if own in used)
        imports = ["import torch", *(_imported(own, value) for own, value in found)]
        return "\n".join([*dict.fromkeys(one for one in imports if one), "", "", *lines]) + "\n"

    def _in_order(self) -> list[ChainInput]:
        places = {str(one.target): place for place, one in enumerate(self.graph.nodes) if one.op == "placeholder"}
        self.inputs.sort(key=lambda one: places.get(one.name, len(places)))
        return self.inputs


def chain_text(frame: fx.GraphModule, chain: Chain, name: str) -> ChainText | None:
    """None where a child module's body cannot be followed."""
    try:
        return _Writer(frame, chain).run(usable_name(name))
    except (KeyError, RuntimeError):
        return None


@dataclass(frozen=True)
class Replacement:
    """A kernel for a chain of a frame, as a function of the chain's inputs."""

    chain: Chain
    text: ChainText
    kernel: Callable[..., Any]


def frame_function(frame: fx.GraphModule, replacements: Sequence[Replacement]) -> Callable[..., Any] | None:
    """The frame as a method of its module, with kernels in the places of chains.

    It takes the open leaves of a call. None where something in between wants a part of what a kernel makes.
    """
    try:
        graph = _with_kernels(frame, replacements)
    except KeyError:
        return None
    code = graph.python_code("self")
    namespace = {**code.globals}
    exec(code.src.replace(f"self.{ROOT}", "self."), namespace)
    function: Callable[..., Any] = namespace["forward"]
    return function


def _with_kernels(frame: fx.GraphModule, replacements: Sequence[Replacement]) -> fx.Graph:
    graph = fx.Graph()
    made: dict[fx.Node, fx.Node] = {}
    inside = {node for one in replacements for node in one.chain.nodes}
    at_end = {one.chain.nodes[-1]: one for one in replacements}
    for node in frame.graph.nodes:
        if node in at_end:
            _call_kernel(graph, made, at_end[node])
        elif node.op == "output":
            graph.output(fx.map_arg(node.args[0], made.__getitem__))
        elif node not in inside:
            made[node] = graph.node_copy(node, made.__getitem__)
    return graph


def _call_kernel(graph: fx.Graph, made: dict[fx.Node, fx.Node], one: Replacement) -> None:
    given = [made[own.node] if own.node is not None else graph.get_attr(ROOT + own.path) for own in one.text.inputs]
    called = graph.call_function(one.kernel, tuple(given))
    several = len(one.chain.outputs) > 1
    for place, node in enumerate(one.chain.outputs):
        made[node] = graph.call_function(operator.getitem, (called, place)) if several else called


def _imported(name: str, value: Any) -> str:
    """The line that gives a name of the generated text its meaning."""
    if name in ("torch", "NoneType", "fx_pytree", "pytree", "getattr"):
        return ""
    if name == "device":
        return "from torch import device"
    if name in ("inf", "nan"):
        return f"from math import {name}"
    module = getattr(value, "__module__", None) or "torch"
    own = getattr(value, "__name__", name)
    return f"from {module} import {own}" + (f" as {name}" if name != own else "")
