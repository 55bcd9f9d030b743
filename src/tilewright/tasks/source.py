"""What a reference's source says of its function, read without running it."""

from __future__ import annotations

import ast
import keyword
from collections.abc import Iterable
from dataclasses import dataclass

from tilewright.kernel_file import words
from tilewright.tasks.options import TaskError


@dataclass(frozen=True)
class Literal:
    """A default that is written out: a number, a text, None, a tuple."""

    value: object


@dataclass(frozen=True)
class Computed:
    """A default that only running the source would tell."""

    text: str


@dataclass(frozen=True)
class SourceParameter:
    name: str
    annotation: str  # "" where there is none
    default: Literal | Computed | None  # None: it must be given
    positional_only: bool = False


def parse_source(source: str, where: str) -> ast.Module:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError) as error:
        line = f" line {error.lineno}:" if isinstance(error, SyntaxError) else ""
        said = error.msg if isinstance(error, SyntaxError) else error
        raise TaskError(f"{where}:{line} this is not Python: {said}") from None


def defined_names(tree: ast.Module) -> tuple[list[str], list[str]]:
    """Top-level functions and classes."""
    functions = [node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return functions, [node.name for node in tree.body if isinstance(node, ast.ClassDef)]


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
            None if default is None else _default(default),
            one in given.posonlyargs,
        )
        for one, default in pairs
    )


def _default(node: ast.expr) -> Literal | Computed:
    try:
        return Literal(ast.literal_eval(node))
    except (ValueError, TypeError, SyntaxError):
        return Computed(ast.unparse(node))


def result_names(node: ast.FunctionDef) -> tuple[str, ...]:
    """The names in the function's last `return a, b`; () where it returns something else than names."""
    returns = [one for one in _own_nodes(node) if isinstance(one, ast.Return) and one.value is not None]
    if not returns:
        return ()
    value = returns[-1].value
    items = value.elts if isinstance(value, (ast.Tuple, ast.List)) else [value]
    return (
        tuple(one.id for one in items if isinstance(one, ast.Name))
        if all(isinstance(one, ast.Name) for one in items)
        else ()
    )


def _own_nodes(node: ast.FunctionDef) -> Iterable[ast.AST]:
    """The nodes of a function without those of functions inside it, in the order of the text."""
    pending: list[ast.AST] = list(node.body)
    while pending:
        one = pending.pop(0)
        yield one
        if not isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            pending = [*ast.iter_child_nodes(one), *pending]


def usable_name(name: str, taken: Iterable[str] = (), fallback: str = "op") -> str:
    """A name that a launch plan and Python both take, and that is not among `taken`: the given one where it will do."""
    cleaned = "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in name).strip("_")
    while "__" in cleaned:
        cleaned = cleaned.replace("__", "_")
    cleaned = cleaned.lstrip("0123456789_") or fallback
    avoid = {*taken}
    if cleaned in words.TAKEN or keyword.iskeyword(cleaned):
        cleaned += "_in"
    candidate, number = cleaned, 2
    while candidate in avoid:
        candidate, number = f"{cleaned}_{number}", number + 1
    return candidate


def first_line(tree: ast.Module) -> int:
    """The lines before the first that may hold any statement: a docstring and imports from `__future__` come first."""
    line = 0
    for position, node in enumerate(tree.body):
        docstring = position == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not docstring and not (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
            break
        line = node.end_lineno or line
    return line


def local_imports(tree: ast.Module, neighbours: set[str]) -> list[str]:
    """The modules imported anywhere in a source that are files or folders beside it."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name.partition(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.append(node.module.partition(".")[0])
        elif isinstance(node, ast.ImportFrom) and node.level:
            raise TaskError(
                f"line {node.lineno} is a relative import, which a task cannot carry; write the code into the file"
            )
    return sorted({name for name in found if name in neighbours})
