"""A Python function or class as source text that stands alone, with the imports, constants and helpers it uses.

The text is the reference of a task. It runs in a child process that has none of this process's objects. Code of the
user's own modules is copied into the text, because the child cannot import those modules and a change in them must
change the text; the standard library, torch and installed packages are imported. Numbers from an enclosing function
become constants.
"""

from __future__ import annotations

import ast
import textwrap
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from tilewright.tasks.errors import BadArgument
from tilewright.tasks.lifting.source_text import (
    LAMBDA,
    GlobalGuard,
    NameRewriter,
    SourceBuilder,
    definition,
    is_constant,
    literal,
    strip_docstring,
    undecorated,
)


@dataclass(frozen=True)
class FunctionText:
    """A function as text, which is valid while all guards in `globals` hold."""

    source: str
    function: str
    globals: tuple[GlobalGuard, ...]


def function_text(function: Callable[..., Any]) -> FunctionText:
    """The text of a plain function, a lambda or a closure."""
    function = undecorated(function)
    if not isinstance(function, types.FunctionType):
        raise BadArgument(f"{function!r} is no plain Python function; write one with `def`")
    name = definition(function).name if function.__name__ == LAMBDA else function.__name__
    builder = SourceBuilder(function.__name__)
    name = builder.add(name, function, function.__name__, function.__module__)
    if name not in builder.definitions:  # one that an installed package has wrapped
        raise BadArgument(f"{name} cannot stand in a source text; write a function that calls it")
    return FunctionText(builder.text(), name, tuple(builder.globals))


# -- classes --

_CALL = "__call__"
_PLAIN_BASES = (torch.nn.Module, object)


@dataclass(frozen=True)
class LiftedClass:
    name: str  # in the text
    inherits: bool  # from a layer of torch, whose methods may read any attribute


def lift_class(builder: SourceBuilder, kind: type, method: str) -> LiftedClass:
    """Add a class to a text, with `method`, which becomes `forward`, and the members that it uses."""
    name, new = builder.name_for(kind.__name__, kind)
    if new:
        _ClassLifter(builder, kind, name, method).run()
    return LiftedClass(name, any(_is_library(one) and one not in _PLAIN_BASES for one in kind.__mro__))


@dataclass
class _ClassLifter:
    """One class and its bases. `bodies` has the members that each of them keeps."""

    builder: SourceBuilder
    kind: type
    name: str
    method: str
    bodies: dict[type, dict[str, str]] = field(default_factory=dict)

    def run(self) -> None:
        lineage = [one for one in self.kind.__mro__ if not _is_library(one)]
        self.bodies = {self.kind: {}}
        pending: list[tuple[str, list[type]]] = [(self.method, lineage)]
        pending += [(_CALL, lineage)] if any(_CALL in vars(one) for one in lineage) else []
        while pending:
            wanted, among = pending.pop()
            owner = next((one for one in among if wanted in vars(one)), None)
            if owner is not None and wanted not in self.bodies.setdefault(owner, {}):
                self.bodies[owner][wanted] = ""
                pending += self._lift(owner, wanted, lineage)
        if not self.bodies[self.kind] and len(self.bodies) == 1 and not _inherits_forward(self.kind, self.method):
            raise BadArgument(f"{self.kind.__name__} has no {self.method}; write one, or a function that calls it")
        if self.method != "forward":
            self.bodies[self.kind]["forward"] = f"forward = {self.method}"
        for one in reversed(lineage):
            if one in self.bodies and (one is self.kind or self.bodies[one]):
                self._define(one)

    def _define(self, kind: type) -> None:
        name = self.name if kind is self.kind else self.builder.name_for(kind.__name__, kind)[0]
        bases = list(dict.fromkeys(self._bases(kind)))
        body = "\n\n".join(textwrap.indent(text, "    ") for text in self.bodies[kind].values()) or "    pass"
        inherited = f"({', '.join(bases)})" if bases else ""
        self.builder.definitions[name] = f"class {name}{inherited}:\n\n{body}"

    def _bases(self, kind: type) -> Iterator[str]:
        """The bases in the text: one without needed members is replaced by its own bases."""
        for base in kind.__bases__:
            if base is object:
                continue
            if getattr(torch.nn, base.__name__, None) is base:
                yield f"{self._added(torch, 'torch')}.nn.{base.__name__}"
            elif _is_library(base):
                yield self.builder.add(base.__name__, base, base.__name__, "")
            elif self.bodies.get(base):
                yield self.builder.name_for(base.__name__, base)[0]
            else:
                yield from self._bases(base)

    def _lift(self, owner: type, name: str, lineage: list[type]) -> Iterator[tuple[str, list[type]]]:
        """Add one member, and yield the members that it needs and where they are looked up."""
        raw = vars(owner)[name]
        mark, function = _function_of(raw)
        if function is None:
            if is_constant(raw):
                self.bodies[owner][name] = f"{name} = {literal(raw)}"
            elif not isinstance(raw, (types.MemberDescriptorType, types.GetSetDescriptorType)):
                self.bodies[owner][name] = f"{name} = {self._added(raw, f'{owner.__name__}.{name}')}"
            return
        plain = _unwrapped(function, owner, name)
        node = definition(plain)
        strip_docstring(node)
        own = node.args.args[0].arg if node.args.args and mark != "staticmethod" else ""
        node = NameRewriter(self.builder, plain, node).rewritten()
        self.bodies[owner][name] = (f"@{mark}\n" if mark else "") + ast.unparse(node)
        after = lineage[lineage.index(owner) + 1 :]
        for one in ast.walk(node):
            if isinstance(one, ast.Attribute):
                if _is_super(one.value):
                    yield one.attr, after
                elif _is_self(one.value, own) or (isinstance(one.value, ast.Name) and one.value.id == self.name):
                    yield one.attr, lineage

    def _added(self, value: Any, shown: str) -> str:
        return self.builder.add(getattr(value, "__name__", "value"), value, shown, self.kind.__module__)


def _is_library(kind: type) -> bool:
    return kind is object or kind.__module__.partition(".")[0] in ("torch", "builtins", "abc", "typing")


def _inherits_forward(kind: type, method: str) -> bool:
    return any(_is_library(one) and one.__name__ != "Module" and method in vars(one) for one in kind.__mro__)


def _function_of(raw: object) -> tuple[str, types.FunctionType | None]:
    """The decorator of a member, and its function; None where it is no function."""
    if isinstance(raw, staticmethod):
        return "staticmethod", _plain(raw.__func__)
    if isinstance(raw, classmethod):
        return "classmethod", _plain(raw.__func__)
    if isinstance(raw, property):
        return "property", _plain(raw.fget)
    return "", _plain(raw)


def _plain(value: object) -> types.FunctionType | None:
    return value if isinstance(value, types.FunctionType) else None


def _unwrapped(function: types.FunctionType, owner: type, name: str) -> types.FunctionType:
    """Without `torch.no_grad` and the like, which change no value; any other decorator is refused."""
    while (inner := getattr(function, "__wrapped__", None)) is not None:
        if function.__globals__.get("__name__", "").partition(".")[0] != "torch":
            raise BadArgument(
                f"{owner.__name__}.{name} is wrapped by a decorator of {function.__globals__.get('__name__')}, which a "
                "source text cannot hold; write a function that calls it"
            )
        function = inner
    return function


def _is_super(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"


def _is_self(node: ast.expr, own: str) -> bool:
    """`self`, `type(self)` or `self.__class__`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "type" and node.args:
        node = node.args[0]
    if isinstance(node, ast.Attribute) and node.attr == "__class__":
        node = node.value
    return isinstance(node, ast.Name) and node.id == own and bool(own)
