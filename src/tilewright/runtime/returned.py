"""The structure of a function's output, as pytrees have it: dicts, tuples, dataclasses, None, returned arguments.

A kernel returns a flat list of results. The output spec is derived from one call of the reference and rebuilds the same
structure from them; arguments that the function returns are returned as the same objects.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch


@dataclass(frozen=True)
class Result:
    """A result of the kernel, by its number."""

    number: int

    def fill(self, results: Sequence[Any], arguments: Mapping[str, Any]) -> Any:
        return results[self.number]


@dataclass(frozen=True)
class Number:
    """A result of the kernel that the function returns as a Python number."""

    number: int
    kind: type

    def fill(self, results: Sequence[Any], arguments: Mapping[str, Any]) -> Any:
        return self.kind(results[self.number].item())


@dataclass(frozen=True)
class Argument:
    """An argument of the call itself, by its name."""

    name: str

    def fill(self, results: Sequence[Any], arguments: Mapping[str, Any]) -> Any:
        return arguments[self.name]


@dataclass(frozen=True)
class Constant:
    """A value that is no tensor, such as None."""

    value: Any

    def fill(self, results: Sequence[Any], arguments: Mapping[str, Any]) -> Any:
        return self.value


@dataclass(frozen=True)
class Listed:
    """A tuple, a named tuple or a list."""

    make: Callable[[list[Any]], Any]
    items: tuple[OutputSpec, ...]

    def fill(self, results: Sequence[Any], arguments: Mapping[str, Any]) -> Any:
        return self.make([item.fill(results, arguments) for item in self.items])


@dataclass(frozen=True)
class Named:
    """A mapping or a dataclass."""

    make: Callable[..., Any]
    names: tuple[Any, ...]
    items: tuple[OutputSpec, ...]

    def fill(self, results: Sequence[Any], arguments: Mapping[str, Any]) -> Any:
        parts = {name: item.fill(results, arguments) for name, item in zip(self.names, self.items, strict=True)}
        return self.make(parts)


OutputSpec = Result | Number | Argument | Constant | Listed | Named


def leaves(value: Any) -> Iterator[Any]:
    """The leaves of nested tuples, lists, mappings and dataclasses, in order, without None."""
    if value is None:
        return
    if isinstance(value, Mapping):
        parts: Sequence[Any] = tuple(value.values())
    elif isinstance(value, (tuple, list)):
        parts = value
    elif _is_record(value):
        parts = tuple(getattr(value, one.name) for one in dataclasses.fields(value))
    else:
        yield value
        return
    for part in parts:
        yield from leaves(part)


def output_spec_of(returned: Any, arguments: Mapping[str, Any], in_place: Sequence[str]) -> OutputSpec | None:
    """The spec of what a function returned for these arguments; None for a plain tensor, tuple or None."""
    walk = _Walk(arguments, frozenset(in_place))
    form = walk.spec(returned)
    plain: OutputSpec
    if walk.results == 0:
        plain = Constant(None)
    elif walk.results == 1:
        plain = Result(0)
    else:
        plain = Listed(tuple, tuple(Result(number) for number in range(walk.results)))
    return None if form == plain else form


class _Walk:
    """Numbers the results in an output, in order."""

    def __init__(self, arguments: Mapping[str, Any], in_place: frozenset[str]) -> None:
        self.results = 0
        self._in_place = in_place
        self._seen = {id(value): Argument(name) for name, value in arguments.items() if isinstance(value, torch.Tensor)}
        self._known: dict[int, OutputSpec] = {}

    def spec(self, value: Any) -> OutputSpec:
        if isinstance(value, torch.Tensor):
            argument = self._seen.get(id(value))
            if argument is not None and argument.name in self._in_place:
                return argument  # a tensor changed in place is no result
            self.results += 1
            return argument or self._known.setdefault(id(value), Result(self.results - 1))
        if isinstance(value, Mapping):
            kind: Any = type(value)
            make = dict if kind is dict else partial(_by_names, kind)
            return Named(make, tuple(value), tuple(self.spec(one) for one in value.values()))
        if isinstance(value, (tuple, list)):
            sequence: Any = type(value)
            make = partial(_by_places, sequence) if hasattr(sequence, "_fields") else sequence
            return Listed(make, tuple(self.spec(one) for one in value))
        if _is_record(value):
            record: Any = type(value)
            names = tuple(one.name for one in dataclasses.fields(value))
            return Named(partial(_by_names, record), names, tuple(self.spec(getattr(value, name)) for name in names))
        if isinstance(value, (bool, int, float)):
            self.results += 1
            return Number(self.results - 1, type(value))
        return Constant(value)


def _by_names(kind: Any, parts: Mapping[str, Any]) -> Any:
    return kind(**parts)


def _by_places(kind: Any, items: Sequence[Any]) -> Any:
    return kind(*items)


def _is_record(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)
