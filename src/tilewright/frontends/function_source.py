"""A Python function as a source text of its own: with the imports, constants and helpers it uses, and nothing else.

The text is what a task's reference is, run in a child process that has none of this process's objects. What a function
reads of the person's own modules stands in the text, since the child does not find those modules and a change in them
must be a change of the text; the standard library, torch and installed packages are imported.
"""

from __future__ import annotations

import ast
import builtins
import dis
import importlib.util
import inspect
import math
import sys
import textwrap
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.frontends.kernel_arguments import BadArgument

_CONSTANTS = (int, float, bool, str, bytes, type(None))
_INSTALLED = ("site-packages", "dist-packages")


@dataclass(frozen=True)
class Global:
    """A name that a function uses, in the namespace where it is looked up, and what it stood for."""

    namespace: dict[str, Any]
    name: str
    value: object
    text: str  # of a list or a tuple, whose content may change in place; "" of all else

    @property
    def is_as_it_was(self) -> bool:
        return self.namespace.get(self.name) is self.value and (not self.text or repr(self.value) == self.text)


def function_source(function: Callable[..., Any]) -> str:
    """The text; raises `BadArgument` for a function that cannot stand alone."""
    return source_and_globals(function)[0]


def source_and_globals(function: Callable[..., Any]) -> tuple[str, tuple[Global, ...]]:
    """The text, and what it was made from beside the function: the text holds while all of that is as it was."""
    if not isinstance(function, types.FunctionType):
        raise BadArgument(f"{function!r} is no plain Python function; write one with `def`")
    gathered = _Gathered(function.__name__)
    gathered.take(function.__name__, function, function.__name__, function.__module__)
    parts = ["\n".join(sorted(gathered.imports)), *gathered.constants.values(), *gathered.definitions.values()]
    return "\n\n".join(part for part in parts if part) + "\n", tuple(gathered.globals)


class _Gathered:
    """The text in the making. Functions of several modules share its one namespace, so a name may have to change."""

    def __init__(self, asked_for: str) -> None:
        self.asked_for = asked_for
        self.imports: set[str] = set()
        self.constants: dict[str, str] = {}
        self.definitions: dict[str, str] = {}
        self.globals: list[Global] = []
        self._names: dict[str, object] = {}  # of the text, and what each stands for

    def look_up(self, namespace: dict[str, Any], name: str) -> object:
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
        value = _undecorated(value)
        name, new = self._claim(wanted, value, avoid)
        if not new:
            return name
        if isinstance(value, types.ModuleType):
            self.imports.add(f"import {value.__name__}" + (f" as {name}" if name != value.__name__ else ""))
        elif _is_constant(value):
            self.constants[name] = f"{name} = {_literal(value)}"
        elif isinstance(value, types.FunctionType) and (value.__module__ == home or _is_own_name(value.__module__)):
            self._take_function(name, value)
        elif (importable := _importable(value)) and not _is_own_name(importable[0]):
            module, own = importable
            self.imports.add(f"from {module} import {own}{f' as {name}' if name != own else ''}")
        else:
            kind = f"the class {value.__qualname__}" if isinstance(value, type) else f"a {type(value).__name__}"
            raise BadArgument(
                f"{self.asked_for} uses {said}, {kind} that a source text cannot hold; "
                "pass it as a parameter, or write the number or a function in its place"
            )
        return name

    def _claim(self, wanted: str, value: object, avoid: frozenset[str]) -> tuple[str, bool]:
        """The name that a value has in the text, and whether it is new there."""
        for name, known in self._names.items():
            same = known is value if not _is_constant(value) else name == wanted and repr(known) == repr(value)
            if same and name not in avoid and (name == wanted or isinstance(value, types.FunctionType)):
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

    def _take_function(self, name: str, function: types.FunctionType) -> None:
        if hasattr(function, "__wrapped__"):
            raise BadArgument(
                f"{self.asked_for} calls {name}, which a decorator has wrapped, and a source text cannot hold that; "
                "call the plain function"
            )
        if function.__closure__:
            names = ", ".join(function.__code__.co_freevars)
            raise BadArgument(f"{function.__name__} uses {names} of the function around it; pass them as parameters")
        node = _definition(function)
        self.definitions[name] = ""  # in its place before those it calls: they may call it
        node = _Rewriting(self, function, node).rewritten()
        node.name = name
        del self.definitions[name]
        self.definitions[name] = ast.unparse(node)


class _Rewriting(ast.NodeTransformer):
    """One function, with the names that what it uses has in the text."""

    def __init__(self, gathered: _Gathered, function: types.FunctionType, node: ast.FunctionDef) -> None:
        self._gathered = gathered
        self._function = function
        self._node = node
        self._own_names = frozenset(_variables(function.__code__))
        self._names: dict[str, str] = {}  # outside the function -> in the text
        self._modules: dict[str, types.ModuleType] = {}  # the person's own, by what the function calls them

    def rewritten(self) -> ast.FunctionDef:
        for name in dict.fromkeys(_globals_used(self._function, self._node)):
            self._take(name)
        renamed = {name for name, new in self._names.items() if name != new} | self._modules.keys()
        if both := sorted(renamed & self._own_names):
            raise BadArgument(
                f"{self._function.__name__} has a variable called {both[0]}, as something it uses; rename one of them"
            )
        for one in ast.walk(self._node):
            self._refuse_import(one)
        made = self.visit(self._node)
        assert isinstance(made, ast.FunctionDef)
        return made

    def _take(self, name: str) -> None:
        namespace = self._function.__globals__
        if name not in namespace:
            if hasattr(builtins, name):
                self._gathered.claim_builtin(name)
            return  # a name of its own, where it is no builtin either
        value = self._gathered.look_up(namespace, name)
        if isinstance(value, types.ModuleType) and _is_own(value):
            self._modules[name] = value
        else:
            avoid = self._own_names - {name}
            self._names[name] = self._gathered.take(name, value, name, self._function.__module__, avoid)

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in self._modules:
            raise self._whole_module(node.id)
        return ast.copy_location(ast.Name(self._names.get(node.id, node.id), node.ctx), node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        path = _path(node)
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
        while used < len(path) and isinstance(value, types.ModuleType) and _is_own(value):
            if path[used] not in vars(value):
                said = ".".join(path[: used + 1])
                raise BadArgument(f"{self._gathered.asked_for} uses {said}, and {value.__name__} has no such name")
            value = self._gathered.look_up(vars(value), path[used])
            used += 1
        said = ".".join(path[:used])
        if isinstance(value, types.ModuleType) and _is_own(value):
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
            if name == "." or (isinstance(node, ast.ImportFrom) and node.level) or _is_own_name(name):
                raise BadArgument(
                    f"{self._function.__name__} imports {name} inside it, which a source text cannot hold; "
                    "import it at the top of the file"
                )


def _path(node: ast.expr) -> list[str] | None:
    """`["consts", "EPS"]` of `consts.EPS`; None for what is not made of names alone."""
    if isinstance(node, ast.Name):
        return [node.id]
    before = _path(node.value) if isinstance(node, ast.Attribute) else None
    return [*before, node.attr] if before and isinstance(node, ast.Attribute) else None


def _definition(function: types.FunctionType) -> ast.FunctionDef:
    """The function's own `def`, without decorators, defaults kept."""
    try:
        text = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        raise BadArgument(f"the source of {function.__name__} cannot be found; write it in a file") from None
    try:
        node: ast.stmt | None = ast.parse(text).body[0]
    except SyntaxError:  # a lambda, in the middle of something
        node = None
    if not isinstance(node, ast.FunctionDef):
        raise BadArgument(f"{function.__name__} is no plain function; write it with `def`")
    node.decorator_list = []
    node.returns = None
    for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
        if ast.unparse(argument.annotation or ast.Constant("")) not in ("int", "float", "bool"):
            argument.annotation = None  # a number's type says what it is; the rest may name anything
    return node


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code of a function and of all that is defined within it."""
    yield code
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield from _codes(one)


def _variables(code: types.CodeType) -> Iterator[str]:
    for one in _codes(code):
        yield from (*one.co_varnames, *one.co_cellvars)


def _globals_used(function: types.FunctionType, node: ast.FunctionDef) -> Iterator[str]:
    """Names the function's body looks up outside it, and names in its defaults; not its own variables."""
    for code in _codes(function.__code__):
        yield from (one.argval for one in dis.get_instructions(code) if one.opname == "LOAD_GLOBAL")
    for default in (*node.args.defaults, *node.args.kw_defaults):
        if default is not None:
            yield from (one.id for one in ast.walk(default) if isinstance(one, ast.Name))


def _is_constant(value: object) -> bool:
    if isinstance(value, (tuple, list)):
        return all(_is_constant(item) for item in value)
    return type(value) in _CONSTANTS


def _literal(value: object) -> str:
    """A constant as an expression; what is infinite or no number has none of its own."""
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, tuple):
        return f"({', '.join(map(_literal, value))}{',' if len(value) == 1 else ''})"
    return f"float('{value}')" if isinstance(value, float) and not math.isfinite(value) else repr(value)


def _undecorated(value: Any) -> Any:
    """The function itself, where it was made a kernel of."""
    is_kernel = type(value).__module__.startswith("tilewright.") and hasattr(value, "__wrapped__")
    return inspect.unwrap(value) if is_kernel else value


def _is_own(module: types.ModuleType) -> bool:
    """Whether a module is the person's own: neither of Python nor of torch nor installed."""
    places = [getattr(module, "__file__", None) or "", *getattr(module, "__path__", ())]
    return _is_own_place(module.__name__, places)


def _is_own_name(name: str | None) -> bool:
    """The same of a module that may not have been imported, and of code that has none."""
    if name is None:
        return True
    if (module := sys.modules.get(name)) is not None:
        return _is_own(module)
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
    return not any(part in _INSTALLED for place in places for part in Path(place).parts)


def _importable(value: object) -> tuple[str, str] | None:
    """The module and name under which an object of a library is found: `torch`, `bfloat16`."""
    module = getattr(value, "__module__", None)
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if name is None and repr(value).startswith("torch."):  # dtypes say where they live only so
        module, _, name = repr(value).rpartition(".")
    if not module or not name or "." in name or "<" in name or module == "__main__":
        return None
    try:
        found = getattr(__import__(module, fromlist=[name]), name, None)
    except ImportError:
        return None
    return (module, name) if found is value else None
