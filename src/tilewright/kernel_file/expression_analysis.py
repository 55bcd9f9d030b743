"""Type analysis of expressions: type, names read, problems, and the closure that evaluates it, in one pass.

After an error the type is `UNKNOWN`, which is compatible with everything, so that each mistake gives one message. A
plan with problems is never evaluated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tilewright.kernel_file import expression_values, syntax, words
from tilewright.kernel_file.closures import Closure, applied, constant, guarded_lookup, lookup
from tilewright.kernel_file.expression_values import (
    BOOL,
    DIVIDED_INT,
    FLOAT,
    INT,
    UNKNOWN,
    PlanFunction,
    Type,
    TypeKind,
)
from tilewright.kernel_file.problems import Autofix, Code, Problem
from tilewright.kernel_file.syntax import Expr, Span


@dataclass(frozen=True)
class DefinedName:
    """A defined name."""

    type: Type
    line: int  # where it is defined
    origins: frozenset[str] = frozenset()  # parameters, tunes and `device` it depends on, transitively


@dataclass
class NameTable:
    """The symbol table: names defined so far, and names whose definition could not be parsed."""

    known: dict[str, DefinedName] = field(default_factory=dict)
    lost: frozenset[str] = frozenset()
    is_open: bool = False  # the op line could not be parsed: any name may be a parameter
    later: dict[str, int] = field(default_factory=dict)  # every name of the plan, and the line that defines it


@dataclass(frozen=True)
class Analysed:
    """An analysed expression."""

    expression: Expr
    type: Type
    names: frozenset[str]  # names whose value it reads; `has(x)` reads none
    origins: frozenset[str]  # parameters, tunes and `device` it depends on, transitively
    run: Closure

    @cached_property
    def start(self) -> Span:
        return syntax.start(self.expression)

    @cached_property
    def may_be_late(self) -> bool:
        """Whether, as an argument, it may be evaluated at every call: a number, or the name of a list parameter.

        The length of a computed list may depend on its numbers, so such lists are not late.
        """
        node = self.expression
        is_parameter = isinstance(node, syntax.Name) and self.origins == {node.id}
        return not self.type.is_opaque and (not self.type.is_list or is_parameter)


Part = tuple[Type, Closure]
_NOTHING = constant(None)


class Analysis:
    """Analyses expressions against a table of names; problems go to a list."""

    def __init__(self, names: NameTable, problems: list[Problem]) -> None:
        self.names = names
        self.problems = problems
        self._read: set[str] = set()

    def analyse(self, expression: Expr, *, may_be_absent: bool = False) -> Analysed:
        """With `may_be_absent` an absent optional is a valid value, as for arguments of steps."""
        self._read = set()
        type_, run = self._part(expression)
        if may_be_absent and isinstance(expression, syntax.Name):
            run = lookup(expression.id)
        known = self.names.known
        origins: set[str] = set()
        for name in self._read:
            origins |= known[name].origins if name in known else {name}  # the latter is `device`
        return Analysed(expression, type_, frozenset(self._read), frozenset(origins), run)

    def require(self, expression: Expr, what: str, *kinds: TypeKind) -> Analysed:
        """An expression that must be a single value of one of these kinds."""
        result = self.analyse(expression)
        self._check_kind(expression, result.type, what, *kinds)
        return result

    def problem(self, code: Code, at: Span, found: str, remedy: str, autofix: Autofix | None = None) -> Type:
        self.problems.append(Problem(code, at.line, at.column, found, remedy, autofix))
        return UNKNOWN

    def list_type(self, items: Sequence[tuple[Expr, Type]]) -> Type:
        """The type of a list of these items; nested lists are flattened."""
        first: Type | None = None
        divided = any(type_.divided for _, type_ in items)
        for item, type_ in items:
            if type_.is_unknown:
                continue
            if type_.kind not in (TypeKind.INT, TypeKind.FLOAT, TypeKind.BOOL, TypeKind.DTYPE):
                remedy = "a list holds int, float, bool or dtype"
                return self.problem(Code.TYPE, item.at, f"{_a(type_)} in a list", remedy)
            if first is not None and type_.kind is not first.kind:
                found = f"a list of {first.kind.value} and {type_.kind.value}"
                return self.problem(Code.TYPE, item.at, found, "a list has one type")
            first = first or type_
        if first is None:
            return UNKNOWN if items else expression_values.INT_LIST
        return Type(first.kind, is_list=True, divided=divided)

    def _part(self, node: Expr) -> Part:
        match node:
            case syntax.Name():
                return self._name(node)
            case syntax.Literal(value=value):
                return expression_values.literal_type(value), constant(value)
            case syntax.Attribute():
                return self._attribute(node)
            case syntax.Binary():
                return self._binary(node)
            case syntax.Index() | syntax.Slice():
                return self._subscript(node)
            case syntax.Compare():
                return self._compare(node)
            case syntax.Logical():
                return self._logical(node)
            case syntax.Call():
                return self._has(node) if node.function == "has" else self._call(node)
            case syntax.Unary():
                return self._unary(node)
            case syntax.ListOf():
                return self._list(node)
            case syntax.Conditional():
                return self._conditional(node)

    def _check_kind(self, node: Expr, type_: Type, what: str, *kinds: TypeKind) -> Type:
        if type_.is_a(*kinds):
            return type_
        wanted = " or ".join(kind.value for kind in kinds)
        return self.problem(Code.TYPE, node.at, f"{_a(type_)} for {what}", f"{what} takes {wanted}")

    def _single(self, node: Expr, what: str, *kinds: TypeKind) -> Part:
        type_, run = self._part(node)
        return self._check_kind(node, type_, what, *kinds), run

    # -- names and attributes --

    def _name(self, name: syntax.Name) -> Part:
        if name.id == "device":
            return expression_values.DEVICE, _NOTHING
        known = self.names.known.get(name.id)
        if known is None:
            return self._unknown_name(name), _NOTHING
        self._read.add(name.id)
        return known.type, guarded_lookup(name) if known.type.optional else lookup(name.id)

    def _unknown_name(self, name: syntax.Name) -> Type:
        names = self.names
        if name.id in names.lost:
            return UNKNOWN
        found = f"unknown name `{name.id}`"
        meant = words.DTYPE_SPELLINGS.get(name.id)
        near = words.close_names(name.id, names.known)
        remedy = "define it above with `let`; comments start with #, `//` divides"
        if meant is None:
            if names.is_open:
                return UNKNOWN
            if name.id in words.TAKEN:
                remedy = "expected a value; this word has another use"
                return self.problem(Code.SYNTAX, name.at, f"found `{name.id}`", remedy)
            if name.id in names.later:
                remedy = f"it is defined on line {names.later[name.id]}; a name stands above its use"
            elif len(near) == 1:
                meant = near[0]
            elif near:
                remedy = f"write {' or '.join(near)}; comments start with #, `//` divides"
        if meant is None:
            return self.problem(Code.UNKNOWN_NAME, name.at, found, remedy)
        return self.problem(Code.UNKNOWN_NAME, name.at, found, f"write {meant}", Autofix.of(name.at, meant))

    def _attribute(self, node: syntax.Attribute) -> Part:
        base = node.base
        if isinstance(base, syntax.Name) and base.id == "torch" and "torch" not in self.names.known:
            return self._torch_dtype(base, node), _NOTHING
        type_, run = self._part(base)
        name = node.name
        if type_.is_unknown:
            return UNKNOWN, _NOTHING
        if type_.kind is TypeKind.DEVICE:
            self._read.add("device")
            if name in words.DEVICE_ATTRIBUTES:
                return INT, lambda values: getattr(values["device"], name)
            return self._unknown_attribute(node, "device", words.DEVICE_ATTRIBUTES), _NOTHING
        if type_.kind is TypeKind.TENSOR:
            if name not in expression_values.TENSOR_ATTRIBUTES:
                return self._unknown_attribute(node, "a tensor", words.TENSOR_ATTRIBUTES), _NOTHING
            result, read = expression_values.TENSOR_ATTRIBUTES[name]
            return result, applied(node, read, run)
        remedy = "only tensors and `device` have attributes"
        if type_.kind is TypeKind.DTYPE and name == "itemsize":
            remedy = "write sizeof(dtype), or .itemsize of the tensor"
        return self.problem(Code.TYPE, node.at, f"`.{name}` of {_a(type_)}", remedy), _NOTHING

    def _unknown_attribute(self, node: syntax.Attribute, owner: str, known: tuple[str, ...]) -> Type:
        near = words.close_names(node.name, known)
        meant = near[0] if len(near) == 1 else None
        if owner != "device":
            meant = words.ATTRIBUTE_SPELLINGS.get(node.name, meant)
        remedy = f"{owner} has " + " ".join(f".{name}" for name in known)
        if meant:
            remedy = f"write .{meant}; {remedy}"
        found = f"unknown attribute `.{node.name}` of {owner}"
        return self.problem(Code.UNKNOWN_NAME, node.at, found, remedy, Autofix.of(node.at, meant))

    def _torch_dtype(self, base: syntax.Name, node: syntax.Attribute) -> Type:
        meant = words.TORCH_DTYPES.get(node.name)
        remedy = f"write {meant}" if meant else f"dtypes are {words.quoted(words.DTYPES)}"
        autofix = Autofix.between(base.at, node.at, meant)
        return self.problem(Code.UNKNOWN_NAME, base.at, f"`torch.{node.name}`", remedy, autofix)

    def _subscript(self, node: syntax.Index | syntax.Slice) -> Part:
        base, run = self._part(node.base)
        ends = (node.position,) if isinstance(node, syntax.Index) else (node.low, node.high)
        runs = [_NOTHING if end is None else self._single(end, "an index", TypeKind.INT)[1] for end in ends]
        if base.is_unknown:
            return UNKNOWN, _NOTHING
        if not base.is_list:
            remedy = "only lists such as x.shape have elements"
            if base.kind is TypeKind.TENSOR:
                remedy = "a plan never reads a tensor's content; its sizes are .shape[i]"
            return self.problem(Code.TYPE, node.at, f"`[` after {_a(base)}", remedy), _NOTHING
        if isinstance(node, syntax.Slice):
            return base.present, applied(node, lambda values, low, high: values[low:high], run, *runs)
        return base.element, applied(node, expression_values.index, run, *runs)

    # -- operators --

    def _binary(self, node: syntax.Binary) -> Part:
        left, run_left = self._part(node.left)
        right, run_right = self._part(node.right)
        sign = node.operator
        run = applied(node, expression_values.OPERATORS[sign], run_left, run_right)
        remedy = "both sides must be numbers"
        if left.is_number and right.is_number:
            if left.is_unknown or right.is_unknown:
                return UNKNOWN, run
            if TypeKind.FLOAT not in (left.kind, right.kind):
                return (DIVIDED_INT if sign in ("/", "//") or left.divided or right.divided else INT), run
            if sign not in ("//", "%"):
                return FLOAT, run
            remedy = "`//` and `%` are for ints; `/` divides floats"
        return self.problem(Code.TYPE, node.at, f"`{sign}` between {left} and {right}", remedy), run

    def _unary(self, node: syntax.Unary) -> Part:
        if node.operator == "not":
            _, condition = self._single(node.operand, "`not`", TypeKind.BOOL)
            return BOOL, lambda values: not condition(values)
        operand, run = self._part(node.operand)
        if not operand.is_number:
            operand = self.problem(Code.TYPE, node.at, f"`-` before {_a(operand)}", "negate numbers only")
        return operand.present, applied(node, expression_values.negate, run)

    def _compare(self, node: syntax.Compare) -> Part:
        left, run_left = self._part(node.left)
        right, run_right = self._part(node.right)
        sign = node.operator
        remedy = None
        if left.is_unknown or right.is_unknown:
            pass
        elif TypeKind.NONE in (left.kind, right.kind):
            remedy = "write has(x) or not has(x)"
        elif sign == "in":
            if not right.is_list:
                remedy = "the right side of `in` is a list such as [f16, bf16]"
            elif not expression_values.comparable(left, right.element):
                remedy = "the list must hold the type of the left side"
        elif sign in ("==", "!="):
            if not expression_values.comparable(left, right):
                remedy = "compare numbers, bools, dtypes or lists of one type"
        elif not (left.is_number and right.is_number):
            remedy = "only numbers have an order"
        if remedy is not None:
            found = f"`{sign}` between {left} and {right}"
            self.problem(Code.TYPE, node.at, found, remedy, _has_instead(node))
        compare = expression_values.OPERATORS[sign]  # which cannot fail
        return BOOL, lambda values: compare(run_left(values), run_right(values))

    def _logical(self, node: syntax.Logical) -> Part:
        _, left = self._single(node.left, f"`{node.operator}`", TypeKind.BOOL)
        _, right = self._single(node.right, f"`{node.operator}`", TypeKind.BOOL)
        if node.operator == "and":
            return BOOL, lambda values: left(values) and right(values)
        return BOOL, lambda values: left(values) or right(values)

    def _conditional(self, node: syntax.Conditional) -> Part:
        _, condition = self._single(node.condition, "`if`", TypeKind.BOOL)
        then, run_then = self._part(node.then)
        otherwise, run_otherwise = self._part(node.otherwise)
        type_ = then.present
        if then.is_unknown or otherwise.is_unknown:
            type_ = UNKNOWN
        elif (then.kind, then.is_list) != (otherwise.kind, otherwise.is_list):
            remedy = "give both arms one type"
            if {then.kind, otherwise.kind} == {TypeKind.INT, TypeKind.FLOAT}:
                remedy = "give both arms one type, such as 1.0 for 1"
            type_ = self.problem(Code.TYPE, node.at, f"`if` arms of type {then} and {otherwise}", remedy)
        elif otherwise.divided:
            type_ = otherwise.present
        return type_, lambda values: run_then(values) if condition(values) else run_otherwise(values)

    def _list(self, node: syntax.ListOf) -> Part:
        parts = [self._part(item) for item in node.items]
        type_ = self.list_type([(item, part[0]) for item, part in zip(node.items, parts, strict=True)])
        return type_, applied(node, lambda *items: expression_values.spliced(items), *(run for _, run in parts))

    # -- functions --

    def _call(self, node: syntax.Call) -> Part:
        function = expression_values.FUNCTIONS[node.function]
        if not self._counted(node, function.count):
            return UNKNOWN, _NOTHING
        parts = [
            self._list_argument(node, argument, function)
            if function.of_list
            else self._single(argument, f"{node.function}()", *function.takes)
            for argument in node.arguments
        ]
        types = [type_ for type_, _ in parts]
        run = applied(node, function.call, *(run for _, run in parts))
        if any(type_.is_unknown for type_ in types) and (function.gives is None or function.of_list):
            return UNKNOWN, run
        result = function.gives or (FLOAT if any(type_.kind is TypeKind.FLOAT for type_ in types) else INT)
        if result is INT and function.keeps_division and any(type_.divided for type_ in types):
            result = DIVIDED_INT
        return result, run

    def _list_argument(self, node: syntax.Call, argument: Expr, function: PlanFunction) -> Part:
        type_, run = self._part(argument)
        if not type_.is_unknown and not (type_.is_list and type_.kind in function.takes):
            found = f"{node.function}() of {_a(type_)}"
            type_ = self.problem(Code.TYPE, argument.at, found, f"{node.function} takes a list such as x.shape")
        return type_, run

    def _counted(self, node: syntax.Call, count: int | None) -> bool:
        given = len(node.arguments)
        if given and count in (None, given):
            return True
        expected = f"{count} argument{'s' if count != 1 else ''}" if count else "one or more arguments"
        found = f"{node.function}() of {given} argument{'s' if given != 1 else ''}"
        self.problem(Code.TYPE, node.at, found, f"{node.function} takes {expected}")
        return False

    def _has(self, node: syntax.Call) -> Part:
        if not self._counted(node, 1):
            return UNKNOWN, _NOTHING
        (argument,) = node.arguments
        if not isinstance(argument, syntax.Name):
            remedy = "has takes the name of an optional parameter"
            self.problem(Code.TYPE, argument.at, "has() of an expression", remedy)
            return BOOL, _NOTHING
        name = argument.id
        known = self.names.known.get(name)
        if known is None:
            self._unknown_name(argument)
        elif not known.type.optional and not known.type.is_unknown:
            remedy = "has asks for an optional parameter, marked `?` in the op line"
            self.problem(Code.TYPE, argument.at, f"has({name}), which is always there", remedy)
        return BOOL, lambda values: values[name] is not None


def _has_instead(node: syntax.Compare) -> Autofix | None:
    """The autofix of `mask == none` to `has`."""
    left, right = node.left, node.right
    asks = isinstance(left, syntax.Name) and isinstance(right, syntax.Literal) and right.value is None
    if not (asks and isinstance(left, syntax.Name) and node.operator in ("==", "!=")):
        return None
    test = f"has({left.id})" if node.operator == "!=" else f"not has({left.id})"
    return Autofix.between(left.at, right.at, test)


def _a(type_: Type) -> str:
    text = str(type_)
    return f"an {text}" if text[0] in "aeiou" else f"a {text}" if text != "none" else text
