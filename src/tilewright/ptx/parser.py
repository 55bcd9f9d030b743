"""Parses PTX text into a `Module` with the source line of each instruction.

Accepts NVRTC's output and inline assembly. Opcodes are checked by the lowering, not here.
"""

from __future__ import annotations

import re

from tilewright.ptx import declarations
from tilewright.ptx.body import BodyReader, PlaceTable
from tilewright.ptx.lexer import Cursor
from tilewright.ptx.syntax import Function, Module, ParameterDeclaration, PtxError, Variable

_VERSION = re.compile(r"(\d{1,3})\.(\d{1,3})(?![\w.])", re.ASCII)
_TARGET = re.compile(r"sm_\d+[af]?(?![\w$])", re.ASCII)
_LINKAGES = (".visible", ".extern", ".weak", ".common")
_VARIABLE_SPACES = ("global", "const", "shared", "local", "param")


def parse_ptx(text: str) -> Module:
    """Parse a module; raises `PtxError` with the line."""
    return _ModuleReader(text).read()


class _ModuleReader:
    def __init__(self, text: str) -> None:
        self._cursor = Cursor(text)
        self._version: tuple[int, int] | None = None
        self._target = ""
        self._places = PlaceTable()
        self._variables: dict[str, Variable] = {}
        self._holding_addresses: list[tuple[Variable, int]] = []
        self._declared: dict[str, tuple[ParameterDeclaration, ...]] = {}
        self._bodies: dict[str, BodyReader] = {}
        self._aliases: list[tuple[str, str, int]] = []

    def read(self) -> Module:
        cursor = self._cursor
        while not cursor.at_end:
            variable = declarations.read_plain_global(cursor)
            if variable is not None:
                self._add_variable(variable)
            elif cursor.character == ".":
                self._directive()
            elif not cursor.accept(";"):
                cursor.fail("expected a directive")
        if self._version is None or not self._target:
            raise PtxError("no .version and .target: this is not a PTX module")
        return self._finish(self._version)

    def _finish(self, version: tuple[int, int]) -> Module:
        symbols = {*self._variables, *self._declared, *(alias for alias, _, _ in self._aliases)}
        functions: dict[str, Function] = {}
        for name, body in self._bodies.items():
            functions[name] = body.resolve(symbols, self._declared, self._places)
        for alias, name, position in self._aliases:
            if name not in functions or alias in functions:
                self._cursor.fail(f"`{alias}` cannot stand for `{name}`: one is defined, or the other is not", position)
            functions[alias] = functions[name]
        externals = tuple(name for name in self._declared if name not in functions)
        local = {variable.name for function in functions.values() for variable in function.variables}
        for variable, position in self._holding_addresses:
            for relocation in variable.relocations:
                if relocation.symbol not in symbols and relocation.symbol not in local:
                    self._cursor.fail(f"`{relocation.symbol}` is not declared", position)
        return Module(version, self._target, functions, externals, tuple(self._variables.values()))

    def _directive(self) -> None:
        cursor = self._cursor
        start = cursor.position
        word = declarations.read_directive(cursor)
        if word == "version":
            version = cursor.match(_VERSION)
            if version is None:
                cursor.fail("expected a version such as 9.0")
            self._version = (int(version[1]), int(version[2]))
        elif word == "target":
            self._read_target()
        elif word == "address_size":
            if cursor.integer("the address size") != 64:
                cursor.fail_unsupported("only 64-bit addresses are known", start)
        elif word == "file":
            self._places.read_file(cursor)
        elif word == "section":
            cursor.until("{", "a .section")
            cursor.until("}", "a .section")
        elif word == "pragma":
            cursor.string("a pragma")
            cursor.expect(";", "after a pragma")
        elif word == "alias":
            alias = cursor.identifier("the name of an alias")
            cursor.expect(",", "between an alias and its function")
            name = cursor.identifier("the name of a function")
            cursor.expect(";", "after an alias")
            self._aliases.append((alias, name, start))
        elif word == "loc":  # outside functions it has no effect
            self._places.read_loc(cursor, start)
        else:
            cursor.position = start
            self._linked()

    def _read_target(self) -> None:
        cursor = self._cursor
        target = cursor.match(_TARGET)
        if target is None:
            cursor.fail("expected a target such as sm_80")
        self._target = target[0]
        while cursor.accept(","):
            option = cursor.identifier("an option of the target")
            if option not in ("texmode_unified", "texmode_independent", "debug"):
                cursor.fail_unsupported(f"the option `{option}` of the target")

    def _linked(self) -> None:
        """A variable or function, with optional linkage directives."""
        cursor = self._cursor
        external = False
        while any(cursor.text.startswith(linkage, cursor.position) for linkage in _LINKAGES):
            external |= declarations.read_directive(cursor) == "extern"
        start = cursor.position
        word = declarations.read_directive(cursor)
        if word in ("entry", "func"):
            self._function(word == "entry", start)
        elif word in _VARIABLE_SPACES:
            cursor.position = start
            for variable in declarations.read_variables(cursor, external):
                self._add_variable(variable)
                if variable.relocations:
                    self._holding_addresses.append((variable, start))
        else:
            cursor.fail(f"unknown directive `.{word}`", start)

    def _add_variable(self, variable: Variable) -> None:
        earlier = self._variables.get(variable.name)
        if earlier is not None and not (earlier.external or variable.external):
            self._cursor.fail(f"`{variable.name}` is declared twice")
        if earlier is None or earlier.external:
            self._variables[variable.name] = variable

    def _function(self, is_entry: bool, start: int) -> None:
        cursor = self._cursor
        tuning = _joined(declarations.Tuning(), declarations.read_tuning(cursor))  # `.func .attribute(...) name`
        results = () if is_entry else declarations.read_parameters(cursor)
        name = cursor.identifier("the name of a function")
        parameters = declarations.read_parameters(cursor)
        tuning = _joined(tuning, declarations.read_tuning(cursor))
        if not cursor.accept(";"):
            if name in self._bodies:
                cursor.fail(f"`{name}` is defined twice", start)
            body = BodyReader(name, is_entry, parameters, results, tuning)
            body.read(cursor, self._places)
            self._bodies[name] = body
        self._declared[name] = parameters


def _joined(first: declarations.Tuning, second: declarations.Tuning) -> declarations.Tuning:
    return declarations.Tuning(second.max_threads or first.max_threads, second.cluster or first.cluster)
