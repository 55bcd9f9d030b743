"""A Python function as a source text of its own: with the imports, constants and helpers it uses, and nothing else.

The text is what a task's reference is, run in a child process that has none of this process's objects.
"""

from __future__ import annotations

import ast
import dis
import inspect
import textwrap
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tilewright.frontends.arguments import BadArgument

_CONSTANTS = (int, float, bool, str, bytes, type(None))


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
    gathered = _Gathered(function.__name__)
    gathered.take_function(function)
    parts = ["\n".join(sorted(gathered.imports)), *gathered.constants.values(), *gathered.definitions.values()]
    return "\n\n".join(part for part in parts if part) + "\n", tuple(gathered.globals)


class _Gathered:
    def __init__(self, asked_for: str) -> None:
        self.asked_for = asked_for
        self.imports: set[str] = set()
        self.constants: dict[str, str] = {}
        self.definitions: dict[str, str] = {}
        self.globals: list[Global] = []

    def take_function(self, function: Callable[..., Any]) -> None:
        if not isinstance(function, types.FunctionType):
            raise BadArgument(f"{function!r} is no plain Python function; write one with `def`")
        if function.__closure__:
            names = ", ".join(function.__code__.co_freevars)
            raise BadArgument(f"{function.__name__} uses {names} of the function around it; pass them as parameters")
        node = _definition(function)
        self.definitions[function.__name__] = ""  # in its place before those it calls: they may call it
        for name in dict.fromkeys(_globals_used(function, node)):
            value = function.__globals__.get(name)
            text = repr(value) if isinstance(value, (tuple, list)) else ""
            self.globals.append(Global(function.__globals__, name, value, text))
            self.take_global(name, function)
        del self.definitions[function.__name__]
        self.definitions[function.__name__] = ast.unparse(node)

    def take_global(self, name: str, user: types.FunctionType) -> None:
        if name in self.definitions or name in self.constants or name not in user.__globals__:
            return  # known, a builtin, or a name of its own
        value = user.__globals__[name]
        if isinstance(value, types.ModuleType):
            plain = name == value.__name__
            self.imports.add(f"import {value.__name__}" if plain else f"import {value.__name__} as {name}")
        elif _is_constant(value):
            self.constants[name] = f"{name} = {value!r}"
        elif isinstance(value, types.FunctionType) and value.__module__ == user.__module__:
            self.take_function(value)
        elif importable := _importable(value):
            module, own = importable
            self.imports.add(f"from {module} import {own}{f' as {name}' if name != own else ''}")
        else:
            raise BadArgument(
                f"{self.asked_for} uses {name}, a {type(value).__name__} that a source text cannot hold; "
                "pass it as a parameter, or write the number"
            )


def _definition(function: types.FunctionType) -> ast.FunctionDef:
    """The function's own `def`, without decorators, defaults kept."""
    try:
        text = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        raise BadArgument(f"the source of {function.__name__} cannot be found; write it in a file") from None
    node = ast.parse(text).body[0]
    if not isinstance(node, ast.FunctionDef):
        raise BadArgument(f"{function.__name__} is no plain function; write it with `def`")
    node.decorator_list = []
    node.returns = None
    for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
        if ast.unparse(argument.annotation or ast.Constant("")) not in ("int", "float", "bool"):
            argument.annotation = None  # a number's type says what it is; the rest may name anything
    return node


def _globals_used(function: types.FunctionType, node: ast.FunctionDef) -> Iterator[str]:
    """Names the function's body looks up outside it, and names in its defaults; not its own variables."""
    pending: list[types.CodeType] = [function.__code__]
    while pending:
        code = pending.pop()
        yield from (one.argval for one in dis.get_instructions(code) if one.opname == "LOAD_GLOBAL")
        pending += [one for one in code.co_consts if isinstance(one, types.CodeType)]
    for default in (*node.args.defaults, *node.args.kw_defaults):
        if default is not None:
            yield from (one.id for one in ast.walk(default) if isinstance(one, ast.Name))


def _is_constant(value: object) -> bool:
    if isinstance(value, (tuple, list)):
        return all(_is_constant(item) for item in value)
    return type(value) in _CONSTANTS


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
