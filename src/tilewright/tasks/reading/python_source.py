"""Reads a reference's source without running it, and cuts it down to the statements that one function needs."""

from __future__ import annotations

import ast
import builtins
import keyword
import re
import symtable
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tilewright.kernel_file import words
from tilewright.reference.loading import search_line
from tilewright.tasks.errors import TaskError

_LARGEST_SOURCE_BYTES = 1 << 20
INSTALLED = ("site-packages", "dist-packages")  # folders whose packages are found anywhere
_OPAQUE = frozenset({"globals", "locals", "vars", "exec", "eval", "__import__", "setattr"})  # look names up by text
_BUILTIN = frozenset(dir(builtins))
_REGISTERED = "ops"  # torch.ops: any import may register operators
_BLANKS = re.compile(r"\n(?:[ \t]*\n){3,}")


def read_source(path: Path) -> str:
    """A Python file's text; raises `TaskError`."""
    try:
        if path.stat().st_size > _LARGEST_SOURCE_BYTES:
            raise TaskError(f"{path} is larger than a mebibyte; give a file with the reference alone")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise TaskError(f"{path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise TaskError(f"{path} is not a text in UTF-8; give a Python file") from None


@dataclass(frozen=True)
class SourceParameter:
    name: str
    annotation: str  # "" for none
    default: str | None  # the source text; None: required
    positional_only: bool = False

    @property
    def value(self) -> object:
        """The default if it is a literal, else None."""
        try:
            return None if self.default is None else ast.literal_eval(self.default)
        except (ValueError, TypeError, SyntaxError):
            return None


def parse_source(source: str, where: str) -> ast.Module:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError) as error:
        line = f" line {error.lineno}:" if isinstance(error, SyntaxError) else ""
        message = error.msg if isinstance(error, SyntaxError) else error
        raise TaskError(f"{where}:{line} this is not Python: {message}") from None


def defined_names(tree: ast.Module) -> tuple[list[str], list[str]]:
    """Top-level functions and classes."""
    functions = [node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return functions, [node.name for node in tree.body if isinstance(node, ast.ClassDef)]


def bound_names(tree: ast.Module) -> frozenset[str]:
    """All names that the top level binds: functions, classes, imports and assignments."""
    return frozenset(name for node in tree.body for name in _statement(node).gives)


def find_function(tree: ast.Module, function: str, where: str) -> ast.FunctionDef:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            return node
    functions, classes = defined_names(tree)
    raise TaskError(f"{where} defines no function {function!r}; it has {', '.join(functions + classes) or 'nothing'}")


def parameters_of(node: ast.FunctionDef, where: str) -> tuple[SourceParameter, ...]:
    """The parameters in order. `*args` and `**kwargs` are refused: an op has a fixed list of arguments."""
    given = node.args
    if given.vararg or given.kwarg:
        star = f"*{given.vararg.arg}" if given.vararg else f"**{given.kwarg.arg if given.kwarg else ''}"
        raise TaskError(f"{where}: {node.name} takes {star}; an op has named parameters, write them out")
    plain = [*given.posonlyargs, *given.args]
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(given.defaults)) + list(given.defaults)
    pairs = [*zip(plain, defaults, strict=True), *zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    return tuple(
        SourceParameter(
            one.arg,
            ast.unparse(one.annotation) if one.annotation else "",
            None if default is None else ast.unparse(default),
            one in given.posonlyargs,
        )
        for one, default in pairs
    )


def result_names(node: ast.FunctionDef) -> tuple[str, ...]:
    """The names in the function's last `return a, b`; () if it returns other expressions."""
    returns = [one for one in _own_nodes(node) if isinstance(one, ast.Return) and one.value is not None]
    if not returns:
        return ()
    value = returns[-1].value
    items = value.elts if isinstance(value, (ast.Tuple, ast.List)) else [value]
    names = tuple(one.id for one in items if isinstance(one, ast.Name))
    return names if len(names) == len(items) else ()


def _own_nodes(node: ast.FunctionDef) -> Iterable[ast.AST]:
    """The nodes of a function in source order, without those of nested functions."""
    pending: list[ast.AST] = list(node.body)
    while pending:
        one = pending.pop(0)
        yield one
        if not isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            pending = [*ast.iter_child_nodes(one), *pending]


def usable_name(name: str, taken: Iterable[str] = (), fallback: str = "op") -> str:
    """A name that is valid in launch plans and Python and not in `taken`, as close to the given one as possible."""
    cleaned = "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in name).strip("_")
    while "__" in cleaned:
        cleaned = cleaned.replace("__", "_")
    cleaned = cleaned.lstrip("0123456789_") or fallback
    taken = {*taken}
    if cleaned in words.TAKEN or keyword.iskeyword(cleaned):
        cleaned += "_in"
    candidate, number = cleaned, 2
    while candidate in taken:
        candidate, number = f"{cleaned}_{number}", number + 1
    return candidate


# -- neighbouring files --


def with_neighbours(source: str, where: str, folder: Path | None) -> tuple[str, tuple[str, ...]]:
    """The source with its folder added to sys.path if it imports neighbouring files, and a note on that.

    Relative imports become absolute imports of the file's package.
    """
    if folder is None:
        return source, ()
    place, source = _absolute_imports(source, where, folder.resolve())
    tree = parse_source(source, where)
    beside = {one.stem for one in place.glob("*.py")} | {one.parent.name for one in place.glob("*/__init__.py")}
    packages = {place.name for place in [folder.resolve(), *folder.resolve().parents]} if place != folder else set()
    used = _local_imports(tree, (beside | packages) - {Path(where).stem})
    if not used:
        return source, ()
    if any(Path(one or ".").resolve() == place for one in sys.path) and place.name in INSTALLED:
        return source, ()
    lines = source.split("\n")
    lines.insert(_first_line(tree), search_line(str(place), used))
    note = f"the reference imports {', '.join(used)} from {place}, and can be run only where they are found"
    return "\n".join(lines), (note,)


def _absolute_imports(source: str, where: str, folder: Path) -> tuple[Path, str]:
    """The root folder of a file's package, and the source with relative imports made absolute."""
    nodes = [one for one in ast.walk(parse_source(source, where)) if isinstance(one, ast.ImportFrom) and one.level]
    if not nodes:
        return folder, source
    depth = max(one.level for one in nodes)
    root = folder
    while depth > 0 or (root / "__init__.py").is_file():
        if not root.name.isidentifier():
            line = max(nodes, key=lambda one: one.level).lineno
            raise TaskError(f"{where}: line {line} is a relative import beyond the folders that can be a package")
        root, depth = root.parent, depth - 1
    package = folder.relative_to(root).parts
    lines = source.split("\n")
    for one in nodes:
        names = [*package[: len(package) - one.level + 1], *([one.module] if one.module else [])]
        relative = rf"from\s*\.[\s.]*{re.escape(one.module or '')}"
        lines[one.lineno - 1] = re.sub(relative, f"from {'.'.join(names)} ", lines[one.lineno - 1], count=1)
    return root, "\n".join(lines)


def _first_line(tree: ast.Module) -> int:
    """The number of lines up to the docstring and imports from `__future__`."""
    line = 0
    for position, node in enumerate(tree.body):
        docstring = position == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not docstring and not (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
            break
        line = node.end_lineno or line
    return line


def _local_imports(tree: ast.Module, neighbours: set[str]) -> list[str]:
    """The imported modules that are neighbouring files or folders."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name.partition(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.append(node.module.partition(".")[0])
    return sorted({name for name in found if name in neighbours})


# -- the statements that are needed --


@dataclass(frozen=True)
class _TopStatement:
    """A top-level statement with the names it binds or changes, and those it uses."""

    node: ast.stmt
    gives: frozenset[str]
    uses: frozenset[str]

    @property
    def lines(self) -> range:
        first = min([self.node.lineno, *(one.lineno for one in getattr(self.node, "decorator_list", ()))])
        return range(first, (self.node.end_lineno or first) + 1)


def needed_source(source: str, names: Iterable[str]) -> str:
    """`source` without the top-level statements that `names` cannot depend on.

    A source that is not Python, or that looks names up by text, is returned unchanged.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return source
    parts = [_statement(node) for node in tree.body]
    if any(part.uses & _OPAQUE for part in parts):
        return source
    reached = _reached(parts, set(names))
    kept = [part for position, part in enumerate(parts) if _is_kept(part, position, reached)]
    used_lines = {line for part in kept for line in part.lines}
    dropped = {line for part in parts if part not in kept and not used_lines & set(part.lines) for line in part.lines}
    return _without(source, dropped) if dropped else source


def names_in(expression: str) -> frozenset[str]:
    """The names that an expression uses."""
    return names_of(ast.parse(expression, mode="eval"))


def names_of(node: ast.AST) -> frozenset[str]:
    return frozenset(one.id for one in ast.walk(node) if isinstance(one, ast.Name))


def _statement(node: ast.stmt) -> _TopStatement:
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
    return _TopStatement(node, frozenset(gives), frozenset(uses))


def _look_up(table: symtable.SymbolTable, gives: set[str], uses: set[str]) -> None:
    """Collect the module's names that a scope and its nested scopes bind or use."""
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


def _reached(parts: list[_TopStatement], reached: set[str]) -> set[str]:
    while True:
        more = {name for part in parts if _matters(part, reached) for name in part.uses} - reached
        if not more:
            return reached
        reached |= more


def _matters(part: _TopStatement, reached: set[str]) -> bool:
    """Whether it binds a reachable name, or uses reachable names only. `if __name__ ...` never does."""
    if isinstance(part.node, ast.If) and "__name__" in names_of(part.node.test):
        return False
    if part.gives & reached:
        return True
    if part.gives or isinstance(part.node, (ast.Import, ast.ImportFrom)):
        return False
    own = part.uses - _BUILTIN
    return bool(own) and own <= reached


def _is_kept(part: _TopStatement, position: int, reached: set[str]) -> bool:
    node = part.node
    if isinstance(node, ast.ImportFrom) and (node.module == "__future__" or node.names[0].name == "*"):
        return True
    if isinstance(node, (ast.Import, ast.ImportFrom)) and _REGISTERED in reached:
        return True
    docstring = position == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return docstring or _matters(part, reached)


def _without(source: str, dropped: set[int]) -> str:
    """The text without these lines and the comments directly above them."""
    lines = source.splitlines()
    for line in sorted(dropped, reverse=True):
        above = line - 1
        while above >= 1 and above not in dropped and lines[above - 1].lstrip().startswith("#"):
            dropped = dropped | {above}
            above -= 1
    text = "\n".join(line for number, line in enumerate(lines, start=1) if number not in dropped)
    return _BLANKS.sub("\n\n\n", text).strip("\n") + "\n"
