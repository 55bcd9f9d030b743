"""Static types of plan expressions: what a value is before any shape is known.

A type is a kind, whether it is a list, and whether the value may be absent. Which expression has which type is
`inference`'s business; its `expression_type` is also found there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from tilewright.kernel_file.syntax import Parameter
from tilewright.records import ScalarType


class Kind(str, Enum):
    INT = "int"
    FLOAT = "float"
    BOOL = "bool"
    DTYPE = "dtype"
    NONE = "none"
    TENSOR = "tensor"
    MAP = "map"
    DEVICE = "device"
    UNKNOWN = "unknown"  # something wrong was reported already; agrees with everything


@dataclass(frozen=True)
class Type:
    kind: Kind
    is_list: bool = False
    optional: bool = False

    @property
    def is_number(self) -> bool:
        return not self.is_list and self.kind in (Kind.INT, Kind.FLOAT, Kind.UNKNOWN)

    @property
    def is_unknown(self) -> bool:
        return self.kind is Kind.UNKNOWN

    @property
    def element(self) -> Type:
        return replace(self, is_list=False, optional=False)

    @property
    def present(self) -> Type:
        """The same type of a value that is there."""
        return replace(self, optional=False)

    def is_a(self, *kinds: Kind) -> bool:
        """Whether it is a single value of one of these kinds, or cannot be told."""
        return self.is_unknown or (not self.is_list and self.kind in kinds)

    def __str__(self) -> str:
        name = f"list of {self.kind.value}" if self.is_list else self.kind.value
        return f"optional {name}" if self.optional else name


INT = Type(Kind.INT)
FLOAT = Type(Kind.FLOAT)
BOOL = Type(Kind.BOOL)
DTYPE = Type(Kind.DTYPE)
NONE = Type(Kind.NONE)
TENSOR = Type(Kind.TENSOR)
MAP = Type(Kind.MAP)
DEVICE = Type(Kind.DEVICE)
UNKNOWN = Type(Kind.UNKNOWN)
INT_LIST = Type(Kind.INT, is_list=True)

TENSOR_ATTRIBUTE_TYPES = {
    "shape": INT_LIST,
    "stride": INT_LIST,
    "dtype": DTYPE,
    "numel": INT,
    "ndim": INT,
    "itemsize": INT,
}

_SCALAR_KINDS = {ScalarType.INT: Kind.INT, ScalarType.FLOAT: Kind.FLOAT, ScalarType.BOOL: Kind.BOOL}


def parameter_type(parameter: Parameter) -> Type:
    kind = Kind.TENSOR if parameter.scalar is None else _SCALAR_KINDS[parameter.scalar]
    return Type(kind, parameter.is_list, parameter.optional)


def comparable(left: Type, right: Type) -> bool:
    """Whether `==` may stand between them: the same kind, or two numbers; both lists or neither."""
    if left.is_unknown or right.is_unknown:
        return True
    if left.is_list != right.is_list:
        return False
    numbers = {Kind.INT, Kind.FLOAT}
    if left.kind in numbers and right.kind in numbers:
        return True
    return left.kind is right.kind and left.kind in (Kind.BOOL, Kind.DTYPE)
