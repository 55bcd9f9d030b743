"""Reading a kernel file: its plan by the grammar, the static rules, and the scan of its C++ text.

`parse` raises `KernelFileError` with every problem of the file, in the file's order. A directive that cannot be
read is reported once; the names it would have defined count as known, so one slip is one message. `autofix` first
fixes what has exactly one mechanical fix, so that no author is asked again about trivia.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tilewright.kernel_file import words
from tilewright.kernel_file.compiled_plan import KernelFile, Unparsed
from tilewright.kernel_file.cpp_tokens import find_hidden_text
from tilewright.kernel_file.directives import StatementParser
from tilewright.kernel_file.expressions import ParseFailure
from tilewright.kernel_file.lexer import Statement, Token, read_plan_text
from tilewright.kernel_file.problems import Autofix, Code, KernelFileError, Problem
from tilewright.kernel_file.source_scan import scan_source
from tilewright.kernel_file.static_checks import check
from tilewright.kernel_file.syntax import Const, Directive, Op, Plan, Tune

# A fix can uncover another problem of the same directive, so files are read again; an honest file takes one or two.
_MAX_ROUNDS = 20


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
    hidden = find_hidden_text(text)
    if hidden:
        raise KernelFileError(tuple(hidden), name)
    reading = read_plan(text)
    constants = [d.name for d in reading.directives if isinstance(d, (Const, Tune))]
    facts, code_problems = scan_source(text, constants)
    lost = Unparsed(frozenset(reading.lost_names), frozenset(reading.lost_words))
    compiled, plan_problems = check(reading.op, reading.directives, facts, lost, allow_library=allow_library)
    plan_problems = [_unknown_as_comment(reading, problem) for problem in plan_problems]
    problems = _in_file_order([*reading.problems, *plan_problems, *code_problems])
    if problems:
        raise KernelFileError(problems, name)
    assert reading.op is not None
    return KernelFile(text, Plan(reading.op, tuple(reading.directives)), name, compiled)


def autofix(text: str, name: str = "kernel.cu", *, allow_library: bool = True) -> KernelFile:
    """Read a file, fixing what can be fixed; raises `KernelFileError` with the problems that remain."""
    seen = {text}
    for _ in range(_MAX_ROUNDS):
        try:
            return parse(text, name, allow_library=allow_library)
        except KernelFileError as error:
            text = apply_autofixes(text, error.problems)
            if text in seen:
                raise
            seen.add(text)
    return parse(text, name, allow_library=allow_library)


def apply_autofixes(text: str, problems: Sequence[Problem]) -> str:
    """The text with every fix made that overlaps no later one."""
    lines = text.split("\n")
    free_to: dict[int, int] = {}  # per line, the first column no later fix has touched
    fixes = [problem.autofix for problem in problems if problem.autofix is not None]
    for fix in sorted(fixes, key=lambda fix: (fix.line, fix.column), reverse=True):
        if not 1 <= fix.line <= len(lines):
            continue
        line = lines[fix.line - 1]
        end = fix.column + fix.length
        if end <= free_to.get(fix.line, len(line) + 1):
            lines[fix.line - 1] = line[: fix.column - 1] + fix.replacement + line[end - 1 :]
            free_to[fix.line] = fix.column
    return "\n".join(lines)


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
            reading.problems.append(Problem.at(word.at, Code.OP_FIRST, found, "the op line is the first directive"))
        reading.directives.extend(parser.directives())


def _fail_directive(parser: StatementParser, word: Token) -> None:
    meant = words.closest_name(word.text, words.DIRECTIVES)
    remedy = f"known: {words.quoted(words.DIRECTIVES)}"
    if word.text in words.FORMER_DIRECTIVES:
        remedy = words.FORMER_DIRECTIVES[word.text]
    elif meant:
        remedy = f"write {meant}; {remedy}"
    parser.fail_at(word, Code.UNKNOWN_DIRECTIVE, f"unknown directive {word}", remedy, Autofix.of(word.at, meant))


def _lose(reading: Reading, statement: Statement) -> None:
    """Note what an unreadable directive was to define."""
    word = statement.word.text
    meant = word if word in words.DIRECTIVES else words.closest_name(word, words.DIRECTIVES)
    reading.lost_words.add(meant or word)
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
    if not _parses(kept):
        return None
    remedy = "comments start with #, `//` divides"
    return Problem.at(mark.at, Code.SYNTAX, "a comment begun with `//`", remedy, Autofix.of(mark.at, "#"))


def _unknown_as_comment(reading: Reading, problem: Problem) -> Problem:
    """`let n = x.numel // elements` divides by a name that is not there: the author meant a comment."""
    if problem.code is not Code.UNKNOWN_NAME or problem.autofix is not None:
        return problem
    for statement in reading.statements:
        for before, token, after in zip(statement.tokens, statement.tokens[1:], statement.tokens[2:], strict=False):
            at_problem = (token.line, token.column) == (problem.line, problem.column)
            ends_line = after.kind == "end" or after.line != token.line
            if at_problem and ends_line and before.text == "//":
                return _as_comment(statement, problem) or problem
    return problem


def _parses(tokens: Sequence[Token]) -> bool:
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
