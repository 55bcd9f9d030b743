"""Splits PTX into functions and statements, enough to follow calls and addresses.

Like the assembler it removes comments and strings and splits at `;`, `{` and `}`, never at line ends, because inline
assembly may put anything on a line and may even close the enclosing function.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

# PTX strings have no escapes, may span lines, and may contain comment marks and braces.
_COMMENT_OR_STRING = re.compile(r"//[^\n]*|/\*.*?\*/|\"[^\"]*\"", re.DOTALL)
_LOC = r"\.loc\s+\d+\s+\d+\s+\d+(?:\s*,\s*function_name\s+[\w$]+(?:\s*\+\s*\d+)?\s*,\s*inlined_at\s+\d+\s+\d+\s+\d+)?"
_BREAK = re.compile(_LOC + r"|[{};]")
_LOC_NUMBERS = re.compile(r"\.loc\s+(\d+)\s+(\d+)\s+(\d+)(?:.*inlined_at\s+(\d+)\s+(\d+)\s+(\d+))?", re.DOTALL)
# The three directives at the top end with their line; everything else with `;` or a brace.
_HEADER = re.compile(r"\A\s*\.version[^\n]*\n\s*\.target[^\n]*\n\s*\.address_size[^\n]*\n")
_FILE = re.compile(r"^\s*\.file\s+(\d+)\s+\"([^\"]*)\"", re.MULTILINE)
_LABELS = re.compile(r"^(?:\s*[\w$%.]+\s*:(?!:))+")
_FUNCTION = re.compile(
    r"^(?:\.(?:visible|weak|extern|common)\s+)*\.(entry|func)\b(?:\s*\.noreturn)?\s*(?:\([^)]*\)\s*)?([\w$%.]+)"
)
_VARIABLE_TYPE = re.compile(r"\.(?:[bsuf]\d+\w*|pred|texref|surfref|samplerref)\s+(?=[\w$%])")
_VARIABLE_SPACES = (".global", ".const", ".visible", ".weak", ".extern", ".common")
_IDENTIFIER = re.compile(r"[A-Za-z_$%][\w$]*")

_LONGEST_CHAIN = 64

Location = tuple[int, int, int]  # file number, line, column


@dataclass(frozen=True)
class PtxStatement:
    text: str  # one instruction or declaration, without its `;`, label or line directives
    at: int  # index into the module's locations; -1 before the first


@dataclass(frozen=True)
class PtxFunction:
    name: str
    is_entry: bool
    declaration: str  # from `.entry` to the opening brace: parameters and directives
    statements: tuple[PtxStatement, ...]


@dataclass
class PtxModule:
    """A whole PTX module."""

    functions: dict[str, PtxFunction] = field(default_factory=dict)
    external: set[str] = field(default_factory=set)  # declared and not defined
    # Initialisers by name, of global and constant variables; constant memory can be written through a generic address.
    variables: dict[str, str] = field(default_factory=dict)
    files: dict[int, str] = field(default_factory=dict)
    locations: list[Location] = field(default_factory=list)
    inlined_at: dict[Location, Location] = field(default_factory=dict)

    def line_in(self, file: str, at: int) -> int | None:
        """The innermost line of `file` among a location and the calls it was inlined through."""
        return next((line for name, line in self.calls_behind(at) if name == file), None)

    def calls_behind(self, at: int) -> list[tuple[str, int]]:
        """(file, line) of a location and of the calls it was inlined through, innermost first."""
        chain: list[tuple[str, int]] = []
        place = self.locations[at] if at >= 0 else None
        while place is not None and len(chain) < _LONGEST_CHAIN:
            chain.append((self.files.get(place[0], ""), place[1]))
            place = self.inlined_at.get(place)
        return chain


def parse_ptx(text: str) -> PtxModule:
    """Parse a PTX text. Never fails: unknown constructs are omitted."""
    plain = _COMMENT_OR_STRING.sub(lambda found: found.group() if found.group()[0] == '"' else " ", text)
    module = PtxModule(files={int(number): name for number, name in _FILE.findall(plain)})
    _Reader(module, _HEADER.sub("", _COMMENT_OR_STRING.sub('""', plain))).read()
    module.external -= module.functions.keys()
    return module


def identifiers(text: str) -> list[str]:
    """The identifiers in a statement, in order; registers keep their `%`."""
    return _IDENTIFIER.findall(text)


def line_of_ptx_line(text: str, line: int, file: str) -> int | None:
    """The line of `file` that a line of the PTX text came from."""
    above = "\n".join(text.split("\n")[:line])
    module = PtxModule(files={int(number): name for number, name in _FILE.findall(text)})
    for directive in re.finditer(_LOC, above):
        _add_location(module, directive.group())
    return module.line_in(file, len(module.locations) - 1)


class _Reader:
    """One pass over the text, with the pending statement and its nesting."""

    def __init__(self, module: PtxModule, text: str) -> None:
        self.module = module
        self.text = text
        self.pending: list[str] = []
        self.depth = 0  # of blocks
        self.operand_depth = 0  # of braces inside a statement: vectors, initialisers
        self.function: tuple[str, bool, str] | None = None
        self.statements: list[PtxStatement] = []

    def read(self) -> None:
        position = 0
        for found in _BREAK.finditer(self.text):
            self.pending.append(self.text[position : found.start()])
            position = found.end()
            token = found.group()
            if token == ";":
                self._end_statement()
            elif token == "{":
                self._open()
            elif token == "}":
                self._close()
            else:
                _add_location(self.module, token)

    def _collected(self) -> str:
        return _LABELS.sub("", "".join(self.pending)).strip()

    def _open(self) -> None:
        text = self._collected()
        if self.operand_depth:
            self.operand_depth += 1
            self.pending.append("{")
        elif self.depth:
            if text:
                self.operand_depth = 1
                self.pending.append("{")
            else:
                self._block()
        elif _FUNCTION.match(text) or text.startswith(".section"):
            found = _FUNCTION.match(text)
            self.function = (found.group(2), found.group(1) == "entry", text) if found else None
            self._block()
        else:
            self.operand_depth = 1
            self.pending.append("{")

    def _block(self) -> None:
        self.depth += 1
        self.pending.clear()

    def _close(self) -> None:
        if self.operand_depth:
            self.operand_depth -= 1
            self.pending.append("}")
            return
        self._end_statement()
        self.depth = max(self.depth - 1, 0)
        if self.depth == 0 and self.function is not None:
            name, is_entry, declaration = self.function
            self.module.functions[name] = PtxFunction(name, is_entry, declaration, tuple(self.statements))
            self.function = None
            self.statements = []

    def _end_statement(self) -> None:
        text = self._collected()
        self.pending.clear()
        self.operand_depth = 0
        if not text:
            return
        if text.startswith(_VARIABLE_SPACES) and (".global" in text or ".const" in text):
            self._variables(text)
        if self.function is not None:
            self.statements.append(PtxStatement(text, len(self.module.locations) - 1))
        elif found := _FUNCTION.match(text):
            self.module.external.add(found.group(2))

    def _variables(self, text: str) -> None:
        """One declaration may name several: `.global .u32 a, b[4] = {1, 2};`."""
        declared = _VARIABLE_TYPE.search(text)
        name, depth = "", 0
        for part in re.split(r"([{},])", text[declared.end() :]) if declared else ():
            depth += (part == "{") - (part == "}")
            found = _IDENTIFIER.match(part.strip()) if not depth else None
            if found is not None:
                name, part = found.group(), part.strip()[found.end() :]
                self.module.variables[name] = ""
            if name and (depth or part != ","):
                self.module.variables[name] += part


def _add_location(module: PtxModule, directive: str) -> None:
    found = _LOC_NUMBERS.match(directive)
    if found is None:
        return
    numbers = [int(number) if number else 0 for number in found.groups()]
    place = (numbers[0], numbers[1], numbers[2])
    module.locations.append(place)
    if found.group(4):
        module.inlined_at[place] = (numbers[3], numbers[4], numbers[5])
