"""A Python function as a source text of its own: with the imports, constants and helpers it uses, and nothing else.

The text is what a task's reference is, run in a child process that has none of this process's objects. What a function
reads of the person's own modules stands in the text, since the child does not find those modules and a change in them
must be a change of the text; the standard library, torch and installed packages are imported. Numbers that a function
has from the one around it are held in the text; tensors become parameters of it.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from tilewright.frontends.kernel_arguments import BadArgument
from tilewright.frontends.source_definitions import LAMBDA, definition
from tilewright.frontends.source_gathering import Cells, Gathered, Global
from tilewright.frontends.source_values import is_constant, literal, undecorated

__all__ = ["FunctionText", "Global", "function_text", "source_and_globals"]


@dataclass(frozen=True)
class FunctionText:
    """A function as text, and what that was made from: it holds while all of `globals` is as it was."""

    source: str
    function: str
    globals: tuple[Global, ...]
    captured: Mapping[str, Cells | Mapping[str, Any]] = field(default_factory=dict)  # tensors, by parameter


def source_and_globals(function: Callable[..., Any]) -> tuple[str, tuple[Global, ...]]:
    """The text, and what it was made from beside the function: the text holds while all of that is as it was.

    Raises `BadArgument` for a function that cannot stand alone.
    """
    text = function_text(function)
    if text.captured:
        names = ", ".join(text.captured)
        raise BadArgument(f"{text.function} uses {names} of the function around it; pass them as parameters")
    return text.source, text.globals


def function_text(function: Callable[..., Any]) -> FunctionText:
    """The text of a plain function, a lambda, a closure or a `functools.partial` of one."""
    function = undecorated(function)
    if isinstance(function, functools.partial):
        return _partial_text(function)
    if not isinstance(function, types.FunctionType):
        raise BadArgument(f"{function!r} is no plain Python function; write one with `def`")
    name = definition(function).name if function.__name__ == LAMBDA else function.__name__
    gathered = Gathered(function.__name__)
    name = gathered.take(name, function, function.__name__, function.__module__)
    if name not in gathered.definitions:  # one that an installed package has wrapped
        raise BadArgument(f"{name} cannot stand in a source text; write a function that calls it")
    return FunctionText(gathered.text(), name, tuple(gathered.globals), gathered.captured)


def _partial_text(given: functools.partial[Any]) -> FunctionText:
    """Numbers and texts that were given before are held, tensors are parameters under the names they have."""
    inner = function_text(given.func)
    signature = inspect.signature(given.func)
    if any(one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in signature.parameters.values()):
        raise BadArgument(f"{inner.function} takes any arguments; write a function with named parameters")
    bound = signature.bind_partial(*given.args, **given.keywords).arguments
    tensors = {name: bound for name, value in bound.items() if isinstance(value, torch.Tensor)}
    taken = [_declared(one, one.name in bound) for one in signature.parameters.values() if _is_open(one, bound)]
    passed = [f"{name}={name if _is_open(one, bound) else _held(inner, name, bound[name])}"
              for name, one in signature.parameters.items()]  # fmt: skip
    passed += [f"{name}={name}" for name in inner.captured]
    name = f"{inner.function}_partial"
    lines = (
        f"def {name}({', '.join(['*', *taken, *inner.captured])}):\n    return {inner.function}({', '.join(passed)})"
    )
    return FunctionText(f"{inner.source}\n\n{lines}\n", name, inner.globals, {**tensors, **inner.captured})


def _is_open(one: inspect.Parameter, bound: Mapping[str, Any]) -> bool:
    """Whether a call of the partial still needs it, or it is a tensor, which a text cannot hold."""
    return one.name not in bound or isinstance(bound[one.name], torch.Tensor)


def _declared(one: inspect.Parameter, given: bool) -> str:
    said = one.annotation if isinstance(one.annotation, str) else getattr(one.annotation, "__name__", "")
    number = f": {said}" if said in ("int", "float", "bool") else ""
    has_default = not given and one.default is not one.empty and is_constant(one.default)
    return f"{one.name}{number}{f' = {literal(one.default)}' if has_default else ''}"


def _held(inner: FunctionText, name: str, value: object) -> str:
    if not is_constant(value):
        raise BadArgument(
            f"{inner.function}: {name} is a {type(value).__name__}, which a source text cannot hold; "
            "write a function in the place of the partial"
        )
    return literal(value)
