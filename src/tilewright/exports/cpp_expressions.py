"""Expressions of a launch plan as C++ text over the functions of `host/plan.hpp`.

C++'s overloads stand in for the plan's static types, so nothing is typed again here. Every name of the plan gets a
prefix of its own: a plan may call something `register` or `plan`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.kernel_file import syntax
from tilewright.kernel_file.printer import print_expression
from tilewright.kernel_file.syntax import Expr
from tilewright.records import DType

_OPERATORS = {"+": "add", "-": "subtract", "*": "multiply", "/": "divide", "//": "divide", "%": "remainder"}
_FUNCTIONS = {
    "ceil_div": "ceil_div",
    "round_up": "round_up",
    "min": "least",
    "max": "greatest",
    "prod": "product",
    "len": "length",
    "log2": "floor_log2",
    "next_pow2": "next_pow2",
    "sqrt": "square_root",
    "sizeof": "size_of",
}
INT_MIN = -(2**63)


@dataclass(frozen=True)
class CppName:
    """How a name of the plan is read in C++: its text, and whether it may be absent."""

    text: str
    optional: bool = False


Names = Mapping[str, CppName]


def cpp_name(name: str) -> str:
    """A C++ identifier for a name of a plan, which nothing else has."""
    return f"v_{name}"


def cpp_dtype(dtype: DType) -> str:
    return "DType::boolean" if dtype is DType.BOOL else f"DType::{dtype.value}"


def cpp_string(text: str) -> str:
    """A string literal. Only printable ASCII stands as it is, so no text can end the literal or a comment around it."""
    pieces = []
    for byte in text.encode("utf-8", "replace"):
        character = chr(byte)
        plain = 32 <= byte < 127 and character not in '"\\?*/'
        pieces.append(character if plain else f"\\{byte:03o}")
    return '"' + "".join(pieces) + '"'


def cpp_comment(text: str) -> str:
    """Text for a `//` comment: one line, and no backslash at its end that would join the next."""
    kept = "".join(character if " " <= character <= "~" else "?" for character in text)
    return "// " + kept.replace("\\", "/").replace("??/", "???")


def cpp_integer(value: int) -> str:
    return "INT64_MIN" if value == INT_MIN else f"INT64_C({value})"


def expression(node: Expr, names: Names, *, absent_allowed: bool = False) -> str:
    """The expression in C++. `absent_allowed`: a bare optional may be passed on as it is."""
    if absent_allowed and isinstance(node, syntax.Name):
        return names[node.id].text
    if absent_allowed and isinstance(node, syntax.Literal) and node.value is None:
        return "Tensor{}"
    return _Writer(names).text(node)


@dataclass(frozen=True)
class _Writer:
    names: Names

    def text(self, node: Expr) -> str:
        match node:
            case syntax.Literal(value=value):
                return _literal(value)
            case syntax.Name(id=name):
                known = self.names[name]
                return f"given({known.text}, {cpp_string(name)})" if known.optional else known.text
            case syntax.Attribute():
                return self._attribute(node)
            case syntax.Index(base=base, position=position):
                return f"item({self.text(base)}, {self.text(position)})"
            case syntax.Slice(base=base, low=low, high=high):
                ends = ("std::nullopt" if end is None else self.text(end) for end in (low, high))
                return f"cut({self.text(base)}, {', '.join(ends)})"
            case syntax.ListOf(items=items):
                return f"spliced({', '.join(self.text(item) for item in items)})"
            case syntax.Call(function="has", arguments=(argument,)):
                assert isinstance(argument, syntax.Name)
                return f"has({self.names[argument.id].text})"
            case syntax.Call(function=function, arguments=arguments):
                return f"{_FUNCTIONS[function]}({', '.join(self.text(one) for one in arguments)})"
            case syntax.Unary(operator=operator, operand=operand):
                return f"!{self.text(operand)}" if operator == "not" else f"negate({self.text(operand)})"
            case syntax.Binary(operator=operator, left=left, right=right):
                return f"{_OPERATORS[operator]}({self.text(left)}, {self.text(right)})"
            case syntax.Compare(operator="in", left=left, right=right):
                return f"contains({self.text(right)}, {self.text(left)})"
            case syntax.Compare(operator=operator, left=left, right=right):
                return f"({self.text(left)} {operator} {self.text(right)})"
            case syntax.Logical(operator=operator, left=left, right=right):
                sign = "&&" if operator == "and" else "||"
                return f"({self.text(left)} {sign} {self.text(right)})"
            case syntax.Conditional(condition=condition, then=then, otherwise=otherwise):
                return f"({self.text(condition)} ? {self.text(then)} : {self.text(otherwise)})"
        raise AssertionError(f"no C++ for `{print_expression(node)}`")

    def _attribute(self, node: syntax.Attribute) -> str:
        if isinstance(node.base, syntax.Name) and node.base.id == "device":
            return f"device.{node.name}"
        tensor = self.text(node.base)
        match node.name:
            case "numel":
                return f"elements({tensor})"
            case "ndim":
                return f"length({tensor}.shape)"
            case "itemsize":
                return f"size_of({tensor}.dtype)"
        return f"{tensor}.{node.name}"


def _literal(value: int | float | bool | DType | None) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, DType):
        return cpp_dtype(value)
    if isinstance(value, int):
        return cpp_integer(value)
    if isinstance(value, float):
        return f"double({value!r})"
    raise AssertionError("`none` stands only among the arguments of a library step")
