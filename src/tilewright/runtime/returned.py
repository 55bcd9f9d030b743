"""What a function returns, beyond the tensors: dicts, tuples, dataclasses, None, and arguments returned themselves.

A kernel has results in order. The form of a function's answer is learnt from one call of it and puts the results of a
kernel into the same form, with the very objects of the call where the function returned its arguments.
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
    """Something that is no tensor, such as None: the same in every call."""

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
    """A dict, another mapping, or a dataclass: what takes its parts by name."""

    make: Callable[..., Any]
    names: tuple[Any, ...]
    items: tuple[OutputSpec, ...]

    def fill(self, results: Sequence[Any], arguments: Mapping[str, Any]) -> Any:
        parts = {name: item.fill(results, arguments) for name, item in zip(self.names, self.items, strict=True)}
        return self.make(parts)


OutputSpec = Result | Number | Argument | Constant | Listed | Named


def leaves(value: Any) -> Iterator[Any]:
    """What lies in tuples, lists, mappings and dataclasses, in order; None counts as nothing."""
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
    """The form of what a function returned for these arguments; None where a kernel's plain answer is the same."""
    learning = _Learning(arguments, frozenset(in_place))
    form = learning.form(returned)
    plain: OutputSpec
    if learning.results == 0:
        plain = Constant(None)
    elif learning.results == 1:
        plain = Result(0)
    else:
        plain = Listed(tuple, tuple(Result(number) for number in range(learning.results)))
    return None if form == plain else form


class _Learning:
    """One walk over what was returned: which result each tensor is."""

    def __init__(self, arguments: Mapping[str, Any], in_place: frozenset[str]) -> None:
        self.results = 0
        self._in_place = in_place
        self._seen = {id(value): Argument(name) for name, value in arguments.items() if isinstance(value, torch.Tensor)}
        self._known: dict[int, OutputSpec] = {}

    def form(self, value: Any) -> OutputSpec:
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, Mapping):
            kind: Any = type(value)
            make = dict if kind is dict else partial(_by_names, kind)
            return Named(make, tuple(value), tuple(self.form(one) for one in value.values()))
        if isinstance(value, (tuple, list)):
            return Listed(_maker(type(value)), tuple(self.form(one) for one in value))
        if _is_record(value):
            record: Any = type(value)
            names = tuple(one.name for one in dataclasses.fields(value))
            return Named(partial(_by_names, record), names, tuple(self.form(getattr(value, name)) for name in names))
        if isinstance(value, (bool, int, float)):
            self.results += 1
            return Number(self.results - 1, type(value))
        return Constant(value)

    def _tensor(self, value: torch.Tensor) -> OutputSpec:
        argument = self._seen.get(id(value))
        if argument is not None and argument.name in self._in_place:
            return argument  # what is changed in place is no result of its own
        number = self.results
        self.results += 1
        return argument or self._known.setdefault(id(value), Result(number))


def _maker(kind: type) -> Callable[[list[Any]], Any]:
    return partial(_by_places, kind) if hasattr(kind, "_fields") else kind


def _by_names(kind: Any, parts: Mapping[str, Any]) -> Any:
    return kind(**parts)


def _by_places(kind: Any, items: Sequence[Any]) -> Any:
    return kind(*items)


def _is_record(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)
