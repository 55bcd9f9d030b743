"""Runs in the child: replaces builtins that would turn tracked numbers into plain ones."""

from __future__ import annotations

import ast
import itertools
import math
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tilewright.tasks.child.branch_watch import BranchWatch, is_own_file, tree_of
from tilewright.tasks.child.tracked_numbers import applied, is_tracked, listening


class TrackingBuiltins:
    """Tracking `len`, `range`, `int`, `float` and `math` for the reference's modules during a watched call."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._modules = _own_modules(function)
        self._plain_kinds = {id(one): _uses_kinds_as_values(one) for one in self._modules}
        scripted = (
            name
            for module in self._modules
            for name, one in vars(module).items()
            if isinstance(one, (torch.jit.ScriptFunction, torch.jit.ScriptModule))
        )
        self.hidden = "".join(
            f"torch.jit.script hides the branches of {name}" for name in itertools.islice(scripted, 1)
        )

    @contextmanager
    def installed(self, watch: BranchWatch) -> Iterator[None]:
        before: list[tuple[dict[str, Any], dict[str, Any], list[str]]] = []
        for module in self._modules:
            names = vars(module)
            instead = self._instead(module, watch)
            before.append((names, {name: names[name] for name in instead if name in names}, list(instead)))
            names.update(instead)
        try:
            with watch, listening(watch.listen):
                yield
        finally:
            for names, kept, added in before:
                for name in added:
                    names.pop(name, None)
                names.update(kept)

    def _instead(self, module: types.ModuleType, watch: BranchWatch) -> dict[str, Any]:
        names = vars(module)
        instead: dict[str, Any] = {"len": watch.length, "range": watch.range}
        if not self._plain_kinds[id(module)]:
            instead |= {
                "int": _TrackedKind("int", (), {"plain": int}),
                "float": _TrackedKind("float", (), {"plain": float}),
            }
        instead = {name: one for name, one in instead.items() if name not in names}
        for name, value in names.items():
            if value is math:
                instead[name] = _Mathematics()
            elif getattr(value, "__module__", None) == "math" and callable(value):
                instead[name] = _following(value)
        return instead


class _TrackedKind(type):
    """Replaces `int` or `float`, in calls and in isinstance."""

    plain: type

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and is_tracked(args[0]):
            return applied(cls.plain.__name__, cls.plain, args[0])
        return cls.plain(*args, **kwargs)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.plain)


class _Mathematics:
    def __getattr__(self, name: str) -> Any:
        found = getattr(math, name)
        return _following(found) if callable(found) else found


def _following(function: Callable[..., Any]) -> Callable[..., Any]:
    name = getattr(function, "__name__", "")
    return lambda *args, **kwargs: function(*args, **kwargs) if kwargs else applied(name, function, *args)


def _own_modules(function: Callable[..., Any]) -> list[types.ModuleType]:
    """The reference's module and the neighbouring modules that it uses."""
    found: dict[str, types.ModuleType] = {}
    waiting = [getattr(function, "__module__", "")]
    while waiting:
        module = sys.modules.get(waiting.pop())
        file = getattr(module, "__file__", None)
        if module is None or module.__name__ in found or not file or not is_own_file(file):
            continue
        found[module.__name__] = module
        for value in list(vars(module).values()):
            named = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
            waiting += [named] if isinstance(named, str) else []
    return list(found.values())


def _uses_kinds_as_values(module: types.ModuleType) -> bool:
    """Whether `int` or `float` is used as a value, as in `dtype=int`, and cannot be replaced."""
    tree = tree_of(module.__file__ or "")
    if tree is None:
        return True
    fine: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            fine.add(id(node.func))
            if isinstance(node.func, ast.Name) and node.func.id == "isinstance":
                fine |= {id(one) for argument in node.args[1:] for one in ast.walk(argument)}
        for kind in ("annotation", "returns"):
            annotation = getattr(node, kind, None)
            fine |= {id(one) for one in ast.walk(annotation)} if isinstance(annotation, ast.AST) else set()
    uses = (node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id in ("int", "float"))
    return any(id(node) not in fine for node in uses)
