"""Source text that stands alone: imports, constants and definitions that share one namespace.

Each function that is added brings what it uses, and is rewritten where a name has to change.
"""

from __future__ import annotations

import ast
import builtins
import dis
import importlib.util
import inspect
import linecache
import math
import sys
import textwrap
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tilewright.tasks.errors import BadArgument
from tilewright.tasks.reading.python_source import INSTALLED

# -- the syntax tree of a function, and the names that it looks up --

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
            argument.annotation = None  # only the types of numbers matter; others may name anything
    for star in (node.args.vararg, node.args.kwarg):
        if star is not None:
            star.annotation = None
    return node


def strip_docstring(node: ast.FunctionDef) -> None:
    """Docstrings of packages may be far longer than the code."""
    first = node.body[0]
    if len(node.body) > 1 and ast.get_docstring(node) is not None:
        node.body.remove(first)


def _definition_of_lambda(function: types.FunctionType) -> ast.FunctionDef:
    """Found by the position of its code, since a line may have several lambdas."""
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
            if isinstance(node, ast.Lambda) and _contains(node.body, max(places, default=(0, 0))):
                named = isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)
                name = statement.targets[0].id if named else "function"  # type: ignore[attr-defined]
                made = ast.FunctionDef(name, node.args, [ast.Return(node.body)], [], None)
                made.type_params = []  # type: ignore[attr-defined,unused-ignore]
                return ast.fix_missing_locations(made)
    raise BadArgument("a lambda cannot be found in its file; write it with `def`")


def _contains(body: ast.expr, place: tuple[int, int]) -> bool:
    """Whether a line and column lies in this body, and not in a lambda within it."""
    first, last = (body.lineno, body.col_offset), (body.end_lineno or 0, body.end_col_offset or 0)
    inner = (one for one in ast.walk(body) if isinstance(one, ast.Lambda))
    return first <= place <= last and not any(_contains(one.body, place) for one in inner)


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
    """Global names in the function's body, and names in its defaults."""
    for code in codes(function.__code__):
        yield from (one.argval for one in dis.get_instructions(code) if one.opname == "LOAD_GLOBAL")
    for default in (*node.args.defaults, *node.args.kw_defaults):
        if default is not None:
            yield from (one.id for one in ast.walk(default) if isinstance(one, ast.Name))


def path_of(node: ast.expr) -> list[str] | None:
    """`["consts", "EPS"]` of `consts.EPS`; None for an expression that is not made of names alone."""
    if isinstance(node, ast.Name):
        return [node.id]
    before = path_of(node.value) if isinstance(node, ast.Attribute) else None
    return [*before, node.attr] if before and isinstance(node, ast.Attribute) else None


# -- values as source text --

_CONSTANTS = (int, float, bool, str, bytes, type(None))


def is_constant(value: object) -> bool:
    if type(value) in (tuple, list):
        assert isinstance(value, (tuple, list))
        return all(is_constant(item) for item in value)
    return type(value) in _CONSTANTS


def literal(value: object) -> str:
    """A constant as an expression; infinity and NaN have no literal."""
    if isinstance(value, list):
        return f"[{', '.join(map(literal, value))}]"
    if isinstance(value, tuple):
        return f"({', '.join(map(literal, value))}{',' if len(value) == 1 else ''})"
    return f"float('{value}')" if isinstance(value, float) and not math.isfinite(value) else repr(value)


def undecorated(value: Any) -> Any:
    """The function of a kernel made by `tilewright`, or of a layer of the `kernels` package; else the value."""
    kind = type(value)
    if kind.__module__.startswith("tilewright.") and hasattr(value, "__wrapped__"):
        return inspect.unwrap(value)
    if kind.__module__.startswith("kernels.") and isinstance(value, torch.nn.Module):
        captured = inspect.getclosurevars(kind.forward).nonlocals.values()
        functions = [one for one in captured if isinstance(one, types.FunctionType)]
        return functions[0] if len(functions) == 1 else value
    return value


def is_own(module: types.ModuleType) -> bool:
    """Whether a module is the user's own: not in the standard library, not torch, and not installed."""
    places = [getattr(module, "__file__", None) or "", *getattr(module, "__path__", ())]
    return _is_own_place(module.__name__, places)


def is_own_name(name: str | None) -> bool:
    """The same for a module that may not be imported yet; code without a module is the user's own."""
    if name is None:
        return True
    if (module := sys.modules.get(name)) is not None:
        return is_own(module)
    try:
        spec = importlib.util.find_spec(name.partition(".")[0])
    except (ImportError, ValueError):
        return False
    return spec is not None and _is_own_place(spec.name, [spec.origin or "", *(spec.submodule_search_locations or ())])


def _is_own_place(name: str, places: list[str]) -> bool:
    if name == "__main__":
        return True
    if name.partition(".")[0] in (*sys.stdlib_module_names, "torch", "tilewright"):
        return False
    return not any(part in INSTALLED for place in places for part in Path(place).parts)


def importable(value: object) -> tuple[str, str] | None:
    """The module and name under which an object of a library is found: `torch`, `bfloat16`."""
    module = getattr(value, "__module__", None)
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if name is None and repr(value).startswith("torch."):  # a dtype has no other name
        module, _, name = repr(value).rpartition(".")
    own = getattr(value, "__name__", None)
    if isinstance(own, str) and getattr(torch, own, None) is value:  # the __qualname__ of torch.tanh names a class
        module, name = "torch", own
    if not isinstance(module, str) or not isinstance(name, str) or module == "__main__" or "." in name or "<" in name:
        return None
    try:
        found = getattr(__import__(module, fromlist=[name]), name, None)
    except ImportError:
        return None
    return (module, name) if found is value else None


_CLASS = "__class__"  # the closure variable that `super()` reads


@dataclass(frozen=True)
class GlobalGuard:
    """A global or closure variable that a function uses: the text is valid while the variable has this value."""

    namespace: Mapping[str, Any]
    name: str
    value: object
    text: str  # the repr of a list or tuple, which may change in place; "" of any other value

    def holds(self) -> bool:
        return self.namespace.get(self.name) is self.value and (not self.text or repr(self.value) == self.text)


class ClosureCells(Mapping[str, Any]):
    """The closure variables of a function, as a namespace with their current values."""

    def __init__(self, function: types.FunctionType) -> None:
        self._cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        self._cells.pop(_CLASS, None)

    def __getitem__(self, name: str) -> Any:
        try:
            return self._cells[name].cell_contents
        except ValueError:  # not assigned yet
            raise KeyError(name) from None

    def __iter__(self) -> Any:
        return iter(self._cells)

    def __len__(self) -> int:
        return len(self._cells)


class SourceBuilder:
    """Builds the text. Functions of several modules share its namespace, so a name may have to change."""

    def __init__(self, asked_for: str) -> None:
        self.asked_for = asked_for
        self.imports: set[str] = set()
        self.constants: dict[str, str] = {}
        self.definitions: dict[str, str] = {}
        self.globals: list[GlobalGuard] = []
        self.attributes: set[str] = set()  # every attribute name that the text may read
        self._names: dict[str, object] = {}  # of the text, and the value of each

    def text(self, last: tuple[str, ...] = ()) -> str:
        parts = ["\n".join(sorted(self.imports)), *self.constants.values(), *self.definitions.values(), *last]
        return "\n\n".join(part for part in parts if part) + "\n"

    def look_up(self, namespace: Mapping[str, Any], name: str) -> object:
        """The value of a name, which becomes a guard of the text."""
        value = namespace.get(name)
        text = repr(value) if isinstance(value, (tuple, list)) else ""
        self.globals.append(GlobalGuard(namespace, name, value, text))
        return value

    def add(self, wanted: str, value: Any, shown: str, home: str, avoid: frozenset[str] = frozenset()) -> str:
        """Add a value to the text, under the name `wanted` if that is free, and return its name.

        `shown` is its expression in the function that uses it, for messages; `home` is the module of that function;
        `avoid` are names that have another meaning there.
        """
        value = undecorated(value)
        name, new = self.name_for(wanted, value, avoid)
        if not new:
            return name
        found = importable(value)
        installed = found is not None and not is_own_name(found[0])
        if isinstance(value, types.ModuleType):
            self.imports.add(f"import {value.__name__}" + (f" as {name}" if name != value.__name__ else ""))
        elif is_constant(value):
            self.constants[name] = f"{name} = {literal(value)}"
        elif isinstance(value, types.FunctionType) and self._is_inlined(value, home, name, installed):
            pass
        elif found is not None and installed:
            module, own = found
            self.imports.add(f"from {module} import {own}{f' as {name}' if name != own else ''}")
        else:
            kind = f"the class {value.__qualname__}" if isinstance(value, type) else f"a {type(value).__name__}"
            raise BadArgument(
                f"{self.asked_for} uses {shown}, {kind} that a source text cannot hold; "
                "pass it as a parameter, or write the number or a function in its place"
            )
        return name

    def name_for(self, wanted: str, value: object, avoid: frozenset[str] = frozenset()) -> tuple[str, bool]:
        """The name of a value in the text, and whether it is new."""
        for name, known in self._names.items():
            same = known is value if not is_constant(value) else name == wanted and repr(known) == repr(value)
            shared = name == wanted or isinstance(value, (types.FunctionType, type))
            if same and name not in avoid and shared:
                return name, False
        name, number = wanted, 2
        while name in self._names or name in avoid:
            name, number = f"{wanted}_{number}", number + 1
        self._names[name] = value
        return name, True

    def reserve_builtin(self, name: str) -> None:
        if self._names.setdefault(name, getattr(builtins, name)) is not getattr(builtins, name):
            raise BadArgument(
                f"{self.asked_for} and what it calls mean different things by {name}; give one of them another name"
            )

    def define(self, wanted: str, text: str) -> None:
        """Add a helper function; `text` defines the name `wanted`."""
        if self._names.setdefault(wanted, text) is not text and self._names[wanted] != text:
            raise BadArgument(f"{self.asked_for} uses something called {wanted}; give it another name")
        self.definitions[wanted] = text

    def _is_inlined(self, function: types.FunctionType, home: str, name: str, installed: bool) -> bool:
        """Add the definition of a function that is the user's own or of the same package as its caller.

        False for a function of another package, and for one that cannot stand in a text and can be imported instead.
        """
        package = home.partition(".")[0]
        near = package not in ("", "torch") and function.__module__.partition(".")[0] == package
        if function.__module__ != home and not near and not is_own_name(function.__module__):
            return False
        before = ({*self.imports}, {**self.constants}, {**self.definitions}, {**self._names}, {*self.attributes})
        try:
            self._add_function(name, function)
        except BadArgument:
            if not installed:
                raise
            self.imports, self.constants, self.definitions, self._names, self.attributes = before
            return False
        return True

    def _add_function(self, name: str, function: types.FunctionType) -> None:
        if hasattr(function, "__wrapped__"):
            raise BadArgument(
                f"{self.asked_for} calls {name}, which a decorator has wrapped, and a source text cannot hold that; "
                "call the plain function"
            )
        node = definition(function)
        if not is_own_name(function.__module__):
            strip_docstring(node)
        self.definitions[name] = ""  # reserved before the functions it calls, which may call it
        node = NameRewriter(self, function, node).rewritten()
        node.name = name
        del self.definitions[name]
        self.definitions[name] = ast.unparse(node)


class NameRewriter(ast.NodeTransformer):
    """Rewrites one function to use the names of the text."""

    def __init__(self, builder: SourceBuilder, function: types.FunctionType, node: ast.FunctionDef) -> None:
        self._builder = builder
        self._function = function
        self._node = node
        self._own_names = frozenset(variables(function.__code__))
        self._cells = ClosureCells(function)
        self._names: dict[str, str] = {}  # outside the function -> in the text
        self._modules: dict[str, types.ModuleType] = {}  # the user's own, by their names in the function

    def rewritten(self) -> ast.FunctionDef:
        for name in dict.fromkeys(globals_used(self._function, self._node)):
            self._add(name, self._function.__globals__)
        for name in self._cells:
            self._add(name, self._cells)
        renamed = {name for name, new in self._names.items() if name != new} | self._modules.keys()
        if both := sorted(renamed & self._own_names):
            raise BadArgument(
                f"{self._function.__name__} has a variable called {both[0]}, as something it uses; rename one of them"
            )
        for one in ast.walk(self._node):
            self._refuse_import(one)
            self._builder.attributes |= _attribute(one)
        made = self.visit(self._node)
        assert isinstance(made, ast.FunctionDef)
        return made

    def _add(self, name: str, namespace: Mapping[str, Any]) -> None:
        if name not in namespace:
            if namespace is self._cells:
                raise BadArgument(
                    f"{self._function.__name__} uses {name} of the enclosing function, which has no such variable"
                )
            if hasattr(builtins, name):
                self._builder.reserve_builtin(name)
            return  # neither a global nor a builtin: the function raises as it did
        if namespace is self._cells and isinstance(namespace[name], torch.Tensor):
            raise BadArgument(
                f"{self._function.__name__} uses the tensor {name} of the enclosing function; pass it as a parameter"
            )
        value = self._builder.look_up(namespace, name)
        if isinstance(value, types.ModuleType) and is_own(value):
            self._modules[name] = value
        else:
            avoid = self._own_names - {name}
            self._names[name] = self._builder.add(name, value, name, self._function.__module__, avoid)

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in self._modules:
            raise self._whole_module(node.id)
        return ast.copy_location(ast.Name(self._names.get(node.id, node.id), node.ctx), node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        path = path_of(node)
        if path is None or path[0] not in self._modules:
            self.generic_visit(node)
            return node
        if not isinstance(node.ctx, ast.Load):
            raise BadArgument(f"{self._builder.asked_for} changes {'.'.join(path)}; a reference changes nothing")
        return ast.copy_location(self._replacement(path), node)

    def _replacement(self, path: list[str]) -> ast.expr:
        """The expression in the text for `consts.EPS` or `package.consts.EPS`; further attributes are unchanged."""
        value: Any = self._modules[path[0]]
        used = 1
        while used < len(path) and isinstance(value, types.ModuleType) and is_own(value):
            if path[used] not in vars(value):
                shown = ".".join(path[: used + 1])
                raise BadArgument(f"{self._builder.asked_for} uses {shown}, and {value.__name__} has no such name")
            value = self._builder.look_up(vars(value), path[used])
            used += 1
        shown = ".".join(path[:used])
        if isinstance(value, types.ModuleType) and is_own(value):
            raise self._whole_module(shown)
        home, avoid = self._function.__module__, self._own_names
        made: ast.expr = ast.Name(self._builder.add("_".join(path[:used]), value, shown, home, avoid), ast.Load())
        for name in path[used:]:
            made = ast.Attribute(made, name, ast.Load())
        return made

    def _whole_module(self, shown: str) -> BadArgument:
        return BadArgument(
            f"{self._builder.asked_for} uses the module {shown} as a whole, which a source text cannot hold; "
            f"write {shown}.NAME for what it needs"
        )

    def _refuse_import(self, node: ast.AST) -> None:
        """An import within the function runs in the child, which does not find the person's own modules."""
        names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or "."] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            if name == "." or (isinstance(node, ast.ImportFrom) and node.level) or is_own_name(name):
                raise BadArgument(
                    f"{self._function.__name__} imports {name} inside it, which a source text cannot hold; "
                    "import it at the top of the file"
                )


def _attribute(node: ast.AST) -> set[str]:
    """The attributes that an expression may read: by `.name`, or by a string in `getattr`."""
    if isinstance(node, ast.Attribute):
        return {node.attr}
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
        return {node.value}
    return set()
