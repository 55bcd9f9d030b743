"""Types, values, operators and functions of plan expressions.

Integers have 64 bits and overflow is a fault; integer division is C's and refuses negatives; operations on finite
floats must stay finite. Operand types were checked by `expression_analysis`; `closures` adds locations to faults. In
traced calls sizes may be symbolic: a value that is neither `int` nor `float` is an integer without range checks.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from tilewright.kernel_file.problems import Code
from tilewright.records import DType, ScalarType, TensorSpec

INT_MAX = 2**63 - 1
INT_MIN = -(2**63)
# Lists are shapes, strides and boxes.
MAX_LIST_LENGTH = 1024


# -- types --


class TypeKind(str, Enum):
    INT = "int"
    FLOAT = "float"
    BOOL = "bool"
    DTYPE = "dtype"
    NONE = "none"
    TENSOR = "tensor"
    MAP = "map"
    DEVICE = "device"
    UNKNOWN = "unknown"  # after a reported error; compatible with everything


@dataclass(frozen=True)
class Type:
    """A static type."""

    kind: TypeKind
    is_list: bool = False
    optional: bool = False
    divided: bool = field(default=False, compare=False)  # an integer from an integer division

    @property
    def is_number(self) -> bool:
        return not self.is_list and self.kind in (TypeKind.INT, TypeKind.FLOAT, TypeKind.UNKNOWN)

    @property
    def is_unknown(self) -> bool:
        return self.kind is TypeKind.UNKNOWN

    @property
    def is_opaque(self) -> bool:
        """A tensor or a map, which expressions only pass on."""
        return self.kind in (TypeKind.TENSOR, TypeKind.MAP)

    @property
    def element(self) -> Type:
        return replace(self, is_list=False, optional=False)

    @property
    def present(self) -> Type:
        """The type without `optional`."""
        return replace(self, optional=False) if self.optional else self

    def is_a(self, *kinds: TypeKind) -> bool:
        """Whether it is a single value of one of these kinds, or unknown."""
        return self.is_unknown or (not self.is_list and self.kind in kinds)

    def __str__(self) -> str:
        name = f"list of {self.kind.value}" if self.is_list else self.kind.value
        return f"optional {name}" if self.optional else name


INT = Type(TypeKind.INT)
DIVIDED_INT = Type(TypeKind.INT, divided=True)
FLOAT = Type(TypeKind.FLOAT)
BOOL = Type(TypeKind.BOOL)
DTYPE = Type(TypeKind.DTYPE)
NONE = Type(TypeKind.NONE)
TENSOR = Type(TypeKind.TENSOR)
MAP = Type(TypeKind.MAP)
DEVICE = Type(TypeKind.DEVICE)
UNKNOWN = Type(TypeKind.UNKNOWN)
INT_LIST = Type(TypeKind.INT, is_list=True)

_TYPES_OF_LITERALS = {type(None): NONE, DType: DTYPE, bool: BOOL, int: INT, float: FLOAT}


def literal_type(value: int | float | bool | DType | None) -> Type:
    return _TYPES_OF_LITERALS[type(value)]


def comparable(left: Type, right: Type) -> bool:
    """Whether `==` is allowed: the same kind or two numbers, both lists or neither."""
    if left.is_unknown or right.is_unknown:
        return True
    if left.is_list != right.is_list:
        return False
    numbers = {TypeKind.INT, TypeKind.FLOAT}
    if left.kind in numbers and right.kind in numbers:
        return True
    return left.kind is right.kind and left.kind in (TypeKind.BOOL, TypeKind.DTYPE)


# -- values --


@dataclass(frozen=True)
class Tensor:
    """A tensor in expressions: name and spec."""

    name: str
    spec: TensorSpec


@dataclass(frozen=True)
class MapName:
    """A `map` in expressions; encoded only for launches that run."""

    name: str


class OperationFault(Exception):
    """A failed operation, with message and remedy."""

    def __init__(self, found: str, remedy: str, code: Code = Code.VALUE) -> None:
        self.found = found
        self.remedy = remedy
        self.code = code
        super().__init__(found)


SCALAR_TYPES = {bool: ScalarType.BOOL, int: ScalarType.INT, float: ScalarType.FLOAT}


def show_value(value: object) -> str:
    """A value in plan syntax."""
    if isinstance(value, tuple):
        return f"[{', '.join(show_value(item) for item in value)}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Tensor):
        return str(value.spec)
    if isinstance(value, MapName):
        return value.name
    return "none" if value is None else str(value)


def checked_int(value: int) -> int:
    """The value, if it fits 64 bits."""
    if type(value) is not int or INT_MIN <= value <= INT_MAX:
        return value
    raise OperationFault("overflows a 64-bit integer", "keep the sizes smaller with a `need`")


def _checked(result: Any, a: Any, b: Any) -> Any:
    """Check a result for overflow."""
    if type(result) is not float:
        return checked_int(result)
    if math.isfinite(result) or not (math.isfinite(a) and math.isfinite(b)):
        return result
    raise OperationFault("overflows a float", "keep the operands smaller with a `need`")


# -- operators --


def multiply(a: Any, b: Any) -> Any:
    return _checked(a * b, a, b)


def negate(a: Any) -> Any:
    return -a if type(a) is float else checked_int(-a)


def _check_division(a: Any, b: Any) -> None:
    if type(b) in (int, float) and b == 0:
        raise OperationFault("divides by zero", "guard it with a `need` that the divisor is not 0")
    if type(a) is int and type(b) is int and (a < 0 or b < 0):
        raise OperationFault("divides a negative integer or by one", "make both operands non-negative first")


def divide(a: Any, b: Any) -> Any:
    """`/` and `//`: C's division of two integers; `/` is float division otherwise."""
    _check_division(a, b)
    return _checked(a / b, a, b) if float in (type(a), type(b)) else a // b


def remainder(a: int, b: int) -> int:
    _check_division(a, b)
    return a % b


def index(values: tuple[Any, ...], position: int) -> Any:
    """`values[position]`, negative positions from the end."""
    if -len(values) <= position < len(values):
        return values[position]
    have = f"it has {len(values)} items" if values else "it is empty"
    found = f"index {position} is outside the list: {have}"
    raise OperationFault(found, "state the number of dimensions in a `need` above")


def spliced(items: tuple[Any, ...]) -> tuple[Any, ...]:
    """A list of the items, with nested lists flattened."""
    result: list[Any] = []
    for item in items:
        if isinstance(item, tuple):
            result.extend(item)
        else:
            result.append(item)
        if len(result) > MAX_LIST_LENGTH:
            raise OperationFault(f"makes a list of more than {MAX_LIST_LENGTH} items", "use fewer items", Code.LIMIT)
    return tuple(result)


OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: _checked(a + b, a, b),
    "-": lambda a, b: _checked(a - b, a, b),
    "*": multiply,
    "/": divide,
    "//": divide,
    "%": remainder,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "in": lambda item, values: item in values,
}


# -- functions --


def ceil_div(a: int, b: int) -> int:
    _check_division(a, b)
    return -(-a // b)


def round_up(a: int, b: int) -> int:
    return checked_int(ceil_div(a, b) * b)


def _alike(values: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(map(float, values)) if any(type(value) is float for value in values) else values


def product(values: tuple[Any, ...]) -> Any:
    """The product of a list, 1 for an empty one."""
    result: Any = 1
    for value in values:
        result = multiply(result, value)
    return result


def _positive(name: str, a: int) -> int:
    a = int(a)  # specialises a symbol
    if a <= 0:
        raise OperationFault(f"{name} of {a}", "guard it with a `need` that the value is positive")
    return a


def log2(a: int) -> int:
    """The integer logarithm, rounded down."""
    return _positive("log2", a).bit_length() - 1


def next_pow2(a: int) -> int:
    """The smallest power of two that is not below the value."""
    return checked_int(1 << (_positive("next_pow2", a) - 1).bit_length())


def square_root(a: int | float) -> float:
    if a < 0:
        raise OperationFault(f"sqrt of {a}", "guard it with a `need` that the value is not negative")
    return math.sqrt(a)


@dataclass(frozen=True)
class PlanFunction:
    """A function of plan expressions."""

    call: Callable[..., Any]
    count: int | None  # of arguments; None: one or more
    takes: tuple[TypeKind, ...]
    gives: Type | None  # None: int, or float where an argument is one
    of_list: bool = False
    keeps_division: bool = True  # whether the result counts as divided if an argument does


_NUMBERS = (TypeKind.INT, TypeKind.FLOAT)
_ITEMS = (TypeKind.INT, TypeKind.FLOAT, TypeKind.BOOL, TypeKind.DTYPE)
FUNCTIONS = {
    "ceil_div": PlanFunction(ceil_div, 2, (TypeKind.INT,), INT),
    "round_up": PlanFunction(round_up, 2, (TypeKind.INT,), INT),
    "min": PlanFunction(lambda *values: min(_alike(values)), None, _NUMBERS, None),
    "max": PlanFunction(lambda *values: max(_alike(values)), None, _NUMBERS, None),
    "prod": PlanFunction(product, 1, _NUMBERS, None, of_list=True),
    "len": PlanFunction(len, 1, _ITEMS, INT, of_list=True, keeps_division=False),
    "log2": PlanFunction(log2, 1, (TypeKind.INT,), INT),
    "next_pow2": PlanFunction(next_pow2, 1, (TypeKind.INT,), INT),
    "sqrt": PlanFunction(square_root, 1, _NUMBERS, FLOAT),
    "sizeof": PlanFunction(lambda dtype: dtype.itemsize, 1, (TypeKind.DTYPE,), INT),
}

# name -> its type, and how it is read
TENSOR_ATTRIBUTES: dict[str, tuple[Type, Callable[[Tensor], Any]]] = {
    "shape": (INT_LIST, lambda tensor: tensor.spec.shape),
    "stride": (INT_LIST, lambda tensor: tensor.spec.stride),
    "dtype": (DTYPE, lambda tensor: tensor.spec.dtype),
    "numel": (INT, lambda tensor: checked_int(tensor.spec.numel)),
    "ndim": (INT, lambda tensor: tensor.spec.ndim),
    "itemsize": (INT, lambda tensor: tensor.spec.dtype.itemsize),
}
