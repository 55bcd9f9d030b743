"""A source text in the making: imports, constants and definitions under one set of names.

Whatever is put into it brings along what it uses, and is rewritten where a name has to be another in the text.
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

# -- function definitions --

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


# -- values --

_CONSTANTS = (int, float, bool, str, bytes, type(None))


def is_constant(value: object) -> bool:
    if type(value) in (tuple, list):
        assert isinstance(value, (tuple, list))
        return all(is_constant(item) for item in value)
    return type(value) in _CONSTANTS


def literal(value: object) -> str:
    """A constant as an expression; what is infinite or no number has none of its own."""
    if isinstance(value, list):
        return f"[{', '.join(map(literal, value))}]"
    if isinstance(value, tuple):
        return f"({', '.join(map(literal, value))}{',' if len(value) == 1 else ''})"
    return f"float('{value}')" if isinstance(value, float) and not math.isfinite(value) else repr(value)


def undecorated(value: Any) -> Any:
    """The function itself, where a kernel was made of it, or where the `kernels` package made it a layer."""
    kind = type(value)
    if kind.__module__.startswith("tilewright.") and hasattr(value, "__wrapped__"):
        return inspect.unwrap(value)
    if kind.__module__.startswith("kernels.") and isinstance(value, torch.nn.Module):
        held = inspect.getclosurevars(kind.forward).nonlocals.values()
        functions = [one for one in held if isinstance(one, types.FunctionType)]
        return functions[0] if len(functions) == 1 else value
    return value


def is_own(module: types.ModuleType) -> bool:
    """Whether a module is the person's own: neither of Python nor of torch nor installed."""
    places = [getattr(module, "__file__", None) or "", *getattr(module, "__path__", ())]
    return _is_own_place(module.__name__, places)


def is_own_name(name: str | None) -> bool:
    """The same of a module that may not have been imported, and of code that has none."""
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
    if name is None and repr(value).startswith("torch."):  # dtypes say where they live only so
        module, _, name = repr(value).rpartition(".")
    own = getattr(value, "__name__", None)
    if isinstance(own, str) and getattr(torch, own, None) is value:  # torch.tanh says that it lives in a class
        module, name = "torch", own
    if not isinstance(module, str) or not isinstance(name, str) or module == "__main__" or "." in name or "<" in name:
        return None
    try:
        found = getattr(__import__(module, fromlist=[name]), name, None)
    except ImportError:
        return None
    return (module, name) if found is value else None


_CLASS = "__class__"  # what `super()` reads of the class around a method


@dataclass(frozen=True)
class Global:
    """A name that a function uses, in the namespace where it is looked up, and what it stood for."""

    namespace: Mapping[str, Any]
    name: str
    value: object
    text: str  # of a list or a tuple, whose content may change in place; "" of all else

    @property
    def is_as_it_was(self) -> bool:
        return self.namespace.get(self.name) is self.value and (not self.text or repr(self.value) == self.text)


class Cells(Mapping[str, Any]):
    """What a function has from the one around it, as a namespace that shows its present content."""

    def __init__(self, function: types.FunctionType) -> None:
        self._cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        self._cells.pop(_CLASS, None)

    def __getitem__(self, name: str) -> Any:
        try:
            return self._cells[name].cell_contents
        except ValueError:  # not given anything yet
            raise KeyError(name) from None

    def __iter__(self) -> Any:
        return iter(self._cells)

    def __len__(self) -> int:
        return len(self._cells)


class Gathered:
    """The text in the making. Functions of several modules share its one namespace, so a name may have to change."""

    def __init__(self, asked_for: str) -> None:
        self.asked_for = asked_for
        self.imports: set[str] = set()
        self.constants: dict[str, str] = {}
        self.definitions: dict[str, str] = {}
        self.globals: list[Global] = []
        self.captured: dict[str, Cells] = {}  # tensors from around the function asked for: further parameters of it
        self.attributes: set[str] = set()  # that anything in the text may read of an object
        self._names: dict[str, object] = {}  # of the text, and what each stands for

    def text(self, last: tuple[str, ...] = ()) -> str:
        parts = ["\n".join(sorted(self.imports)), *self.constants.values(), *self.definitions.values(), *last]
        return "\n\n".join(part for part in parts if part) + "\n"

    def look_up(self, namespace: Mapping[str, Any], name: str) -> object:
        """What a name stands for; noted, since the text holds only while it stands for that."""
        value = namespace.get(name)
        text = repr(value) if isinstance(value, (tuple, list)) else ""
        self.globals.append(Global(namespace, name, value, text))
        return value

    def take(self, wanted: str, value: Any, said: str, home: str, avoid: frozenset[str] = frozenset()) -> str:
        """Put a value into the text; the name it has there.

        `said`: how the function that uses it says it, and `home` is that function's module; `avoid`: names that mean
        something else there.
        """
        value = undecorated(value)
        name, new = self.claim(wanted, value, avoid)
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
                f"{self.asked_for} uses {said}, {kind} that a source text cannot hold; "
                "pass it as a parameter, or write the number or a function in its place"
            )
        return name

    def claim(self, wanted: str, value: object, avoid: frozenset[str] = frozenset()) -> tuple[str, bool]:
        """The name that a value has in the text, and whether it is new there."""
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

    def claim_builtin(self, name: str) -> None:
        if self._names.setdefault(name, getattr(builtins, name)) is not getattr(builtins, name):
            raise BadArgument(
                f"{self.asked_for} and what it calls mean different things by {name}; give one of them another name"
            )

    def define(self, wanted: str, text: str) -> None:
        """A helper of the text's own; `text` defines `wanted`."""
        if self._names.setdefault(wanted, text) is not text and self._names[wanted] != text:
            raise BadArgument(f"{self.asked_for} uses something called {wanted}; give it another name")
        self.definitions[wanted] = text

    def _is_inlined(self, function: types.FunctionType, home: str, name: str, installed: bool) -> bool:
        """Put a function's own text in, where it belongs to the person or to the package that is looked at.

        False where it is another package's, or cannot stand in a text and can be imported instead.
        """
        package = home.partition(".")[0]
        near = package not in ("", "torch") and function.__module__.partition(".")[0] == package
        if function.__module__ != home and not near and not is_own_name(function.__module__):
            return False
        before = ({*self.imports}, {**self.constants}, {**self.definitions}, {**self._names}, {*self.attributes})
        try:
            self._take_function(name, function)
        except BadArgument:
            if not installed:
                raise
            self.imports, self.constants, self.definitions, self._names, self.attributes = before
            return False
        return True

    def _take_function(self, name: str, function: types.FunctionType) -> None:
        if hasattr(function, "__wrapped__"):
            raise BadArgument(
                f"{self.asked_for} calls {name}, which a decorator has wrapped, and a source text cannot hold that; "
                "call the plain function"
            )
        node = definition(function)
        if not is_own_name(function.__module__):
            strip_docstring(node)
        self.definitions[name] = ""  # in its place before those it calls: they may call it
        node = Rewriting(self, function, node).rewritten()
        node.name = name
        del self.definitions[name]
        self.definitions[name] = ast.unparse(node)


class Rewriting(ast.NodeTransformer):
    """One function, with the names that what it uses has in the text."""

    def __init__(self, gathered: Gathered, function: types.FunctionType, node: ast.FunctionDef) -> None:
        self._gathered = gathered
        self._function = function
        self._node = node
        self._own_names = frozenset(variables(function.__code__))
        self._cells = Cells(function)
        self._names: dict[str, str] = {}  # outside the function -> in the text
        self._modules: dict[str, types.ModuleType] = {}  # the person's own, by what the function calls them

    def rewritten(self) -> ast.FunctionDef:
        for name in dict.fromkeys(globals_used(self._function, self._node)):
            self._take(name, self._function.__globals__)
        for name in self._cells:
            self._take(name, self._cells)
        renamed = {name for name, new in self._names.items() if name != new} | self._modules.keys()
        if both := sorted(renamed & self._own_names):
            raise BadArgument(
                f"{self._function.__name__} has a variable called {both[0]}, as something it uses; rename one of them"
            )
        for one in ast.walk(self._node):
            self._refuse_import(one)
            self._gathered.attributes |= _attribute(one)
        made = self.visit(self._node)
        assert isinstance(made, ast.FunctionDef)
        return made

    def _take(self, name: str, namespace: Mapping[str, Any]) -> None:
        if name not in namespace:
            if namespace is self._cells:
                raise BadArgument(f"{self._function.__name__} uses {name} of the function around it, which has none")
            if hasattr(builtins, name):
                self._gathered.claim_builtin(name)
            return  # a name of its own, where it is no builtin either
        if namespace is self._cells and isinstance(namespace[name], torch.Tensor):
            self._capture(name)
            return
        value = self._gathered.look_up(namespace, name)
        if isinstance(value, types.ModuleType) and is_own(value):
            self._modules[name] = value
        else:
            avoid = self._own_names - {name}
            self._names[name] = self._gathered.take(name, value, name, self._function.__module__, avoid)

    def _capture(self, name: str) -> None:
        """A tensor from around the function becomes a parameter of it."""
        if self._function.__name__ != self._gathered.asked_for:
            raise BadArgument(
                f"{self._function.__name__}, which {self._gathered.asked_for} calls, uses the tensor {name} of the "
                "function around it; pass it as a parameter"
            )
        self._gathered.captured[name] = self._cells
        self._node.args.kwonlyargs.append(ast.arg(name))
        self._node.args.kw_defaults.append(None)

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
            raise BadArgument(f"{self._gathered.asked_for} changes {'.'.join(path)}; a reference changes nothing")
        return ast.copy_location(self._taken(path), node)

    def _taken(self, path: list[str]) -> ast.expr:
        """What stands for `consts.EPS` or `package.consts.EPS` in the text, and behind it what follows unchanged."""
        value: Any = self._modules[path[0]]
        used = 1
        while used < len(path) and isinstance(value, types.ModuleType) and is_own(value):
            if path[used] not in vars(value):
                said = ".".join(path[: used + 1])
                raise BadArgument(f"{self._gathered.asked_for} uses {said}, and {value.__name__} has no such name")
            value = self._gathered.look_up(vars(value), path[used])
            used += 1
        said = ".".join(path[:used])
        if isinstance(value, types.ModuleType) and is_own(value):
            raise self._whole_module(said)
        home, avoid = self._function.__module__, self._own_names
        made: ast.expr = ast.Name(self._gathered.take("_".join(path[:used]), value, said, home, avoid), ast.Load())
        for name in path[used:]:
            made = ast.Attribute(made, name, ast.Load())
        return made

    def _whole_module(self, said: str) -> BadArgument:
        return BadArgument(
            f"{self._gathered.asked_for} uses the module {said} as a whole, which a source text cannot hold; "
            f"write {said}.NAME for what it needs"
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
    """What an expression may read of an object: by `.name`, or by a text in `getattr`."""
    if isinstance(node, ast.Attribute):
        return {node.attr}
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
        return {node.value}
    return set()
