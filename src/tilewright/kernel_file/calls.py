"""Normalises the arguments of a call: positional and keyword arguments, defaults, types, in parameter order.

Tensors pass through unchanged, whatever their class; `evaluate` expects a `TensorSpec` instead.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilewright.kernel_file.expression_values import INT_MAX, INT_MIN, MAX_LIST_LENGTH
from tilewright.kernel_file.printer import print_op
from tilewright.kernel_file.syntax import Op, Parameter
from tilewright.records import ScalarType, TensorSpec

ArgumentValue = TensorSpec | int | float | bool | tuple[int, ...] | tuple[float, ...] | tuple[bool, ...] | None
Arguments = Mapping[str, ArgumentValue]

_NOT_TENSORS = frozenset({bool, int, float, complex, str, bytes, list, tuple, dict, type(None)})


class CallError(TypeError):
    """A call that does not fit the op's parameters."""


class Signature:
    """An op's parameters, with precompiled argument conversion."""

    def __init__(self, op: Op) -> None:
        self.op = op
        self.names = tuple(parameter.name for parameter in op.parameters)
        self._converters = tuple(_converter(op.name, parameter) for parameter in op.parameters)
        self._count = len(self.names)

    def normalise(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """The values of all parameters in order: with defaults, and `int` converted to declared `float`."""
        values = args if not kwargs and len(args) == self._count else self._positional(args, kwargs)
        return tuple([convert(value) for convert, value in zip(self._converters, values, strict=True)])

    def arguments(self, arguments: Arguments) -> dict[str, Any]:
        """The same for a mapping of arguments."""
        return dict(zip(self.names, self.normalise((), arguments), strict=True))

    def __str__(self) -> str:
        return print_op(self.op).removeprefix("op").lstrip()

    def _positional(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        name = self.op.name
        if len(args) > self._count:
            raise CallError(f"{name}() takes {self._count} arguments, {len(args)} were given; it is {self}")
        unknown = [key for key in kwargs if key not in self.names]
        if unknown:
            raise CallError(f"{name}() has no parameter {unknown[0]!r}; it is {self}")
        values = list(args)
        for key in self.names[: len(args)]:
            if key in kwargs:
                raise CallError(f"{name}() got {key!r} twice, by position and by name; give it once")
        for parameter in self.op.parameters[len(args) :]:
            if parameter.name in kwargs:
                values.append(kwargs[parameter.name])
            elif parameter.has_default:
                values.append(parameter.default)
            elif parameter.optional:
                values.append(None)
            else:
                raise CallError(f"{name}() misses {parameter.name!r}; it is {self}")
        return values


def _converter(op: str, parameter: Parameter) -> Callable[[Any], Any]:
    what = f"{op}(): {parameter.name}"

    def tensor(value: Any) -> Any:
        if type(value) in _NOT_TENSORS:
            raise CallError(f"{what} is a tensor; found {_describe(value)}; give a tensor")
        return value

    convert: Callable[[Any], Any] = tensor
    if parameter.scalar is not None:
        scalar = _scalar_converter(what, parameter.scalar)
        convert = _list_converter(what, parameter, scalar) if parameter.is_list else scalar
    if not parameter.optional:
        return convert
    return lambda value: None if value is None else convert(value)


def _scalar_converter(what: str, scalar: ScalarType) -> Callable[[Any], Any]:
    def to_int(value: Any) -> int:
        if type(value) is not int:
            if isinstance(value, bool) or not isinstance(value, numbers.Integral):
                raise CallError(f"{what} is an int; found {_describe(value)}; give a whole number")
            value = int(value)
        if INT_MIN <= value <= INT_MAX:
            return value  # type: ignore[no-any-return]
        raise CallError(f"{what} is a 64-bit int; found {value}; give a smaller one")

    def to_float(value: Any) -> float:
        if type(value) is float:
            return value
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise CallError(f"{what} is a float; found {_describe(value)}; give a number")
        try:
            return float(value)
        except OverflowError:
            raise CallError(f"{what} is a float; found an int beyond its range; give a smaller one") from None

    def to_bool(value: Any) -> bool:
        if type(value) is not bool:
            raise CallError(f"{what} is a bool; found {_describe(value)}; give True or False")
        return value

    return {ScalarType.INT: to_int, ScalarType.FLOAT: to_float, ScalarType.BOOL: to_bool}[scalar]


def _list_converter(what: str, parameter: Parameter, scalar: Callable[[Any], Any]) -> Callable[[Any], Any]:
    length = parameter.length

    def convert(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, (list, tuple)):
            if length is None or isinstance(value, (str, bytes, dict)) or value is None:
                raise CallError(f"{what} is a list; found {_describe(value)}; give a list or tuple of numbers")
            return (scalar(value),) * length  # a single number is repeated, as in PyTorch's operators
        if length is not None and len(value) != length:
            raise CallError(f"{what} has {length} items; found {len(value)}; give {length}")
        if len(value) > MAX_LIST_LENGTH:
            raise CallError(f"{what} has at most {MAX_LIST_LENGTH} items; found {len(value)}; give fewer")
        return tuple([scalar(item) for item in value])

    return convert


def _describe(value: object) -> str:
    if value is None:
        return "None"
    text = repr(value) if isinstance(value, (bool, int, float, str)) else ""
    return f"{type(value).__name__} {text[:40]}".rstrip()
