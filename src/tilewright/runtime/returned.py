"""The structure of a function's output, as pytrees have it: dicts, tuples, dataclasses, None, returned arguments.

A kernel returns a flat list of results. The output spec is derived from one call of the reference and rebuilds the same
structure from them; arguments that the function returns are returned as the same objects.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Leaf:
    """A result of the kernel by its number, an argument of the call by its name, or else a value, such as None."""

    number: int = -1
    name: str = ""
    value: Any = None
    kind: type | None = None  # of a result that the function returns as a Python number

    def fill(self, results: Sequence[Any], arguments: Mapping[str, Any]) -> Any:
        if self.name:
            return arguments[self.name]
        if self.number < 0:
            return self.value
        return results[self.number] if self.kind is None else self.kind(results[self.number].item())


@dataclass(frozen=True)
class Node:
    """A tuple, list, named tuple, mapping or dataclass."""

    kind: Any
    names: tuple[Any, ...]  # () of a sequence
    items: tuple[OutputSpec, ...]

    def fill(self, results: Sequence[Any], arguments: Mapping[str, Any]) -> Any:
        parts = [item.fill(results, arguments) for item in self.items]
        if issubclass(self.kind, (tuple, list)):
            return self.kind(*parts) if hasattr(self.kind, "_fields") else self.kind(parts)
        named = dict(zip(self.names, parts, strict=True))
        return named if self.kind is dict else self.kind(**named)


OutputSpec = Leaf | Node


def _parts(value: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]] | None:
    """The names and the values of what is in a structure; None for a leaf."""
    if isinstance(value, Mapping):
        return tuple(value), tuple(value.values())
    if isinstance(value, (tuple, list)):
        return (), tuple(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = tuple(one.name for one in dataclasses.fields(value))
        return names, tuple(getattr(value, name) for name in names)
    return None


def leaves(value: Any) -> Iterator[Any]:
    """The leaves of nested tuples, lists, mappings and dataclasses, in order, without None."""
    parts = _parts(value)
    if parts is not None:
        for part in parts[1]:
            yield from leaves(part)
    elif value is not None:
        yield value


def output_spec_of(returned: Any, arguments: Mapping[str, Any], in_place: Sequence[str]) -> OutputSpec | None:
    """The spec of what a function returned for these arguments; None for a plain tensor, tuple or None."""
    walk = _Walk(arguments, frozenset(in_place))
    form = walk.spec(returned)
    flat = tuple(Leaf(number) for number in range(walk.results))
    plain = Node(tuple, (), flat) if len(flat) > 1 else flat[0] if flat else Leaf()
    return None if form == plain else form


class _Walk:
    """Numbers the results in an output, in order."""

    def __init__(self, arguments: Mapping[str, Any], in_place: frozenset[str]) -> None:
        self.results = 0
        self._in_place = in_place
        tensors = {name: value for name, value in arguments.items() if isinstance(value, torch.Tensor)}
        self._seen = {id(value): Leaf(name=name) for name, value in tensors.items()}
        self._known: dict[int, Leaf] = {}

    def spec(self, value: Any) -> OutputSpec:
        if isinstance(value, torch.Tensor):
            argument = self._seen.get(id(value))
            if argument is not None and argument.name in self._in_place:
                return argument  # a tensor changed in place is no result
            self.results += 1
            return argument or self._known.setdefault(id(value), Leaf(self.results - 1))
        parts = _parts(value)
        if parts is not None:
            return Node(type(value), parts[0], tuple(map(self.spec, parts[1])))
        if isinstance(value, (bool, int, float)):
            self.results += 1
            return Leaf(self.results - 1, kind=type(value))
        return Leaf(value=value)
