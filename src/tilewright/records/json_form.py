"""The JSON form of every record: one generic pair of functions, driven by the records' own annotations.

Dataclasses become objects; members of a union of dataclasses carry `"is": "<class name>"`; bytes become base64.
`from_json` refuses unknown and missing keys, so a record read from disk is one that could have been built here.
"""

from __future__ import annotations

import base64
import dataclasses
import types
import typing
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


class RecordError(ValueError):
    """JSON that is not the record it was said to be."""


def to_json(value: object) -> Any:
    """A record as plain JSON values."""
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, (tuple, list)):
        return [to_json(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"is": type(value).__name__, **fields}
    raise TypeError(f"{type(value).__name__} has no JSON form")


def from_json(kind: type[T] | Any, data: Any) -> T:
    """The record of type `kind` that `data` describes; raises `RecordError` with the path of the first mismatch."""
    return typing.cast(T, _decode(kind, data, getattr(kind, "__name__", "record")))


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _decode(kind: Any, data: Any, path: str) -> Any:
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return _decode_union(typing.get_args(kind), data, path)
    if origin is tuple:
        return _decode_tuple(typing.get_args(kind), data, path)
    if origin is dict:
        key_type, value_type = typing.get_args(kind)
        if not isinstance(data, dict):
            raise RecordError(f"{path}: expected an object")
        return {_decode(key_type, k, path): _decode(value_type, v, f"{path}.{k}") for k, v in data.items()}
    if dataclasses.is_dataclass(kind):
        return _decode_record(typing.cast(type, kind), data, path)
    if isinstance(kind, type) and issubclass(kind, Enum):
        try:
            return kind(data)
        except ValueError:
            raise RecordError(f"{path}: {data!r} is not one of {[m.value for m in kind]}") from None
    return _decode_plain(kind, data, path)


def _decode_plain(kind: Any, data: Any, path: str) -> Any:
    if kind is bytes and isinstance(data, str):
        try:
            return base64.b64decode(data, validate=True)
        except ValueError:
            raise RecordError(f"{path}: not base64") from None
    if kind is float and isinstance(data, (int, float)) and not isinstance(data, bool):
        try:
            return float(data)
        except OverflowError:
            raise RecordError(f"{path}: too large for a float") from None
    if kind is type(None) and data is None:
        return None
    if kind in (int, bool, str) and type(data) is kind:
        return data
    raise RecordError(f"{path}: expected {getattr(kind, '__name__', kind)}, found {type(data).__name__}")


def _decode_tuple(items: tuple[Any, ...], data: Any, path: str) -> tuple[Any, ...]:
    if not isinstance(data, list):
        raise RecordError(f"{path}: expected a list")
    if len(items) == 2 and items[1] is Ellipsis:
        return tuple(_decode(items[0], item, f"{path}[{i}]") for i, item in enumerate(data))
    if len(items) != len(data):
        raise RecordError(f"{path}: expected {len(items)} items, found {len(data)}")
    return tuple(_decode(kind, item, f"{path}[{i}]") for i, (kind, item) in enumerate(zip(items, data, strict=True)))


def _decode_union(kinds: tuple[Any, ...], data: Any, path: str) -> Any:
    if isinstance(data, dict) and "is" in data:
        for kind in kinds:
            if dataclasses.is_dataclass(kind) and getattr(kind, "__name__", "") == data["is"]:
                return _decode(kind, data, path)
        raise RecordError(f"{path}: no record called {data['is']!r} belongs here")
    # Exact plain types first, so that `int | float | bool` keeps what was written.
    for kind in sorted(kinds, key=lambda k: k is not type(data)):
        try:
            return _decode(kind, data, path)
        except RecordError:
            continue
    raise RecordError(f"{path}: {type(data).__name__} does not fit any of {[getattr(k, '__name__', k) for k in kinds]}")


def _decode_record(kind: type, data: Any, path: str) -> Any:
    if not isinstance(data, dict):
        raise RecordError(f"{path}: expected an object, found {type(data).__name__}")
    if data.get("is", kind.__name__) != kind.__name__:
        raise RecordError(f"{path}: expected {kind.__name__}, found {data['is']!r}")
    hints = _hints(kind)
    fields = {f.name: f for f in dataclasses.fields(kind)}
    unknown = data.keys() - fields.keys() - {"is"}
    if unknown:
        raise RecordError(f"{path}: unknown key {min(unknown)!r}")
    values = {}
    for name, declared in fields.items():
        if name in data:
            values[name] = _decode(hints[name], data[name], f"{path}.{name}")
        elif declared.default is dataclasses.MISSING and declared.default_factory is dataclasses.MISSING:
            raise RecordError(f"{path}: missing key {name!r}")
    try:
        return kind(**values)
    except ValueError as error:  # the record's own rules
        raise RecordError(f"{path}: {error}") from None
