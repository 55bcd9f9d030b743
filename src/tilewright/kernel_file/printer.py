"""Prints a plan as canonical `//!` lines, without comments. Parsing them gives the same plan except for spans."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tilewright.kernel_file import syntax, words
from tilewright.kernel_file.syntax import BufferDirective, Directive, Expr, Infix, LaunchDirective, Op, Parameter, Plan
from tilewright.records import Clearing, DType

_WIDTH = 110
_LONG = words.MAX_LINE_CHARACTERS - 200
_PREFIX = "//! "
_CONTINUATION = "//!             "

# Precedence; operands of lower precedence get parentheses.
_CONDITIONAL, _OR, _AND, _NOT, _COMPARE, _SUM, _PRODUCT, _MINUS, _POSTFIX = range(9)
_BINDING = {"or": _OR, "and": _AND, "+": _SUM, "-": _SUM, "*": _PRODUCT, "/": _PRODUCT, "//": _PRODUCT, "%": _PRODUCT}

_MANY_DIRECTIVES = 50  # from here on adjacent `let` or `const` lines are joined


def print_plan(plan: Plan) -> str:
    """The whole plan, each line ending in a line break."""
    lines = [print_op(plan.op)]
    directives = [_print_directive(directive) for directive in plan.directives]
    for word, text in directives if len(directives) < _MANY_DIRECTIVES else _joined(directives):
        lines.append(f"{word:<7} {text}")
    return "".join(line + "\n" for directive in lines for line in _wrapped(directive))


def print_op(op: Op) -> str:
    """`op      f(x, eps: float) -> y`, without the `//!`."""
    text = f"op      {op.name}({', '.join(_print_parameter(parameter) for parameter in op.parameters)})"
    return f"{text} -> {', '.join(op.results)}" if op.results else text


def print_expression(expression: Expr) -> str:
    return _expression(expression, _CONDITIONAL)


# -- expressions --


def _expression(expression: Expr, place: int) -> str:
    """The text of an expression, in parentheses if its precedence is below `place`."""
    text, binding = _bound(expression)
    return f"({text})" if binding < place else text


def _bound(expression: Expr) -> tuple[str, int]:
    if isinstance(expression, syntax.Compare):
        return _infix(expression, _SUM, _SUM), _COMPARE
    if isinstance(expression, Infix):
        binding = _BINDING[expression.operator]
        return _infix(expression, binding, binding + 1), binding
    if isinstance(expression, syntax.Conditional):
        then = _expression(expression.then, _OR)
        condition = _expression(expression.condition, _OR)
        return f"{then} if {condition} else {_expression(expression.otherwise, _CONDITIONAL)}", _CONDITIONAL
    if isinstance(expression, syntax.Unary):
        if expression.operator == "not":
            return f"not {_expression(expression.operand, _NOT)}", _NOT
        return f"-{_expression(expression.operand, _MINUS)}", _MINUS
    return _postfix(expression), _POSTFIX


def _infix(expression: Infix, left: int, right: int) -> str:
    return f"{_expression(expression.left, left)} {expression.operator} {_expression(expression.right, right)}"


def _postfix(expression: Expr) -> str:
    match expression:
        case syntax.Literal(value=value):
            return _literal(value)
        case syntax.Name(id=name):
            return name
        case syntax.Attribute(base=base, name=name):
            return f"{_expression(base, _POSTFIX)}.{name}"
        case syntax.Index(base=base, position=position):
            return f"{_expression(base, _POSTFIX)}[{print_expression(position)}]"
        case syntax.Slice(base=base, low=low, high=high):
            ends = ("" if end is None else print_expression(end) for end in (low, high))
            return f"{_expression(base, _POSTFIX)}[{':'.join(ends)}]"
        case syntax.ListOf(items=items):
            return f"[{_list(items)}]"
        case syntax.Call(function=function, arguments=arguments):
            return f"{function}({_list(arguments)})"
    raise AssertionError(f"no postfix form: {expression!r}")


def _list(expressions: Iterable[Expr]) -> str:
    return ", ".join(print_expression(expression) for expression in expressions)


def _literal(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, DType):
        return value.value
    return repr(value)


# -- directives --


def _print_parameter(parameter: Parameter) -> str:
    if parameter.scalar is None:
        return parameter.name + ("!" if parameter.in_place else "?" if parameter.optional else "")
    text = f"{parameter.name}: {parameter.scalar.value}"
    if parameter.is_list:
        text += f"[{'' if parameter.length is None else parameter.length}]"
    text += "?" if parameter.optional else ""
    if not parameter.has_default:
        return text
    default = parameter.default
    if isinstance(default, tuple):
        return f"{text} = [{', '.join(_literal(item) for item in default)}]"
    return f"{text} = {_literal(default)}"


def _print_directive(directive: Directive) -> tuple[str, str]:
    """A directive's word and its text."""
    match directive:
        case BufferDirective():
            return directive.role.value, _print_buffer(directive)
        case syntax.Let() | syntax.Const():
            word = "let" if isinstance(directive, syntax.Let) else "const"
            return word, f"{directive.name} = {_breakable(directive.value)}"
        case syntax.Need():
            return "need", _breakable(directive.condition)
        case syntax.Tune():
            return "tune", f"{directive.name} = {' | '.join(_literal(choice) for choice in directive.choices)}"
        case syntax.Accept():
            flags = [flag for flag in words.ACCEPT_FLAGS if getattr(directive, flag)]
            return "accept", f"{directive.name}: {', '.join(flags)}"
        case syntax.Lead():
            return "lead", ", ".join(f"{name}: {rank}" for name, rank in directive.ranks)
        case syntax.MapDirective():
            options = "".join(f", {key}={print_expression(value)}" for key, value in directive.options)
            return "map", f"{directive.name} = tiled({directive.tensor}{options})"
        case syntax.LibraryDirective():
            return "library", f"{directive.target} = {directive.function}({_list(directive.arguments)})"
        case LaunchDirective():
            return "launch", _print_launch(directive)


def _breakable(expression: Expr) -> str:
    """An expression outside brackets, where lines cannot be broken; parenthesised if very long."""
    text = print_expression(expression)
    return text if len(text) < _LONG else f"({text})"


def _print_buffer(buffer: BufferDirective) -> str:
    text = f"{buffer.name}: {print_expression(buffer.dtype)}[{_list(buffer.sizes)}]"
    if buffer.stride is not None:
        text += f" stride [{_list(buffer.stride)}]"
    return text if buffer.clearing is Clearing.UNDEFINED else f"{text} {buffer.clearing.value}"


def _print_launch(launch: LaunchDirective) -> str:
    template = ""
    if launch.template is not None:
        template = f"<{', '.join(_expression(argument, _SUM) for argument in launch.template)}>"
    shared = "" if launch.smem is None else f", {_expression(launch.smem, _SUM)}"
    sizes = f"{_print_dimensions(launch.grid)}, {_print_dimensions(launch.block)}{shared}"
    text = f"{launch.kernel}{template}<<<{sizes}>>>({_list(launch.arguments)})"
    if launch.cluster is not None:
        text += f" cluster({', '.join(_expression(size, _SUM) for size in launch.cluster)})"
    text += " cooperative" if launch.cooperative else ""
    text += " pdl" if launch.pdl else ""
    return text if launch.when is None else f"{text} when {_breakable(launch.when)}"


def _print_dimensions(sizes: Sequence[Expr]) -> str:
    if len(sizes) == 1:
        return _expression(sizes[0], _SUM)
    return f"dim3({', '.join(_expression(size, _SUM) for size in sizes)})"


# -- lines --


def _joined(directives: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Join adjacent `let` or `const` directives, to keep long plans within the limit of lines."""
    joined: list[tuple[str, str]] = []
    for word, text in directives:
        if joined and word in ("let", "const") and joined[-1][0] == word:
            together = f"{joined[-1][1]}, {text}"
            if len(together) < words.MAX_LINE_CHARACTERS - 20:
                joined[-1] = (word, together)
                continue
        joined.append((word, text))
    return joined


def _wrapped(directive: str) -> list[str]:
    """The lines of a directive, broken after commas inside brackets."""
    if len(directive) <= _WIDTH:
        return [_PREFIX + directive]
    lines: list[str] = []
    start, candidate = 0, 0
    width = _WIDTH
    arguments = directive.find(">>>(") + 4
    if 4 <= arguments <= width:  # launch arguments start on a new line
        lines.append(directive[:arguments])
        start = arguments
        width = _WIDTH - len(_CONTINUATION) + len(_PREFIX)
    for position in _breaks(directive):
        if position - start > width and candidate > start:
            lines.append(directive[start:candidate].rstrip())
            start = candidate
            width = _WIDTH - len(_CONTINUATION) + len(_PREFIX)
        candidate = position
    if len(directive) - start > width and candidate > start:
        lines.append(directive[start:candidate].rstrip())
        start = candidate
    lines.append(directive[start:])
    return [(_CONTINUATION if index else _PREFIX) + line for index, line in enumerate(lines)]


def _breaks(directive: str) -> list[int]:
    """Possible line breaks: after commas inside brackets; in very long directives at any blank there."""
    depth = 0
    anywhere = len(directive) > _LONG
    places: list[int] = []
    index = 0
    while index < len(directive):
        character = directive[index]
        if directive.startswith(("<<<", ">>>"), index):
            depth += 1 if character == "<" else -1
            index += 3
            continue
        if character in "([":
            depth += 1
            if directive[index - 3 : index] == ">>>":
                places.append(index + 1)
        elif character in ")]":
            depth -= 1
        elif character == " " and depth and (anywhere or directive[index - 1] == ","):
            places.append(index + 1)
        index += 1
    return places
