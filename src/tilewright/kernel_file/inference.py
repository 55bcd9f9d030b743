"""The type of every expression, what it depends on, and every problem with its names and types.

Walks a tree once. Something wrong is reported where it stands and from there on counts as `UNKNOWN`, which agrees
with everything, so that one slip is one message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from tilewright.kernel_file import words
from tilewright.kernel_file.problems import Code, KernelFileError, Mend, Problem
from tilewright.kernel_file.syntax import (
    Attribute,
    Binary,
    Call,
    Compare,
    Conditional,
    Expr,
    Index,
    ListOf,
    Literal,
    Logical,
    Name,
    Place,
    Slice,
    Unary,
)
from tilewright.kernel_file.types import (
    BOOL,
    DEVICE,
    DTYPE,
    FLOAT,
    INT,
    INT_LIST,
    NONE,
    TENSOR_ATTRIBUTE_TYPES,
    UNKNOWN,
    Kind,
    Type,
    comparable,
)
from tilewright.records import DType


class Source(str, Enum):
    """What a value may depend on that some directives must not."""

    TUNE = "a tune constant"
    DEVICE = "the device"
    FLOAT_PARAMETER = "a float parameter"


@dataclass(frozen=True)
class Symbol:
    """A name in scope."""

    type: Type
    line: int  # where it is defined
    sources: frozenset[Source] = frozenset()


@dataclass
class Scope:
    """The names defined so far, and those of which nothing is known because their definition failed."""

    symbols: dict[str, Symbol] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    is_open: bool = False  # the op line failed: any name may be a parameter
    later: dict[str, int] = field(default_factory=dict)  # every name of the plan, and the line that defines it


@dataclass
class Inferred:
    """What one walk found out beside the type."""

    sources: set[Source] = field(default_factory=set)
    names: set[str] = field(default_factory=set)


def expression_type(expression: Expr, names: Mapping[str, Type]) -> Type:
    """The type of an expression whose names have these types; raises `KernelFileError` where it has none."""
    scope = Scope({name: Symbol(type_, 0) for name, type_ in names.items()})
    problems: list[Problem] = []
    result = Inference(scope, problems).type_of(expression)
    if problems:
        raise KernelFileError(tuple(problems), "expression")
    return result


class Inference:
    """Types expressions in a scope; `found` gathers names and sources until `start` is called again."""

    def __init__(self, scope: Scope, problems: list[Problem]) -> None:
        self.scope = scope
        self.problems = problems
        self.found = Inferred()

    def start(self) -> Inferred:
        self.found = Inferred()
        return self.found

    def problem(self, code: Code, at: Place, found: str, remedy: str, mend: Mend | None = None) -> Type:
        self.problems.append(Problem(code, at.line, at.column, found, remedy, mend))
        return UNKNOWN

    def type_of(self, expression: Expr) -> Type:
        if isinstance(expression, Name):
            return self._name(expression)
        if isinstance(expression, Literal):
            return _literal_type(expression)
        if isinstance(expression, Attribute):
            return self._attribute(expression)
        if isinstance(expression, Binary):
            return self._binary(expression)
        if isinstance(expression, (Index, Slice)):
            return self._subscript(expression)
        if isinstance(expression, Compare):
            return self._compare(expression)
        if isinstance(expression, Logical):
            self._condition(expression.left, f"`{expression.operator}`")
            self._condition(expression.right, f"`{expression.operator}`")
            return BOOL
        if isinstance(expression, Call):
            return self._call(expression)
        if isinstance(expression, Unary):
            return self._unary(expression)
        if isinstance(expression, ListOf):
            return self._list(expression)
        return self._conditional(expression)

    # -- names and attributes --

    def _name(self, name: Name) -> Type:
        if name.id == "device":
            return DEVICE
        symbol = self.scope.symbols.get(name.id)
        if symbol is None:
            return self._unknown_name(name)
        self.found.names.add(name.id)
        self.found.sources |= symbol.sources
        return symbol.type

    def _unknown_name(self, name: Name) -> Type:
        if name.id in self.scope.lost:
            return UNKNOWN
        found = f"unknown name `{name.id}`"
        meant = words.DTYPE_SPELLINGS.get(name.id)
        if meant:
            return self.problem(Code.UNKNOWN_NAME, name.at, found, f"write {meant}", _rename(name.at, meant))
        if self.scope.is_open:
            return UNKNOWN
        if name.id in words.TAKEN:
            return self.problem(
                Code.SYNTAX, name.at, f"found `{name.id}`", "expected a value; this word has another use"
            )
        if name.id in self.scope.later:
            remedy = f"it is defined on line {self.scope.later[name.id]}; a name stands above its use"
            return self.problem(Code.UNKNOWN_NAME, name.at, found, remedy)
        near = words.near_names(name.id, self.scope.symbols)
        if len(near) == 1:
            return self.problem(Code.UNKNOWN_NAME, name.at, found, f"write {near[0]}", _rename(name.at, near[0]))
        remedy = "define it above with `let`; comments start with #, `//` divides"
        if near:
            remedy = f"write {' or '.join(near)}; comments start with #, `//` divides"
        return self.problem(Code.UNKNOWN_NAME, name.at, found, remedy)

    def _attribute(self, attribute: Attribute) -> Type:
        base = attribute.base
        if isinstance(base, Name) and base.id == "torch" and "torch" not in self.scope.symbols:
            return self._torch_dtype(base, attribute)
        base_type = self.type_of(base)
        if base_type.is_unknown:
            return UNKNOWN
        if base_type.kind is Kind.DEVICE:
            self.found.sources.add(Source.DEVICE)
            if attribute.name in words.DEVICE_ATTRIBUTES:
                return INT
            return self._unknown_attribute(attribute, "device", words.DEVICE_ATTRIBUTES)
        if base_type.kind is Kind.TENSOR:
            known = TENSOR_ATTRIBUTE_TYPES.get(attribute.name)
            return known or self._unknown_attribute(attribute, "a tensor", words.TENSOR_ATTRIBUTES)
        remedy = "only tensors and `device` have attributes"
        if base_type.kind is Kind.DTYPE and attribute.name == "itemsize":
            remedy = "write sizeof(dtype), or .itemsize of the tensor"
        return self.problem(Code.TYPE, attribute.at, f"`.{attribute.name}` of {_a(base_type)}", remedy)

    def _unknown_attribute(self, attribute: Attribute, owner: str, known: tuple[str, ...]) -> Type:
        near = words.near_names(attribute.name, known)
        meant = near[0] if len(near) == 1 else None
        if owner != "device":
            meant = words.ATTRIBUTE_SPELLINGS.get(attribute.name, meant)
        remedy = f"{owner} has " + " ".join(f".{name}" for name in known)
        if meant:
            remedy = f"write .{meant}; {remedy}"
        mend = _rename(attribute.at, meant) if meant else None
        found = f"unknown attribute `.{attribute.name}` of {owner}"
        return self.problem(Code.UNKNOWN_NAME, attribute.at, found, remedy, mend)

    def _torch_dtype(self, base: Name, attribute: Attribute) -> Type:
        meant = words.TORCH_DTYPES.get(attribute.name)
        found = f"`torch.{attribute.name}`"
        if meant is None:
            return self.problem(Code.UNKNOWN_NAME, base.at, found, f"dtypes are {words.quoted(words.DTYPES)}")
        mend = None
        if base.at.line == attribute.at.line:
            length = attribute.at.column + attribute.at.length - base.at.column
            mend = Mend(base.at.line, base.at.column, length, meant)
        return self.problem(Code.UNKNOWN_NAME, base.at, found, f"write {meant}", mend)

    def _subscript(self, expression: Index | Slice) -> Type:
        base = self.type_of(expression.base)
        parts = (expression.index,) if isinstance(expression, Index) else (expression.low, expression.high)
        for part in parts:
            if part is not None:
                self.require(part, "an index", Kind.INT)
        if base.is_unknown:
            return UNKNOWN
        if not base.is_list:
            remedy = "only lists such as x.shape have elements"
            if base.kind is Kind.TENSOR:
                remedy = "a plan never reads a tensor's content; its sizes are .shape[i]"
            return self.problem(Code.TYPE, expression.at, f"`[` after {_a(base)}", remedy)
        return base.present if isinstance(expression, Slice) else base.element

    # -- operators --

    def _binary(self, expression: Binary) -> Type:
        left, right = self.type_of(expression.left), self.type_of(expression.right)
        operator = expression.operator
        if not left.is_number or not right.is_number:
            remedy = "both sides must be numbers"
            return self.problem(Code.TYPE, expression.at, f"`{operator}` between {left} and {right}", remedy)
        if left.is_unknown or right.is_unknown:
            return UNKNOWN
        if Kind.FLOAT not in (left.kind, right.kind):
            return INT
        if operator in ("//", "%"):
            remedy = "`//` and `%` are for ints; `/` divides floats"
            return self.problem(Code.TYPE, expression.at, f"`{operator}` between {left} and {right}", remedy)
        return FLOAT

    def _unary(self, expression: Unary) -> Type:
        if expression.operator == "not":
            self._condition(expression.operand, "`not`")
            return BOOL
        operand = self.type_of(expression.operand)
        if operand.is_number:
            return operand.present
        return self.problem(Code.TYPE, expression.at, f"`-` before {_a(operand)}", "negate numbers only")

    def _compare(self, expression: Compare) -> Type:
        left, right = self.type_of(expression.left), self.type_of(expression.right)
        operator = expression.operator
        if left.is_unknown or right.is_unknown:
            return BOOL
        found = f"`{operator}` between {left} and {right}"
        if Kind.NONE in (left.kind, right.kind):
            self._compared_with_none(expression, found)
        elif operator == "in":
            if not right.is_list:
                self.problem(Code.TYPE, expression.at, found, "the right side of `in` is a list such as [f16, bf16]")
            elif not comparable(left, right.element):
                self.problem(Code.TYPE, expression.at, found, "the list must hold the type of the left side")
        elif operator in ("==", "!="):
            if not comparable(left, right):
                self.problem(Code.TYPE, expression.at, found, "compare numbers, bools, dtypes or lists of one type")
        elif not (left.is_number and right.is_number):
            self.problem(Code.TYPE, expression.at, found, "only numbers have an order")
        return BOOL

    def _compared_with_none(self, expression: Compare, found: str) -> None:
        """`mask == none` asks what `has` answers."""
        mend = None
        left, right = expression.left, expression.right
        if isinstance(left, Name) and isinstance(right, Literal) and expression.operator in ("==", "!="):
            test = f"has({left.id})" if expression.operator == "!=" else f"not has({left.id})"
            if left.at.line == right.at.line:
                length = right.at.column + right.at.length - left.at.column
                mend = Mend(left.at.line, left.at.column, length, test)
        self.problem(Code.TYPE, expression.at, found, "write has(x) or not has(x)", mend)

    def _condition(self, expression: Expr, what: str) -> None:
        self.require(expression, what, Kind.BOOL)

    def require(self, expression: Expr, what: str, *kinds: Kind) -> Type:
        """The type of an expression that must be a single value of one of these kinds."""
        result = self.type_of(expression)
        if result.is_a(*kinds):
            return result
        wanted = " or ".join(kind.value for kind in kinds)
        return self.problem(Code.TYPE, expression.at, f"{_a(result)} for {what}", f"{what} takes {wanted}")

    def _conditional(self, expression: Conditional) -> Type:
        self._condition(expression.condition, "`if`")
        then, otherwise = self.type_of(expression.then), self.type_of(expression.otherwise)
        if then.is_unknown or otherwise.is_unknown:
            return UNKNOWN
        if (then.kind, then.is_list) == (otherwise.kind, otherwise.is_list):
            return then.present
        found = f"`if` arms of type {then} and {otherwise}"
        remedy = "give both arms one type"
        if {then.kind, otherwise.kind} == {Kind.INT, Kind.FLOAT}:
            remedy = "give both arms one type, such as 1.0 for 1"
        return self.problem(Code.TYPE, expression.at, found, remedy)

    def _list(self, expression: ListOf) -> Type:
        first: Type | None = None
        for item in expression.items:
            type_ = self.type_of(item)
            if type_.is_unknown:
                continue
            if type_.kind not in (Kind.INT, Kind.FLOAT, Kind.BOOL, Kind.DTYPE):
                self.problem(Code.TYPE, item.at, f"{_a(type_)} in a list", "a list holds int, float, bool or dtype")
                return UNKNOWN
            if first is not None and type_.kind is not first.kind:
                found = f"a list of {first.kind.value} and {type_.kind.value}"
                return self.problem(Code.TYPE, item.at, found, "a list has one type")
            first = first or type_
        if first is None:
            return INT_LIST if not expression.items else UNKNOWN
        return Type(first.kind, is_list=True)

    # -- functions --

    def _call(self, call: Call) -> Type:
        count = _ARGUMENT_COUNTS.get(call.function)
        arguments = call.arguments
        if not arguments or (count is not None and len(arguments) != count):
            expected = f"{count} argument{'s' if count != 1 else ''}" if count else "one or more arguments"
            found = f"{call.function}() of {len(arguments)} argument{'s' if len(arguments) != 1 else ''}"
            return self.problem(Code.TYPE, call.at, found, f"{call.function} takes {expected}")
        what = f"{call.function}()"
        if call.function == "has":
            return self._has(call)
        if call.function in ("ceil_div", "round_up", "log2", "next_pow2"):
            for argument in arguments:
                self.require(argument, what, Kind.INT)
            return INT
        if call.function == "sizeof":
            self.require(arguments[0], what, Kind.DTYPE)
            return INT
        if call.function == "sqrt":
            self.require(arguments[0], what, Kind.INT, Kind.FLOAT)
            return FLOAT
        if call.function in ("prod", "len"):
            return self._of_list(call)
        kinds = {self.require(argument, what, Kind.INT, Kind.FLOAT).kind for argument in arguments}
        if Kind.UNKNOWN in kinds:
            return UNKNOWN
        return FLOAT if Kind.FLOAT in kinds else INT

    def _of_list(self, call: Call) -> Type:
        type_ = self.type_of(call.arguments[0])
        if type_.is_unknown:
            return UNKNOWN
        if not type_.is_list or (call.function == "prod" and type_.kind not in (Kind.INT, Kind.FLOAT)):
            found = f"{call.function}() of {_a(type_)}"
            return self.problem(Code.TYPE, call.arguments[0].at, found, f"{call.function} takes a list such as x.shape")
        return INT if call.function == "len" else type_.element

    def _has(self, call: Call) -> Type:
        argument = call.arguments[0]
        if not isinstance(argument, Name):
            self.problem(
                Code.TYPE, argument.at, "has() of an expression", "has takes the name of an optional parameter"
            )
            return BOOL
        symbol = self.scope.symbols.get(argument.id)
        if symbol is None:
            self._unknown_name(argument)
            return BOOL
        self.found.names.add(argument.id)
        if not symbol.type.optional and not symbol.type.is_unknown:
            remedy = "has asks for an optional parameter, marked `?` in the op line"
            self.problem(Code.TYPE, argument.at, f"has({argument.id}), which is always there", remedy)
        return BOOL


_ARGUMENT_COUNTS = {
    "ceil_div": 2,
    "round_up": 2,
    "prod": 1,
    "len": 1,
    "log2": 1,
    "next_pow2": 1,
    "sqrt": 1,
    "sizeof": 1,
    "has": 1,
}


def _literal_type(literal: Literal) -> Type:
    value = literal.value
    if value is None:
        return NONE
    if isinstance(value, DType):
        return DTYPE
    if isinstance(value, bool):
        return BOOL
    return INT if isinstance(value, int) else FLOAT


def _rename(at: Place, replacement: str) -> Mend:
    return Mend(at.line, at.column, at.length, replacement)


def _a(type_: Type) -> str:
    text = str(type_)
    return f"an {text}" if text[0] in "aeiou" else f"a {text}" if text != "none" else text
