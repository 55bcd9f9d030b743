"""The definition of a Python function in its file, as a syntax tree, and the names that it looks up outside."""

from __future__ import annotations

import ast
import dis
import inspect
import linecache
import textwrap
import types
from collections.abc import Iterator

from tilewright.frontends.kernel_arguments import BadArgument

LAMBDA = "<lambda>"


def definition(function: types.FunctionType) -> ast.FunctionDef:
    """The function's own `def`, without decorators, defaults kept; a lambda becomes one that returns its value."""
    if function.__name__ == LAMBDA:
        return _definition_of_lambda(function)
    try:
        text = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        raise BadArgument(f"the source of {function.__name__} cannot be found; write it in a file") from None
    try:
        node: ast.stmt | None = ast.parse(text).body[0]
    except SyntaxError:  # in the middle of something
        node = None
    if not isinstance(node, ast.FunctionDef):
        raise BadArgument(f"{function.__name__} is no plain function; write it with `def`")
    node.decorator_list = []
    node.returns = None
    for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
        if ast.unparse(argument.annotation or ast.Constant("")) not in ("int", "float", "bool"):
            argument.annotation = None  # a number's type says what it is; the rest may name anything
    for star in (node.args.vararg, node.args.kwarg):
        if star is not None:
            star.annotation = None
    return node


def strip_docstring(node: ast.FunctionDef) -> None:
    """Without the pages that some packages write above a few lines."""
    first = node.body[0]
    if len(node.body) > 1 and ast.get_docstring(node) is not None:
        node.body.remove(first)


def _definition_of_lambda(function: types.FunctionType) -> ast.FunctionDef:
    """Found in its file by where its code stands: a line may hold several."""
    code = function.__code__
    lines = linecache.getlines(code.co_filename, function.__globals__)
    try:
        tree = ast.parse("".join(lines)) if lines else None
    except SyntaxError:
        tree = None
    if tree is None:
        raise BadArgument("the source of a lambda cannot be found; write it in a file, with `def`")
    places = [(line, column) for line, _, column, _ in code.co_positions() if line is not None and column is not None]
    for statement in ast.walk(tree):
        for node in ast.iter_child_nodes(statement):
            if isinstance(node, ast.Lambda) and _holds(node.body, max(places, default=(0, 0))):
                named = isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)
                name = statement.targets[0].id if named else "function"  # type: ignore[attr-defined]
                made = ast.FunctionDef(name, node.args, [ast.Return(node.body)], [], None)
                made.type_params = []  # type: ignore[attr-defined,unused-ignore]
                return ast.fix_missing_locations(made)
    raise BadArgument("a lambda cannot be found in its file; write it with `def`")


def _holds(body: ast.expr, place: tuple[int, int]) -> bool:
    """Whether code at a line and column is of this body, and of no lambda within it."""
    first, last = (body.lineno, body.col_offset), (body.end_lineno or 0, body.end_col_offset or 0)
    inner = (one for one in ast.walk(body) if isinstance(one, ast.Lambda))
    return first <= place <= last and not any(_holds(one.body, place) for one in inner)


def codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code of a function and of all that is defined within it."""
    yield code
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield from codes(one)


def variables(code: types.CodeType) -> Iterator[str]:
    for one in codes(code):
        yield from (*one.co_varnames, *one.co_cellvars)


def globals_used(function: types.FunctionType, node: ast.FunctionDef) -> Iterator[str]:
    """Names the function's body looks up outside it, and names in its defaults; not its own variables."""
    for code in codes(function.__code__):
        yield from (one.argval for one in dis.get_instructions(code) if one.opname == "LOAD_GLOBAL")
    for default in (*node.args.defaults, *node.args.kw_defaults):
        if default is not None:
            yield from (one.id for one in ast.walk(default) if isinstance(one, ast.Name))


def path_of(node: ast.expr) -> list[str] | None:
    """`["consts", "EPS"]` of `consts.EPS`; None for what is not made of names alone."""
    if isinstance(node, ast.Name):
        return [node.id]
    before = path_of(node.value) if isinstance(node, ast.Attribute) else None
    return [*before, node.attr] if before and isinstance(node, ast.Attribute) else None
