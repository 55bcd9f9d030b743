"""The lexer of launch plans: tokens of the `//!` lines above the code, one statement per directive.

Refuses text that could hide plan lines from a reader or a compiler. Tracks brackets, because a directive continues on
the next line while one is open.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from tilewright.kernel_file import words
from tilewright.kernel_file.problems import Autofix, Code, Problem
from tilewright.kernel_file.syntax import Span


class Token(NamedTuple):
    kind: str  # "name", "int", "float", "op" or "end"
    text: str
    line: int
    column: int  # 1-based

    @property
    def at(self) -> Span:
        return Span(self.line, self.column, len(self.text))

    @property
    def end_column(self) -> int:
        return self.column + len(self.text)

    def __str__(self) -> str:
        return "the end of the directive" if self.kind == "end" else f"`{self.text}`"


@dataclass
class Statement:
    """The tokens of one directive, the "end" token last."""

    tokens: list[Token]
    broken: bool = False  # a lexical problem was reported, so it is not parsed

    @property
    def word(self) -> Token:
        return self.tokens[0]


@dataclass
class PlanText:
    statements: list[Statement] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    truncated: bool = False  # lines beyond the limit were skipped


_TOKEN = re.compile(
    r"""[ \t]*(?:
        (?P<comment>\#.*)
      | (?P<float>\d[\d_]*\.(?!\.)\d*(?:[eE][-+]?\d+)?|\d[\d_]*[eE][-+]?\d+)
      | (?P<int>\d[\d_]*)
      | (?P<name>[A-Za-z_][A-Za-z_0-9]*)
      | (?P<other>\*\*|<<(?!<)|>>(?!>))
      | (?P<op><<<|>>>|->|==|!=|<=|>=|&&|\|\||//|::|[-+*/%<>=(),.:\[\]|?!;])
      | (?P<strange>[^ \t])
    )""",
    re.VERBOSE | re.ASCII,
)
_HEX = re.compile(r"0[xX][0-9A-Fa-f]+\Z")
_SUFFIX = re.compile(r"(?:[uU]?[lL]{0,2}|[fF])\Z")
_CLOSER = {"(": ")", "[": "]", "<<<": ">>>"}
_CLOSERS = frozenset(_CLOSER.values())
_NO_SUCH_CHARACTER = "delete it; a plan is written in names, numbers and + - * /"
_NOT_PLAN_CHARACTER = re.compile(r"[^\t\x20-\x7e]")


def read_plan_text(text: str) -> PlanText:
    """The statements of the plan, and lexical problems."""
    return _PlanReader().read(text)


def tokenize(body: str, line: int, first_column: int, problems: list[Problem]) -> list[Token]:
    """The tokens of one line; invalid text goes to `problems`."""
    tokens: list[Token] = []
    number_end = 0  # the column after the last token, if that is a number
    for match in _TOKEN.finditer(body):
        kind = match.lastgroup or "strange"
        if kind == "comment":
            break
        token = Token(kind, match.group(kind), line, first_column + match.start(kind))
        if kind in ("other", "strange"):
            remedy = words.OPERATOR_SPELLINGS.get(token.text, _NO_SUCH_CHARACTER)
            problems.append(Problem.at(token.at, Code.SYNTAX, f"unexpected `{token.text}`", remedy))
        elif kind == "name" and number_end == token.column:
            _number_with_letters(tokens[-1], token, problems)
        else:
            tokens.append(token)
            number_end = token.end_column if kind in ("int", "float") else 0
    return tokens


def _number_with_letters(number: Token, letters: Token, problems: list[Problem]) -> None:
    """Report `0x40`, `1.0f` or `256u`; the plain number remains a token."""
    whole = number.text + letters.text
    plain = number.text
    if _HEX.match(whole):
        plain = str(int(whole, 16))
    autofix, remedy = None, "numbers are decimal; a name does not start with a digit"
    if _HEX.match(whole) or _SUFFIX.match(letters.text):
        autofix, remedy = Autofix.between(number.at, letters.at, plain), f"write {plain}"
    problems.append(Problem.at(number.at, Code.SYNTAX, f"`{whole}` is no plan number", remedy, autofix))


class _PlanReader:
    """Collects statements and problems over the lines of a file."""

    def __init__(self) -> None:
        self.result = PlanText()
        self.open: list[Token] = []  # brackets of the unfinished statement
        self.current: Statement | None = None
        self.code_line = 0  # first line of code, once seen
        self.in_comment = False
        self.plan_lines = 0

    def read(self, text: str) -> PlanText:
        for number, line in enumerate(text.split("\n"), 1):
            line = line.removesuffix("\r")
            if self.in_comment or not line.lstrip().startswith("//!"):
                # After the first line of code only misplaced plan lines are reported.
                if not self.code_line:
                    self._between(number, line)
            elif self.code_line:
                remedy = f"move it above line {self.code_line}; the whole plan stands before the code"
                found = "a //! line below the first line of code"
                self._problem(Code.PLAN_AFTER_CODE, number, line.index("//!") + 1, found, remedy)
            else:
                self._plan_line(number, line)
        if self.current is not None:
            self._unclosed()
        return self.result

    def _problem(self, code: Code, line: int, column: int, found: str, remedy: str) -> None:
        self.result.problems.append(Problem(code, line, column, found, remedy))

    def _between(self, number: int, line: str) -> None:
        """A blank line, a comment, or the first line of code."""
        position = 0
        while True:
            if self.in_comment:
                if line[position:].lstrip().startswith("//!"):
                    found = "a //! line inside a block comment"
                    self._problem(Code.SYNTAX, number, line.index("//!", position) + 1, found, "move it out of /* */")
                end = line.find("*/", position)
                if end < 0:
                    return
                self.in_comment, position = False, end + 2
            rest = line[position:].lstrip()
            if rest.startswith("/*"):
                self.in_comment, position = True, line.index("/*", position) + 2
            elif rest.startswith("//!"):
                column = line.index("//!", position) + 1
                self._problem(Code.SYNTAX, number, column, "text before `//!`", "a plan line starts with //!")
                return
            else:
                if rest and not rest.startswith("//"):
                    self.code_line = number
                return

    def _plan_line(self, number: int, line: str) -> None:
        self.plan_lines += 1
        start = line.index("//!") + 3
        body = line[start:]
        before = len(self.result.problems)
        if self.plan_lines == words.MAX_PLAN_LINES + 1:
            limit = words.MAX_PLAN_LINES
            self._problem(Code.LIMIT, number, 1, f"more than {limit} plan lines", "join or drop `let` lines")
            self.result.truncated = True
        if self.plan_lines > words.MAX_PLAN_LINES:
            return
        if len(line) > words.MAX_LINE_CHARACTERS:
            found = f"a plan line of {len(line)} characters"
            limit = words.MAX_LINE_CHARACTERS
            self._problem(Code.LIMIT, number, limit + 1, found, f"at most {limit}; break it inside brackets")
        self._refuse_hidden(number, start, body)
        tokens: list[Token] = []
        if len(self.result.problems) == before:
            tokens = tokenize(body, number, start + 1, self.result.problems)
        self._add(tokens, broken=len(self.result.problems) > before)

    def _refuse_hidden(self, number: int, start: int, body: str) -> None:
        """Refuse characters that make a line read differently for people and compilers."""
        strange = _NOT_PLAN_CHARACTER.search(body)
        if strange:
            found = f"character U+{ord(strange.group()):04X} in a plan line"
            column = start + strange.start() + 1
            self._problem(Code.SYNTAX, number, column, found, "plan lines are plain ASCII")
        stripped = body.rstrip()
        for ending in ("\\", "??/"):
            if stripped.endswith(ending):
                column = start + len(stripped) - len(ending) + 1
                at = Span(number, column, len(body) - len(stripped) + len(ending))
                remedy = f"delete the `{ending}`; a directive continues while a bracket is open"
                found = f"a plan line ending in `{ending}`"
                self.result.problems.append(Problem.at(at, Code.SYNTAX, found, remedy, Autofix.of(at, "")))

    def _add(self, tokens: list[Token], broken: bool) -> None:
        if self.current is not None and tokens and _starts_directive(tokens):
            self._unclosed()
        if self.current is None:
            if not tokens and not broken:
                return
            if self._continues_broken(tokens):
                return
            self.current = Statement([])
        self.current.tokens.extend(tokens)
        self.current.broken |= broken
        balanced = self._track_brackets(tokens)
        if not self.open or not balanced or self.current.broken:
            self._close()

    def _continues_broken(self, tokens: list[Token]) -> bool:
        """Whether a line continues an unreadable directive: it starts with no directive word."""
        statements = self.result.statements
        if not statements or not statements[-1].broken or not tokens:
            return False
        first = tokens[0].text
        return first not in words.DIRECTIVES and not words.close_names(first, words.DIRECTIVES)

    def _track_brackets(self, tokens: list[Token]) -> bool:
        for token in tokens:
            if token.kind != "op":
                continue
            if token.text in _CLOSER:
                self.open.append(token)
            elif token.text in _CLOSERS and (not self.open or _CLOSER[self.open.pop().text] != token.text):
                return False
        return True

    def _unclosed(self) -> None:
        assert self.current is not None
        bracket = self.open[-1]
        found, remedy = f"unclosed {bracket.text} from line {bracket.line}", f"close it with `{_CLOSER[bracket.text]}`"
        self._problem(Code.SYNTAX, bracket.line, bracket.column, found, remedy)
        self.current.broken = True
        self._close()

    def _close(self) -> None:
        assert self.current is not None
        tokens = self.current.tokens
        if tokens and tokens[-1].text == ";":
            tokens.pop()
        if tokens:
            last = tokens[-1]
            tokens.append(Token("end", "", last.line, last.end_column))
            self.result.statements.append(self.current)
        self.current = None
        self.open = []


def _starts_directive(tokens: list[Token]) -> bool:
    """Whether a line starts a directive: its word followed by a name or bracket, as in no expression."""
    if tokens[0].text not in words.DIRECTIVES or len(tokens) < 2:
        return False
    following = tokens[1]
    if following.kind == "name":
        return following.text not in ("if", "else", "and", "or", "in")
    return following.text == "("
