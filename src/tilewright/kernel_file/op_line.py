"""Op lines: parsing, construction from a task, comparison with a file's."""

from __future__ import annotations

from dataclasses import replace

from tilewright.kernel_file.compiled_plan import KernelFile
from tilewright.kernel_file.directives import StatementParser
from tilewright.kernel_file.expressions import ParseFailure
from tilewright.kernel_file.lexer import Token, tokenize
from tilewright.kernel_file.printer import print_op
from tilewright.kernel_file.problems import Autofix, Code, KernelFileError, Problem
from tilewright.kernel_file.syntax import Op, Parameter, Span
from tilewright.records import NumberInput, ScalarType, SizeFormula, SizeTerm, Task

_NOWHERE = Span(1, 1)


def parse_op(text: str) -> Op:
    """Parse an op line such as `f(x, eps: float) -> y`, with or without `//! op`."""
    start = len(text) - len(text.lstrip())
    if text.startswith("//!", start):
        start += 3
    problems: list[Problem] = []
    body = text[start:].rstrip()
    if not body.isascii() or "\n" in body:
        problems.append(Problem(Code.SYNTAX, 1, 1, "an op line that is not one line of ASCII", "write it on one line"))
    tokens = [] if problems else tokenize(body, 1, start + 1, problems)
    if tokens and tokens[-1].text == ";":
        tokens.pop()
    if not (len(tokens) > 1 and tokens[0].text == "op" and tokens[1].kind == "name"):
        tokens.insert(0, Token("name", "op", 1, 1))
    tokens.append(Token("end", "", 1, len(text) + 1))
    if not problems:
        try:
            return StatementParser(tokens).op()
        except ParseFailure as failure:
            problems.append(failure.problem)
    raise KernelFileError(tuple(problems), "op line")


def compare_op(file: KernelFile, expected: Op) -> tuple[Problem, ...]:
    """Differences between a file's op line and the task's."""
    written = file.plan.op
    found: list[tuple[Span, str]] = []
    if written.name != expected.name:
        found.append((written.at, f"the op is called {written.name}, not {expected.name}"))
    for mine, theirs in zip(written.parameters, expected.parameters, strict=False):
        if replace(mine, at=_NOWHERE) != replace(theirs, at=_NOWHERE):
            found.append((mine.at, f"the parameter `{_show(mine)}` is `{_show(theirs)}` in the task"))
    count, wanted = len(written.parameters), len(expected.parameters)
    if count != wanted:
        at = written.parameters[wanted].at if count > wanted else written.at
        found.append((at, f"{count} parameter{'s' if count != 1 else ''} where the task has {wanted}"))
    if written.results != expected.results:
        mine_text, theirs_text = ", ".join(written.results) or "none", ", ".join(expected.results) or "none"
        found.append((written.at, f"the results are {mine_text}, in the task {theirs_text}"))
    remedy = f"write the line as the task has it: {print_op(expected)}"
    autofix = _autofix(file, expected)
    return tuple(Problem.at(at, Code.TASK_MISMATCH, text, remedy, autofix) for at, text in found)


def _autofix(file: KernelFile, expected: Op) -> Autofix | None:
    """Replacing the op line is safe where all names stay the same."""
    written = file.plan.op
    names = [parameter.name for parameter in written.parameters]
    if names != [parameter.name for parameter in expected.parameters] or written.results != expected.results:
        return None
    line = file.text.split("\n")[written.at.line - 1]
    rest = line[written.at.column - 1 + written.at.length :].strip().rstrip(";").strip()
    if rest and not rest.startswith("#"):
        return None  # the op line continues on the next one
    if line[written.at.column - 1 :].count("(") != line[written.at.column - 1 :].count(")"):
        return None
    return Autofix.of(written.at, print_op(expected))


def _show(parameter: Parameter) -> str:
    return print_op(Op("", (parameter,), (), parameter.at)).removeprefix("op      (").removesuffix(")")


# -- the op of a task --


def op_of_task(task: Task) -> Op:
    """The task's op: inputs, numbers with the function's defaults, outputs."""
    parameters = tuple(
        _number(one)
        if isinstance(one, NumberInput)
        else Parameter(one.name, None, _NOWHERE, in_place=one.in_place, optional=one.optional)
        for one in task.inputs
    )
    return Op(task.name, parameters, tuple(one.name for one in task.outputs), _NOWHERE)


def _number(one: NumberInput) -> Parameter:
    if not one.default:
        return Parameter(one.name, one.type, _NOWHERE)
    # Defaults have the parameter's type: `eps: float = 1` is 1.0.
    value = float(one.value) if one.type is ScalarType.FLOAT else one.value
    return Parameter(one.name, one.type, _NOWHERE, has_default=True, default=value)


def size_expression(dimension: str, task: Task) -> str | None:
    """The plan expression of a dimension's size by input shapes; None where they do not determine it."""
    expression = _axis(dimension, task)
    formulas = {one.name: one.formula for one in task.dimensions if one.formula is not None}
    if expression is not None:
        return expression
    if dimension in formulas:
        parts = {name: size_expression(name, task) for name in formulas[dimension].names}
        known = {name: part for name, part in parts.items() if part is not None}
        return formulas[dimension].text(known) if len(known) == len(parts) else None
    for name, formula in formulas.items():
        # An input axis of 2 * cols gives cols as half of it.
        axis = _axis(name, task)
        if axis is not None and formula == SizeFormula.of([SizeTerm(formula.terms[0].coefficient, (dimension,))]):
            return f"({axis} / {formula.terms[0].coefficient})"
    return None


def needs_of_task(task: Task) -> tuple[str, ...]:
    """The `need` conditions for sizes and numbers at which the reference takes another branch."""
    needs: list[str] = []
    for one in task.free:
        expression = size_expression(one.name, task) if one.branches else None
        if expression is None:
            continue
        if not one.varies:
            needs.append(f"{expression} == {one.size}")
            continue
        needs += [f"{expression} % {one.multiple_of} == 0"] if one.multiple_of > 1 else []
        needs += [f"{expression} >= {one.at_least}"] if one.at_least > 1 else []
        needs += [f"{expression} <= {one.at_most}"] if one.at_most is not None else []
    return (
        *needs,
        *(
            said
            for one in task.numbers
            if one.bounds is not None and one.bounds.branches
            for said in one.bounds.conditions(one.name)
        ),
    )


def _axis(dimension: str, task: Task) -> str | None:
    for one in task.tensors:
        if not one.optional and dimension in one.dimensions:
            return f"{one.name}.shape[{one.dimensions.index(dimension)}]"
    return None
