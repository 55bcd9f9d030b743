"""Which values a source text can hold or import, and how it says them."""

from __future__ import annotations

import importlib.util
import inspect
import math
import sys
import types
from pathlib import Path
from typing import Any

import torch

from tilewright.tasks.reading.python_source import INSTALLED

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
