"""The op line on its own: read as a task gives it, and compared with the op line of a file."""

from __future__ import annotations

from dataclasses import replace

from tilewright.kernel_file.expressions import ParseFailure
from tilewright.kernel_file.grammar import StatementParser
from tilewright.kernel_file.lexer import Token, tokenize
from tilewright.kernel_file.printer import print_op
from tilewright.kernel_file.problems import Code, KernelFileError, Mend, Problem
from tilewright.kernel_file.syntax import KernelFile, Op, Parameter, Place


def parse_op(text: str) -> Op:
    """Read an op line: `f(x, eps: float) -> y`, with or without `op` and `//!` before it."""
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
    """Where a file's op line differs from the task's: name, parameters in order, types, `!`, `?`, results."""
    written = file.plan.op
    found: list[tuple[Place, str]] = []
    if written.name != expected.name:
        found.append((written.at, f"the op is called {written.name}, not {expected.name}"))
    for mine, theirs in zip(written.parameters, expected.parameters, strict=False):
        if _without_place(mine) != _without_place(theirs):
            found.append((mine.at, f"the parameter `{_show(mine)}` is `{_show(theirs)}` in the task"))
    count, wanted = len(written.parameters), len(expected.parameters)
    if count != wanted:
        at = written.parameters[wanted].at if count > wanted else written.at
        found.append((at, f"{count} parameter{'s' if count != 1 else ''} where the task has {wanted}"))
    if written.results != expected.results:
        mine_text, theirs_text = ", ".join(written.results) or "none", ", ".join(expected.results) or "none"
        found.append((written.at, f"the results are {mine_text}, in the task {theirs_text}"))
    remedy = f"write the line as the task has it: {print_op(expected)}"
    mend = _mend(file, expected)
    return tuple(Problem(Code.TASK_MISMATCH, at.line, at.column, text, remedy, mend) for at, text in found)


def _mend(file: KernelFile, expected: Op) -> Mend | None:
    """Writing the task's line is mechanical where the plan's names stay what they are."""
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
    return Mend(written.at.line, written.at.column, written.at.length, print_op(expected))


def _without_place(parameter: Parameter) -> Parameter:
    return replace(parameter, at=Place(0, 0))


def _show(parameter: Parameter) -> str:
    return print_op(Op("", (parameter,), (), parameter.at)).removeprefix("op      (").removesuffix(")")
