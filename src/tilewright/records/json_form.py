"""The JSON form of all records, derived from their annotations.

Dataclasses become objects with `"is": "<class name>"`, bytes become base64. Fields in a class's `LEFT_OUT` are omitted
if they have their default. `from_json` refuses unknown and missing keys; `formerly` describes older forms.
"""

from __future__ import annotations

import base64
import dataclasses
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import cache
from itertools import repeat
from typing import Any, TypeVar

T = TypeVar("T")


class RecordError(ValueError):
    """JSON that does not describe a record of the expected type."""


@dataclasses.dataclass(frozen=True)
class _Former:
    """The older stored forms of a class or enum."""

    values: Mapping[str, str] = dataclasses.field(default_factory=dict)
    derived: Mapping[str, Callable[[dict[str, Any]], Any]] = dataclasses.field(default_factory=dict)


_FORMER: dict[type, _Former] = {}
_NEVER_OTHERWISE = _Former()


def formerly(
    *,
    values: Mapping[str, str] | None = None,
    derived: Mapping[str, Callable[[dict[str, Any]], Any]] | None = None,
) -> Callable[[type[T]], type[T]]:
    """Read older stored forms of a record or enum.

    `values`: old enum values and the present ones. `derived`: fields that were not stored, with the functions that
    compute them from the others, as plain JSON.
    """

    def remember(kind: type[T]) -> type[T]:
        _FORMER[kind] = _Former(values or {}, derived or {})
        return kind

    return remember


_PLAIN = frozenset((bool, int, float, str, type(None)))
_Decoder = Callable[[Any], Any]


def to_json(value: object) -> Any:
    """A record as plain JSON values."""
    kind: Any = type(value)
    if kind in _PLAIN:
        return value
    if kind is tuple or kind is list:
        return [item if type(item) in _PLAIN else to_json(item) for item in typing.cast(Iterable[Any], value)]
    names = _field_names(kind)
    if names is None:
        return _other_to_json(value)
    made: dict[str, Any] = {"is": kind.__name__}
    left_out = _left_out(kind)
    for name in names:
        item = getattr(value, name)
        if name in left_out and item == left_out[name]:
            continue
        made[name] = item if type(item) in _PLAIN else to_json(item)
    return made


def _other_to_json(value: object) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, (tuple, list)):
        return [to_json(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    raise TypeError(f"{type(value).__name__} has no JSON form")


@cache
def _field_names(kind: Any) -> tuple[str, ...] | None:
    """The fields of a record; None for any other type."""
    return tuple(field.name for field in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else None


@cache
def _left_out(kind: Any) -> dict[str, Any]:
    """The fields in a record's `LEFT_OUT`, with their defaults."""
    named = getattr(kind, "LEFT_OUT", ())
    return {field.name: field.default for field in dataclasses.fields(kind) if field.name in named}


def from_json(kind: type[T] | Any, data: Any) -> T:
    """The record of type `kind` that `data` describes; raises `RecordError` with the path of the first mismatch."""
    try:
        return typing.cast(T, _decoder(typing.cast(Any, kind))(data))
    except _Mismatch as mismatch:
        path = "".join((getattr(kind, "__name__", "record"), *reversed(mismatch.path)))
        raise RecordError(f"{path}: {mismatch.reason}") from None


class _Mismatch(Exception):
    """While it propagates, every level adds its step to the path."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path: list[str] = []  # innermost first


@cache
def _decoder(kind: Any) -> _Decoder:
    """The decoder of a type, cached: executions contain thousands of records."""
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return _union_decoder(typing.get_args(kind))
    if origin is tuple:
        return _tuple_decoder(typing.get_args(kind))
    if origin is dict:
        return _dict_decoder(*typing.get_args(kind))
    if dataclasses.is_dataclass(kind):
        return _record_decoder(typing.cast(type, kind))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _enum_decoder(kind)
    return _plain_decoder(kind)


def _plain_decoder(kind: Any) -> _Decoder:
    if kind is bytes:
        return _decode_bytes
    if kind is float:
        return _decode_float

    def decode(data: Any) -> Any:
        if type(data) is kind and kind in _PLAIN:
            return data
        raise _unexpected(kind, data)

    return decode


def _decode_bytes(data: Any) -> bytes:
    if not isinstance(data, str):
        raise _unexpected(bytes, data)
    try:
        return base64.b64decode(data, validate=True)
    except ValueError:
        raise _Mismatch("not base64") from None


def _decode_float(data: Any) -> float:
    if not isinstance(data, (int, float)) or isinstance(data, bool):
        raise _unexpected(float, data)
    try:
        return float(data)
    except OverflowError:
        raise _Mismatch("too large for a float") from None


def _unexpected(kind: Any, data: Any) -> _Mismatch:
    return _Mismatch(f"expected {getattr(kind, '__name__', kind)}, found {type(data).__name__}")


def _enum_decoder(kind: type[Enum]) -> _Decoder:
    former = _FORMER.get(kind, _NEVER_OTHERWISE).values

    def decode(data: Any) -> Any:
        try:
            return kind(former.get(data, data) if isinstance(data, str) else data)
        except ValueError:
            raise _Mismatch(f"{data!r} is not one of {[m.value for m in kind]}") from None

    return decode


def _dict_decoder(key_type: Any, value_type: Any) -> _Decoder:
    def decode(data: Any) -> Any:
        if not isinstance(data, dict):
            raise _Mismatch("expected an object")
        made = {}
        for key, item in data.items():
            name = _decoder(key_type)(key)
            try:
                made[name] = _decoder(value_type)(item)
            except _Mismatch as mismatch:
                mismatch.path.append(f".{key}")
                raise
        return made

    return decode


def _tuple_decoder(items: tuple[Any, ...]) -> _Decoder:
    any_number = len(items) == 2 and items[1] is Ellipsis

    def decode(data: Any) -> Any:
        if not isinstance(data, list):
            raise _Mismatch("expected a list")
        if not any_number and len(items) != len(data):
            raise _Mismatch(f"expected {len(items)} items, found {len(data)}")
        kinds = repeat(_decoder(items[0]), len(data)) if any_number else map(_decoder, items)
        made: list[Any] = []
        try:
            for decode_item, item in zip(kinds, data, strict=True):
                made.append(decode_item(item))
        except _Mismatch as mismatch:
            mismatch.path.append(f"[{len(made)}]")
            raise
        return tuple(made)

    return decode


def _union_decoder(kinds: tuple[Any, ...]) -> _Decoder:
    records: dict[str, Any] = {kind.__name__: kind for kind in kinds if _field_names(kind) is not None}

    def decode(data: Any) -> Any:
        if isinstance(data, dict) and "is" in data:
            kind = records.get(data["is"]) if isinstance(data["is"], str) else None
            if kind is None:
                raise _Mismatch(f"no record called {data['is']!r} belongs here")
            return _decoder(kind)(data)
        # Exact plain types first, so that `int | float | bool` keeps what was written.
        for kind in sorted(kinds, key=lambda k: k is not type(data)):
            try:
                return _decoder(kind)(data)
            except _Mismatch:
                continue
        names = [getattr(kind, "__name__", kind) for kind in kinds]
        raise _Mismatch(f"{type(data).__name__} does not fit any of {names}")

    return decode


def _record_decoder(kind: type) -> _Decoder:
    derived = _FORMER.get(kind, _NEVER_OTHERWISE).derived

    def decode(data: Any) -> Any:
        if not isinstance(data, dict):
            raise _Mismatch(f"expected an object, found {type(data).__name__}")
        if data.get("is", kind.__name__) != kind.__name__:
            raise _Mismatch(f"expected {kind.__name__}, found {data['is']!r}")
        if derived:
            data = {name: rule(data) for name, rule in derived.items()} | data
        fields = _fields(kind)
        if not data.keys() <= fields.keys():
            unknown = data.keys() - fields.keys() - {"is"}
            if unknown:
                raise _Mismatch(f"unknown key {min(unknown)!r}")
        values = {}
        for name, (decode_field, is_needed) in fields.items():
            if name in data:
                try:
                    values[name] = decode_field(data[name])
                except _Mismatch as mismatch:
                    mismatch.path.append(f".{name}")
                    raise
            elif is_needed:
                raise _Mismatch(f"missing key {name!r}")
        try:
            return kind(**values)
        except ValueError as error:  # the record's own rules
            raise _Mismatch(str(error)) from None

    return decode


@cache
def _fields(kind: type) -> dict[str, tuple[_Decoder, bool]]:
    """Decoder of each field, and whether it is required. Computed late because records may be recursive."""
    hints = typing.get_type_hints(kind)
    missing = dataclasses.MISSING
    return {
        field.name: (_decoder(hints[field.name]), field.default is missing and field.default_factory is missing)
        for field in dataclasses.fields(kind)
    }


# -- exceptions in other processes --


class Carried(Exception):
    """An exception that pickle can restore although its constructor takes other arguments than `Exception`."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (type(self), self.args), self.__dict__


def _again(kind: type[Carried], arguments: tuple[Any, ...]) -> Carried:
    return kind.__new__(kind, *arguments)
