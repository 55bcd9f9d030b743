"""Reading a kernel file: its plan by the grammar, the static rules, and the scan of its C++ text.

`parse` raises `KernelFileError` with every problem of the file, in the file's order. A directive that cannot be
read is reported once; the names it would have defined count as known, so one slip is one message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tilewright.kernel_file import words
from tilewright.kernel_file.check import Lost, check
from tilewright.kernel_file.cpp_tokens import hidden_text
from tilewright.kernel_file.expressions import ParseFailure
from tilewright.kernel_file.grammar import StatementParser
from tilewright.kernel_file.lexer import Statement, Token, read_plan_text
from tilewright.kernel_file.problems import Code, KernelFileError, Mend, Problem
from tilewright.kernel_file.source_scan import scan_source
from tilewright.kernel_file.syntax import Const, Directive, KernelFile, Op, Plan, Tune


@dataclass
class Reading:
    """What could be read of a plan: `op` is None where the op line is missing or unreadable."""

    op: Op | None = None
    directives: list[Directive] = field(default_factory=list)
    lost_names: set[str] = field(default_factory=set)  # defined by directives that could not be read
    lost_words: set[str] = field(default_factory=set)  # the directives that could not be read
    problems: list[Problem] = field(default_factory=list)
    statements: list[Statement] = field(default_factory=list)


def parse(text: str, name: str = "kernel.cu", *, allow_library: bool = True) -> KernelFile:
    """Read and check a kernel file; `allow_library` is whether the task permits vendor steps."""
    hidden = hidden_text(text)
    if hidden:
        raise KernelFileError(tuple(hidden), name)
    reading = read_plan(text)
    constants = [d.name for d in reading.directives if isinstance(d, (Const, Tune))]
    facts, code_problems = scan_source(text, constants)
    lost = Lost(frozenset(reading.lost_names), frozenset(reading.lost_words))
    plan_problems = check(reading.op, reading.directives, facts, lost, allow_library=allow_library)
    plan_problems = [_unknown_as_comment(reading, problem) for problem in plan_problems]
    problems = _in_file_order([*reading.problems, *plan_problems, *code_problems])
    if problems:
        raise KernelFileError(problems, name)
    assert reading.op is not None
    return KernelFile(text, Plan(reading.op, tuple(reading.directives)), name)


def _in_file_order(problems: Sequence[Problem]) -> tuple[Problem, ...]:
    return tuple(sorted(dict.fromkeys(problems), key=lambda problem: (problem.line, problem.column)))


def read_plan(text: str) -> Reading:
    """The plan as far as the grammar goes."""
    plan_text = read_plan_text(text)
    reading = Reading(problems=plan_text.problems, statements=plan_text.statements)
    if plan_text.truncated:
        reading.lost_words.update(words.DIRECTIVES[2:])
    for position, statement in enumerate(plan_text.statements):
        if statement.broken:
            _lose(reading, statement)
            continue
        try:
            _read_statement(reading, statement, position)
        except ParseFailure as failure:
            _lose(reading, statement)
            reading.problems.append(_as_comment(statement, failure.problem) or failure.problem)
    if reading.op is None and "op" not in reading.lost_words and not _has(reading, Code.OP_FIRST):
        found = "a plan without an op line" if plan_text.statements else "no launch plan: the file has no //! lines"
        remedy = "start the file with `//! op name(x) -> y`"
        reading.problems.append(Problem(Code.OP_FIRST, 1, 1, found, remedy))
    return reading


def _has(reading: Reading, code: Code) -> bool:
    return any(problem.code is code for problem in reading.problems)


def _read_statement(reading: Reading, statement: Statement, position: int) -> None:
    word = statement.word
    parser = StatementParser(statement.tokens)
    if word.text not in words.DIRECTIVES:
        _fail_directive(parser, word)
    if word.text == "version":
        if position:
            parser.fail_at(word, Code.VERSION, "`version` below another directive", "make it the first plan line")
        parser.version()
    elif word.text == "op":
        if reading.op is not None or "op" in reading.lost_words:
            parser.fail_at(word, Code.OP_FIRST, "a second op line", "a file has exactly one")
        reading.op = parser.op()
    else:
        if reading.op is None and "op" not in reading.lost_words and not _has(reading, Code.OP_FIRST):
            found = f"`{word.text}` before the op line"
            problem = Problem(Code.OP_FIRST, word.line, word.column, found, "the op line is the first directive")
            reading.problems.append(problem)
        reading.directives.extend(parser.directives())


def _fail_directive(parser: StatementParser, word: Token) -> None:
    near = words.near_names(word.text, words.DIRECTIVES)
    mend = Mend(word.line, word.column, len(word.text), near[0]) if len(near) == 1 else None
    known = f"known: {words.quoted(words.DIRECTIVES)}"
    remedy = f"write {near[0]}; {known}" if mend else known
    parser.fail_at(word, Code.UNKNOWN_DIRECTIVE, f"unknown directive {word}", remedy, mend)


def _lose(reading: Reading, statement: Statement) -> None:
    """Note what an unreadable directive was to define."""
    word = statement.word.text
    near = words.near_names(word, words.DIRECTIVES)
    reading.lost_words.add(word if word in words.DIRECTIVES or len(near) != 1 else near[0])
    tokens = statement.tokens
    for before, token, after in zip(tokens, tokens[1:], tokens[2:], strict=False):
        defines = after.text in ("=", ":") and (before is tokens[0] or before.text == ",")
        if token.kind == "name" and defines:
            reading.lost_names.add(token.text)


def _as_comment(statement: Statement, problem: Problem) -> Problem | None:
    """The problem of a comment begun with `//`, if the directive reads well without it."""
    marks = [
        token
        for token in statement.tokens
        if token.text == "//" and (token.line, token.column) <= (problem.line, problem.column)
    ]
    if not marks:
        return None
    mark = marks[-1]
    kept = [t for t in statement.tokens if t.line != mark.line or t.column < mark.column or t.kind == "end"]
    if not _reads_well(kept):
        return None
    remedy = "comments start with #, `//` divides"
    mend = Mend(mark.line, mark.column, 2, "#")
    return Problem(Code.SYNTAX, mark.line, mark.column, "a comment begun with `//`", remedy, mend)


def _unknown_as_comment(reading: Reading, problem: Problem) -> Problem:
    """`let n = x.numel // elements` divides by a name that is not there: the author meant a comment."""
    if problem.code is not Code.UNKNOWN_NAME or problem.mend is not None:
        return problem
    for statement in reading.statements:
        for before, token, after in zip(statement.tokens, statement.tokens[1:], statement.tokens[2:], strict=False):
            at_problem = (token.line, token.column) == (problem.line, problem.column)
            ends_line = after.kind == "end" or after.line != token.line
            if at_problem and ends_line and before.text == "//":
                return _as_comment(statement, problem) or problem
    return problem


def _reads_well(tokens: Sequence[Token]) -> bool:
    try:
        parser = StatementParser(tokens)
        if tokens[0].text == "op":
            parser.op()
        elif tokens[0].text == "version":
            parser.version()
        elif tokens[0].text in words.DIRECTIVES:
            parser.directives()
        else:
            return False
    except ParseFailure:
        return False
    return True
