"""What the expressions of a launch plan compute with: values, operators and functions.

Integers have 64 bits and overflow is a fault; integer division is C's and refuses negatives; an operation on finite
floats must stay finite. Faults carry no place: `closures` knows which expression it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tilewright.kernel_file.problems import Code
from tilewright.records import DType, TensorSpec

INT_MAX = 2**63 - 1
INT_MIN = -(2**63)
# Lists are shapes, strides and boxes: nothing legitimate is longer, and a plan cannot grow one without bound.
MAX_LIST_LENGTH = 1024


@dataclass(frozen=True)
class Tensor:
    """A tensor as expressions see it: its name, and what may be known of it."""

    name: str
    spec: TensorSpec


@dataclass(frozen=True)
class MapName:
    """A `map` as expressions see it; it is encoded only for a launch that runs."""

    name: str


class Fault(Exception):
    """An operation without a result: what is wrong, and what to write."""

    def __init__(self, found: str, remedy: str, code: Code = Code.VALUE) -> None:
        self.found = found
        self.remedy = remedy
        self.code = code
        super().__init__(found)


def type_name(value: object) -> str:
    """The plan's word for the type of a value."""
    if value is None:
        return "none"
    if isinstance(value, tuple):
        return f"list of {type_name(value[0])}" if value else "list"
    names: dict[type, str] = {
        bool: "bool",
        int: "int",
        float: "float",
        DType: "dtype",
        Tensor: "tensor",
        MapName: "map",
    }
    return names.get(type(value), type(value).__name__)


def show_value(value: object) -> str:
    """A value as the plan would write it."""
    if isinstance(value, tuple):
        return f"[{', '.join(show_value(item) for item in value)}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Tensor):
        return str(value.spec)
    if isinstance(value, MapName):
        return value.name
    return "none" if value is None else str(value)


def _wrong_types(operator: str, *values: object) -> Fault:
    kinds = " and ".join(type_name(value) for value in values)
    return Fault(f"`{operator}` does not take {kinds}", "use values of a type it takes", Code.TYPE)


def checked_int(value: int) -> int:
    """The value, if it fits 64 bits."""
    if INT_MIN <= value <= INT_MAX:
        return value
    raise Fault("overflows a 64-bit integer", "keep the sizes smaller with a `need`")


def _checked_float(result: float, a: float, b: float) -> float:
    if math.isfinite(result) or not (math.isfinite(a) and math.isfinite(b)):
        return result
    raise Fault("overflows a float", "keep the operands smaller with a `need`")


def _is_number(value: object) -> bool:
    return type(value) is int or type(value) is float


def _require_numbers(operator: str, a: object, b: object) -> None:
    if not (_is_number(a) and _is_number(b)):
        raise _wrong_types(operator, a, b)


# -- operators --


def add(a: Any, b: Any) -> Any:
    if type(a) is int and type(b) is int:
        return checked_int(a + b)
    _require_numbers("+", a, b)
    return _checked_float(a + b, a, b)


def subtract(a: Any, b: Any) -> Any:
    if type(a) is int and type(b) is int:
        return checked_int(a - b)
    _require_numbers("-", a, b)
    return _checked_float(a - b, a, b)


def multiply(a: Any, b: Any) -> Any:
    if type(a) is int and type(b) is int:
        return checked_int(a * b)
    _require_numbers("*", a, b)
    return _checked_float(a * b, a, b)


def negate(a: Any) -> Any:
    if not _is_number(a):
        raise _wrong_types("-", a)
    return checked_int(-a) if type(a) is int else -a


def _check_division(a: int, b: int) -> None:
    if b == 0:
        raise Fault("divides by zero", "guard it with a `need` that the divisor is not 0")
    if a < 0 or b < 0:
        raise Fault("divides a negative integer or by one", "make both operands non-negative first")


def divide(a: Any, b: Any) -> Any:
    """`/`: C's division of two integers, float division otherwise."""
    if type(a) is int and type(b) is int:
        _check_division(a, b)
        return a // b
    _require_numbers("/", a, b)
    if b == 0:
        raise Fault("divides by zero", "guard it with a `need` that the divisor is not 0")
    return _checked_float(a / b, a, b)


def floor_divide(a: Any, b: Any) -> Any:
    """`//`: C's division of two integers."""
    if type(a) is not int or type(b) is not int:
        raise _wrong_types("//", a, b)
    _check_division(a, b)
    return a // b


def remainder(a: Any, b: Any) -> Any:
    if type(a) is not int or type(b) is not int:
        raise _wrong_types("%", a, b)
    _check_division(a, b)
    return a % b


def _comparable(a: object, b: object) -> bool:
    if _is_number(a) and _is_number(b):
        return True
    if isinstance(a, tuple) and isinstance(b, tuple):
        return all(_comparable(x, y) for x, y in zip(a, b, strict=False))
    return type(a) is type(b) and isinstance(a, (bool, DType))


def equal(a: Any, b: Any) -> bool:
    if not _comparable(a, b):
        raise _wrong_types("==", a, b)
    return bool(a == b)


def not_equal(a: Any, b: Any) -> bool:
    return not equal(a, b)


def contained(a: Any, b: Any) -> bool:
    """`in`: the value is an item of the list."""
    if not isinstance(b, tuple) or not all(_comparable(a, item) for item in b):
        raise _wrong_types("in", a, b)
    return a in b


def less(a: Any, b: Any) -> bool:
    _require_numbers("<", a, b)
    return bool(a < b)


def less_equal(a: Any, b: Any) -> bool:
    _require_numbers("<=", a, b)
    return bool(a <= b)


def greater(a: Any, b: Any) -> bool:
    _require_numbers(">", a, b)
    return bool(a > b)


def greater_equal(a: Any, b: Any) -> bool:
    _require_numbers(">=", a, b)
    return bool(a >= b)


def index(values: Any, position: Any) -> Any:
    """`values[position]`, negative positions from the end."""
    if not isinstance(values, tuple) or type(position) is not int:
        raise _wrong_types("[ ]", values, position)
    if not -len(values) <= position < len(values):
        have = f"it has {len(values)} items" if values else "it is empty"
        raise Fault(f"index {position} is outside the list: {have}", "state the number of dimensions in a `need` above")
    return values[position]


def cut(values: Any, low: Any, high: Any) -> Any:
    """`values[low:high]`, as in Python."""
    if not isinstance(values, tuple) or any(type(end) is not int and end is not None for end in (low, high)):
        raise _wrong_types("[ : ]", values, low, high)
    return values[low:high]


def spliced(items: tuple[Any, ...]) -> tuple[Any, ...]:
    """A list of the items; a list among them gives its own items."""
    result: list[Any] = []
    for item in items:
        if isinstance(item, tuple):
            result.extend(item)
        else:
            result.append(item)
        if len(result) > MAX_LIST_LENGTH:
            raise Fault(f"makes a list of more than {MAX_LIST_LENGTH} items", "use fewer items", Code.LIMIT)
    return tuple(result)


# -- functions --


def _require_ints(name: str, *values: object) -> None:
    if any(type(value) is not int for value in values):
        raise _wrong_types(name, *values)


def ceil_div(a: Any, b: Any) -> Any:
    _require_ints("ceil_div", a, b)
    _check_division(a, b)
    return -(-a // b)


def round_up(a: Any, b: Any) -> Any:
    return checked_int(ceil_div(a, b) * b)


def _numbers(name: str, values: tuple[Any, ...]) -> tuple[Any, ...]:
    if not values or not all(_is_number(value) for value in values):
        raise _wrong_types(name, *values)
    return tuple(map(float, values)) if any(type(value) is float for value in values) else values


def minimum(*values: Any) -> Any:
    return min(_numbers("min", values))


def maximum(*values: Any) -> Any:
    return max(_numbers("max", values))


def product(values: Any) -> Any:
    """The product of a list, 1 for an empty one."""
    if not isinstance(values, tuple) or not all(_is_number(value) for value in values):
        raise _wrong_types("prod", values)
    result: Any = 1
    for value in values:
        result = multiply(result, value)
    return result


def length(values: Any) -> int:
    if not isinstance(values, tuple):
        raise _wrong_types("len", values)
    return len(values)


def log2(a: Any) -> int:
    """The integer logarithm, rounded down."""
    _require_ints("log2", a)
    if a <= 0:
        raise Fault(f"log2 of {a}", "guard it with a `need` that the value is positive")
    return int(a).bit_length() - 1


def next_pow2(a: Any) -> int:
    """The smallest power of two that is not below the value."""
    _require_ints("next_pow2", a)
    if a <= 0:
        raise Fault(f"next_pow2 of {a}", "guard it with a `need` that the value is positive")
    return checked_int(1 << (int(a) - 1).bit_length())


def square_root(a: Any) -> float:
    if not _is_number(a):
        raise _wrong_types("sqrt", a)
    if a < 0:
        raise Fault(f"sqrt of {a}", "guard it with a `need` that the value is not negative")
    return math.sqrt(a)


def sizeof(a: Any) -> int:
    if type(a) is not DType:
        raise _wrong_types("sizeof", a)
    return a.itemsize


BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": add,
    "-": subtract,
    "*": multiply,
    "/": divide,
    "//": floor_divide,
    "%": remainder,
    "==": equal,
    "!=": not_equal,
    "<": less,
    "<=": less_equal,
    ">": greater,
    ">=": greater_equal,
    "in": contained,
}

# name -> function, and how many arguments it takes (None: one or more)
FUNCTIONS: dict[str, tuple[Callable[..., Any], int | None]] = {
    "ceil_div": (ceil_div, 2),
    "round_up": (round_up, 2),
    "min": (minimum, None),
    "max": (maximum, None),
    "prod": (product, 1),
    "len": (length, 1),
    "log2": (log2, 1),
    "next_pow2": (next_pow2, 1),
    "sqrt": (square_root, 1),
    "sizeof": (sizeof, 1),
}

TENSOR_ATTRIBUTES: dict[str, Callable[[Tensor], Any]] = {
    "shape": lambda tensor: tensor.spec.shape,
    "stride": lambda tensor: tensor.spec.stride,
    "dtype": lambda tensor: tensor.spec.dtype,
    "numel": lambda tensor: checked_int(tensor.spec.numel),
    "ndim": lambda tensor: tensor.spec.ndim,
    "itemsize": lambda tensor: tensor.spec.dtype.itemsize,
}

DEVICE_ATTRIBUTES = ("sms", "cc", "smem_block", "smem_sm", "l2")
