"""Parses a function body in two passes: first statements and names, then operands.

A label may be used before its definition, and `.file` directives follow the code. `.loc` gives each instruction its
source line and the calls it was inlined through.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tilewright.ptx import declarations, operand_text, syntax
from tilewright.ptx.lexer import IDENTIFIER, Cursor, one_line
from tilewright.ptx.operand_text import FunctionNames, NameScope, OperandError, UnknownOperand
from tilewright.ptx.syntax import Function, Instruction, Operand, ParameterDeclaration, PtxError, Register, Variable
from tilewright.records import SourcePlace

# One pattern for both, because it is tried at every statement.
_LABEL_OR_INSTRUCTION = re.compile(rf"(?:({IDENTIFIER})\s*:(?!:)|([^;]*);)\s*", re.ASCII)
_INSTRUCTION = re.compile(
    rf"(?:@\s*(!?)\s*({IDENTIFIER})\s+)?([a-z][a-z0-9_]*)((?:\.[\w:]+)*)(?![\w.$])\s*(.*)", re.ASCII | re.DOTALL
)
_DEEPEST_NESTING = 256
_LOC = re.compile(
    r"(\d{1,9})\s+(\d{1,9})(?:\s+(\d{1,9}))?"
    rf"(?:\s*,\s*function_name\s+{IDENTIFIER}(?:\s*\+\s*\d+)?\s*,\s*inlined_at\s+(\d{{1,9}})\s+(\d{{1,9}})\s+(\d{{1,9}}))?",
    re.ASCII,
)
_DEEPEST_CHAIN = 64

Position = tuple[int, int, int]  # file index, line, column


class Location:
    """One `.loc`, before file names are known."""

    __slots__ = ("depth", "inlined_at", "position", "ptx_line", "resolved")

    def __init__(self, position: Position, inlined_at: Location | None, ptx_line: int) -> None:
        self.position = position
        self.inlined_at = inlined_at
        self.ptx_line = ptx_line
        self.depth: int = 0 if inlined_at is None else inlined_at.depth + 1
        self.resolved: tuple[SourcePlace, ...] | None = None


class PlaceTable:
    """The files and locations of a module. File names come after the code that uses them."""

    def __init__(self) -> None:
        self._files: dict[int, str] = {}
        self._latest: dict[Position, Location] = {}

    def read_file(self, cursor: Cursor) -> None:
        """What follows `.file`: `1 "kernel.cu"`, optionally with a time stamp and a size."""
        index = cursor.integer("the index of a file")
        self._files[index] = cursor.string("the name of a file")
        while cursor.accept(","):
            cursor.integer("the time or size of a file")

    def start_function(self) -> None:
        """Inlining chains do not cross functions."""
        self._latest = {}

    def read_loc(self, cursor: Cursor, start: int) -> Location:
        """What follows `.loc`: `1 24 5, function_name $L__info_string0, inlined_at 1 30 3`."""
        found = cursor.match(_LOC)
        if found is None:
            cursor.fail("expected a file, a line and a column", start)
        file, line, column, outer_file, outer_line, outer_column = found.groups()
        ptx_line = cursor.line_at(start)
        outer: Location | None = None
        if outer_file is not None:
            # If the call site was inlined itself, an earlier `.loc` has the rest of the chain.
            position = (int(outer_file), int(outer_line), int(outer_column))
            outer = self._latest.get(position)
            if outer is None or outer.depth >= _DEEPEST_CHAIN:
                outer = Location(position, None, ptx_line)
        location = Location((int(file), int(line), int(column or 0)), outer, ptx_line)
        self._latest[location.position] = location
        return location

    def places(self, location: Location) -> tuple[SourcePlace, ...]:
        """The location and its call sites, innermost first. Line 0 is compiler-generated code and is skipped."""
        if location.resolved is None:
            outer = () if location.inlined_at is None else self.places(location.inlined_at)
            file, line, _ = location.position
            if line and file not in self._files:
                raise PtxError(f"a .loc names file {file}, and no .file does", location.ptx_line)
            location.resolved = (SourcePlace(self._files[file], line), *outer) if line else outer
        return location.resolved


class _Statement(NamedTuple):
    text: str
    ptx_line: int
    location: Location | None
    scope: NameScope


class _Table(NamedTuple):
    """`name: .branchtargets a, b;` or `.calltargets`."""

    name: str
    items: tuple[str, ...]
    scope: NameScope
    ptx_line: int


@dataclass
class BodyReader:
    """Parses one function body into a `Function`."""

    name: str
    is_entry: bool
    parameters: tuple[ParameterDeclaration, ...]
    results: tuple[ParameterDeclaration, ...]
    tuning: declarations.Tuning
    _names: FunctionNames = field(default_factory=FunctionNames)
    _depth: int = 0
    _location: Location | None = None
    _statements: list[_Statement] = field(default_factory=list)
    _labels: dict[str, int] = field(default_factory=dict)
    _variables: list[Variable] = field(default_factory=list)
    _branch_tables: list[_Table] = field(default_factory=list)
    _call_tables: list[_Table] = field(default_factory=list)
    _prototypes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    _opcodes: dict[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._scope = NameScope(self._names, None)

    # -- first pass: statements and names --

    def read(self, cursor: Cursor, places: PlaceTable) -> None:
        """Read the body from its opening brace to after its closing brace."""
        for parameter in (*self.parameters, *self.results):
            if self._scope.declare_symbol(parameter.name) is None:
                cursor.fail(f"the parameter `{parameter.name}` is declared twice")
        cursor.expect("{", "to open the body of a function")
        places.start_function()
        while self._depth >= 0:
            character = cursor.character
            if character == ".":
                self._directive(cursor, places)
            elif character == "{":
                cursor.accept("{")
                self._depth += 1
                if self._depth > _DEEPEST_NESTING:
                    cursor.fail(f"blocks nested deeper than {_DEEPEST_NESTING}")
                self._scope = NameScope(self._names, self._scope)
            elif character == "}":
                cursor.accept("}")
                self._depth -= 1
                self._scope = self._scope.parent or self._scope
            elif character == ";":
                cursor.accept(";")
            elif not character:
                cursor.fail(f"the body of `{self.name}` has no closing brace")
            else:
                self._label_or_instruction(cursor)

    def _label_or_instruction(self, cursor: Cursor) -> None:
        start = cursor.position
        found = _LABEL_OR_INSTRUCTION.match(cursor.text, start)
        if found is None:
            cursor.fail("an instruction has no closing `;`")
        cursor.position = found.end()
        label, instruction = found.groups()
        if label is not None:
            self._label(cursor, label, start)
        else:
            self._statements.append(_Statement(instruction, cursor.line_at(start), self._location, self._scope))

    def _label(self, cursor: Cursor, name: str, start: int) -> None:
        for directive in (".branchtargets", ".calltargets", ".callprototype"):
            if cursor.text.startswith(directive, cursor.position):
                declarations.read_directive(cursor)
                self._named_table(cursor, name, directive, start)
                return
        unique = self._scope.declare_label(name)
        if unique is None:
            cursor.fail(f"the label `{name}` stands twice in one block", start)
        self._labels[unique] = len(self._statements)

    def _named_table(self, cursor: Cursor, name: str, directive: str, start: int) -> None:
        unique = self._scope.declare_symbol(name)
        if unique is None:
            cursor.fail(f"`{name}` stands twice in one block", start)
        if directive == ".callprototype":
            declarations.read_parameters(cursor)
            cursor.accept("_")
            parameters = declarations.read_parameters(cursor)
            declarations.read_tuning(cursor)
            cursor.expect(";", "after a prototype")
            self._prototypes[unique] = tuple(parameter.size_bytes for parameter in parameters)
            return
        line = cursor.line_at(start)
        items = tuple(item.strip() for item in cursor.until(";", f"`{directive}`").split(","))
        tables = self._branch_tables if directive == ".branchtargets" else self._call_tables
        tables.append(_Table(unique, items, self._scope, line))

    def _directive(self, cursor: Cursor, places: PlaceTable) -> None:
        start = cursor.position
        word = declarations.read_directive(cursor)
        if word == "loc":
            self._location = places.read_loc(cursor, start)
        elif word == "reg":
            for register in declarations.read_registers(cursor):
                if not self._scope.declare_register(register):
                    cursor.fail(f"the register `{register.name}` is declared twice in one block", start)
        elif word == "pragma":
            cursor.string("a pragma")
            cursor.expect(";", "after a pragma")
        elif word == "file":
            places.read_file(cursor)
        elif word in ("shared", "local", "param", "global", "const"):
            cursor.position = start
            self._add_variables(cursor, external=False)
        elif word == "extern":
            self._add_variables(cursor, external=True)
        elif word in ("branchtargets", "calltargets", "callprototype"):
            cursor.fail(f"`.{word}` without a label to call it by", start)
        else:
            cursor.fail(f"unknown directive `.{word}` in the body of a function", start)

    def _add_variables(self, cursor: Cursor, external: bool) -> None:
        start = cursor.position
        for variable in declarations.read_variables(cursor, external):
            unique = self._scope.declare_symbol(variable.name)
            if unique is None:
                cursor.fail(f"`{variable.name}` is declared twice in one block", start)
            self._variables.append(replace(variable, name=unique))

    # -- second pass: operands --

    def resolve(
        self,
        module_symbols: set[str],
        declared: Mapping[str, tuple[ParameterDeclaration, ...]],
        places: PlaceTable,
    ) -> Function:
        """The function, once all names of the module are known."""
        self._names.module_symbols = module_symbols
        for table in self._call_tables:
            for item in table.items:
                if item not in declared:
                    raise PtxError(f"the function `{item}` is not declared", table.ptx_line)
            # All targets have the same parameters.
            self._prototypes[table.name] = tuple(each.size_bytes for each in declared[table.items[0]])
        body = tuple(self._instruction(statement, places) for statement in self._statements)
        return Function(
            self.name,
            self.is_entry,
            self.parameters,
            self.results,
            self._names.registers,
            tuple(self._variables),
            body,
            self._labels,
            {table.name: _targets(table) for table in self._branch_tables},
            self._prototypes,
            self.tuning.max_threads,
            self.tuning.cluster,
        )

    def _instruction(self, statement: _Statement, places: PlaceTable) -> Instruction:
        text, ptx_line, location, scope = statement
        found = _INSTRUCTION.match(text)
        if found is None:
            raise PtxError("this is no instruction", ptx_line, one_line(text)[:160])
        negated, guard_name, opcode, dotted, rest = found.groups()
        full_opcode = opcode + dotted
        split = self._opcodes.get(full_opcode)
        if split is None:
            modifiers = tuple(dotted.split(".")[1:]) if dotted else ()
            split = self._opcodes[full_opcode] = (opcode, modifiers)
        try:
            guard = None if guard_name is None else scope.lookup(guard_name)
            if (guard is not None and not isinstance(guard, Register)) or (guard is None) != (guard_name is None):
                raise OperandError(f"the guard `{guard_name}` is no declared register")
            operands = _operands(rest, scope) if rest else ()
        except OperandError as error:
            kind = syntax.UnsupportedPtx if isinstance(error, UnknownOperand) else PtxError
            raise kind(str(error), ptx_line, one_line(text)[:160]) from None
        source = () if location is None else places.places(location)
        return Instruction(split[0], split[1], operands, guard, bool(negated), source, ptx_line, one_line(text))


def _operands(text: str, scope: NameScope) -> tuple[Operand, ...]:
    while scope.declares_nothing and scope.parent is not None:
        scope = scope.parent
    known = scope.operands
    operands: list[Operand] = []
    for piece in operand_text.split_operands(text):
        operand = known.get(piece)
        if operand is None:
            operand = known[piece] = operand_text.read_operand(piece, scope)
        operands.append(operand)
    return tuple(operands)


def _targets(table: _Table) -> tuple[str, ...]:
    names: list[str] = []
    for item in table.items:
        target = table.scope.lookup(item)
        if not isinstance(target, syntax.Label):
            raise PtxError(f"`{item}` is no label of this function", table.ptx_line)
        names.append(target.name)
    return tuple(names)
