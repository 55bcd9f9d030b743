"""The part of a file that one of its functions needs: so that the rest of the file is neither run, nor shown to an
author, nor part of what a task is known by."""

from __future__ import annotations

import ast
import builtins
import re
import symtable
from collections.abc import Iterable
from dataclasses import dataclass

_OPAQUE = frozenset({"globals", "locals", "vars", "exec", "eval", "__import__", "setattr"})
_BUILTIN = frozenset(dir(builtins))
_REGISTERED = "ops"  # of torch.ops: any import may have put something there
_BLANKS = re.compile(r"\n(?:[ \t]*\n){3,}")


@dataclass(frozen=True)
class _Part:
    """A top-level statement: the names it gives something to, and those it uses."""

    node: ast.stmt
    gives: frozenset[str]
    uses: frozenset[str]

    @property
    def lines(self) -> range:
        first = min([self.node.lineno, *(one.lineno for one in getattr(self.node, "decorator_list", ()))])
        return range(first, (self.node.end_lineno or first) + 1)


def needed_source(source: str, names: Iterable[str]) -> str:
    """`source` without the top-level statements that nothing reachable from `names` can depend on.

    Text that is no Python, or that looks names up by text, is returned as it is.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return source
    parts = [_part(node) for node in tree.body]
    if any(part.uses & _OPAQUE for part in parts):
        return source
    reached = _reached(parts, set(names))
    kept = [part for position, part in enumerate(parts) if _is_kept(part, position, reached)]
    used_lines = {line for part in kept for line in part.lines}
    dropped = {line for part in parts if part not in kept and not used_lines & set(part.lines) for line in part.lines}
    return _without(source, dropped) if dropped else source


def names_in(expression: str) -> frozenset[str]:
    """The names that an expression uses."""
    return frozenset(one.id for one in ast.walk(ast.parse(expression, mode="eval")) if isinstance(one, ast.Name))


def _part(node: ast.stmt) -> _Part:
    gives: set[str] = set()
    uses: set[str] = set()
    _look_up(symtable.symtable(ast.unparse(node), "part", "exec"), gives, uses)
    for one in ast.walk(node):
        if isinstance(one, (ast.Attribute, ast.Subscript)) and not isinstance(one.ctx, ast.Load):
            gives |= _root(one) & uses
        elif isinstance(one, ast.Attribute) and one.attr == _REGISTERED:
            uses.add(_REGISTERED)
        elif isinstance(one, ast.Constant) and isinstance(one.value, str) and one.value.isidentifier():
            uses.add(one.value)  # an annotation in quotes, a name for getattr
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Attribute):
        gives |= _root(node.value.func)  # `table.update(...)` changes the table
    return _Part(node, frozenset(gives), frozenset(uses))


def _look_up(table: symtable.SymbolTable, gives: set[str], uses: set[str]) -> None:
    """The names of the module that a scope and those inside it give something to or use."""
    outermost = table.get_type() == "module"
    for symbol in table.get_symbols():
        if outermost or symbol.is_global():
            if symbol.is_referenced() or (symbol.is_declared_global() and not outermost):
                uses.add(symbol.get_name())
            if symbol.is_assigned() or symbol.is_imported():
                gives.add(symbol.get_name())
    for inner in table.get_children():
        _look_up(inner, gives, uses)


def _root(node: ast.expr) -> set[str]:
    """`a` of `a.b[0].c`."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return {node.id} if isinstance(node, ast.Name) else set()


def _reached(parts: list[_Part], reached: set[str]) -> set[str]:
    while True:
        more = {name for part in parts if _matters(part, reached) for name in part.uses} - reached
        if not more:
            return reached
        reached |= more


def _matters(part: _Part, reached: set[str]) -> bool:
    """Whether it gives a reachable name something, or acts on nothing but what is reachable."""
    if _is_main(part.node):
        return False
    if part.gives & reached:
        return True
    if part.gives or isinstance(part.node, (ast.Import, ast.ImportFrom)):
        return False
    own = part.uses - _BUILTIN
    return bool(own) and own <= reached


def _is_kept(part: _Part, position: int, reached: set[str]) -> bool:
    node = part.node
    if isinstance(node, ast.ImportFrom) and (node.module == "__future__" or node.names[0].name == "*"):
        return True
    if isinstance(node, (ast.Import, ast.ImportFrom)) and _REGISTERED in reached:
        return True
    docstring = position == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return docstring or _matters(part, reached)


def _is_main(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and any(
        isinstance(one, ast.Name) and one.id == "__name__" for one in ast.walk(node.test)
    )


def _without(source: str, dropped: set[int]) -> str:
    """The text without these lines and the comments right above them."""
    lines = source.splitlines()
    for line in sorted(dropped, reverse=True):
        above = line - 1
        while above >= 1 and above not in dropped and lines[above - 1].lstrip().startswith("#"):
            dropped = dropped | {above}
            above -= 1
    text = "\n".join(line for number, line in enumerate(lines, start=1) if number not in dropped)
    return _BLANKS.sub("\n\n\n", text).strip("\n") + "\n"
