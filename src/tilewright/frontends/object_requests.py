"""A Python object as a request: a function, a lambda, a closure, a partial, a module, a method of one; or by its name.

The text of a request stands alone, so the object is written down as source. What it has beside its arguments -
parameters of a module, tensors of the function around it - become inputs of the kernel, and `Original` says where they
are found at a call.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import re
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from tilewright.devices.cuda.torch_dtypes import DTYPE_OF_TORCH
from tilewright.frontends.bound_kernel import Original
from tilewright.frontends.function_source import FunctionText, function_text
from tilewright.frontends.kernel_arguments import BadArgument
from tilewright.frontends.module_source import drawn_like, module_source
from tilewright.frontends.source_values import undecorated
from tilewright.store import Request
from tilewright.tasks.reading.python_source import INSTALLED

_NAMED = re.compile(
    r"(?P<module>[A-Za-z_]\w*(?:\.\w+)*):(?P<name>[A-Za-z_][\w.]*)(?:\((?P<arguments>.*)\))?", re.DOTALL
)


@dataclass(frozen=True)
class ObjectRequest:
    """A request, and what its kernel is bound to; None where it is called with all its inputs."""

    request: Request
    original: Original | None


def object_request(
    asked: Any, tensors: Mapping[str, str], numbers: Mapping[str, str], values: Mapping[str, str]
) -> ObjectRequest:
    """Raises `BadArgument` for what cannot be carried."""
    asked = undecorated(asked)
    if isinstance(asked, type) and issubclass(asked, torch.nn.Module):
        raise BadArgument(f"{asked.__name__} is a class; give an instance of it: {asked.__name__}(...)")
    if isinstance(asked, torch.nn.Module):
        return _of_module(asked, asked.forward, tensors, numbers, values)
    if isinstance(asked, types.MethodType):
        if not isinstance(asked.__self__, torch.nn.Module):
            said = f"{type(asked.__self__).__name__}.{asked.__name__}"
            raise BadArgument(f"{said} is a method of an object that is no nn.Module; write a function that calls it")
        return _of_module(asked.__self__, asked, tensors, numbers, values)
    if not isinstance(asked, functools.partial):
        asked = inspect.unwrap(asked)
    if _is_of_torch(asked):
        return ObjectRequest(_of_torch(asked, tensors, numbers, values), None)
    text = function_text(asked)
    given = {name: _shape_text(name, namespace[name]) for name, namespace in text.captured.items()}
    drawn = {name: drawn_like(namespace[name]) for name, namespace in text.captured.items()}
    request = Request(
        text.source,
        {**tensors, **given},
        dict(numbers),
        {**{name: one for name, one in drawn.items() if one}, **values},
        function=text.function,
    )
    return ObjectRequest(request, _original_of(asked, text) if text.captured else None)


def _original_of(asked: Callable[..., Any], text: FunctionText) -> Original:
    parameters = tuple(one for one in inspect.signature(asked).parameters.values() if one.name not in text.captured)
    return Original(asked, parameters, text.globals, captured=text.captured)


def parts_hint(module: torch.nn.Module) -> str:
    """What to do with a layer of several, where no kernel is made of the whole; "" for one that has no parts."""
    if next(module.children(), None) is None:
        return ""
    return "; of a whole layer, `tilewright find` (tilewright.find) makes kernels for the parts that are worth one"


def _of_module(
    module: torch.nn.Module,
    method: Callable[..., Any],
    tensors: Mapping[str, str],
    numbers: Mapping[str, str],
    values: Mapping[str, str],
) -> ObjectRequest:
    try:
        text = module_source(module, method.__name__)
    except BadArgument as refusal:
        raise BadArgument(f"{refusal}{parts_hint(module)}") from None
    name = type(module).__name__ if method.__name__ == "forward" else f"{type(module).__name__}_{method.__name__}"
    request = Request(
        text.source, dict(tensors), dict(numbers), {**text.values, **values}, function=name, module=text.build
    )
    parameters = tuple(inspect.signature(method).parameters.values())
    called = module if method.__name__ == "forward" else method  # with its hooks
    original = Original(called, parameters, module=module, held=text.held, trains_otherwise=text.trains_otherwise)
    return ObjectRequest(request, original)


def _is_of_torch(asked: Any) -> bool:
    named = getattr(asked, "__module__", None) or getattr(getattr(asked, "__objclass__", None), "__module__", "") or ""
    return named.partition(".")[0] == "torch" or isinstance(asked, types.BuiltinFunctionType)


def _of_torch(asked: Any, tensors: Mapping[str, str], numbers: Mapping[str, str], values: Mapping[str, str]) -> Request:
    """A function of torch's own is called, not copied: its text is about much else."""
    name = getattr(asked, "__name__", "function")
    place = next((one for one in ("torch.nn.functional", "torch") if _found_in(one, name) is asked), None)
    try:
        parameters = inspect.signature(asked).parameters.values()
    except (TypeError, ValueError):
        parameters = None
    if place is None or parameters is None:
        raise BadArgument(f"{name} does not say which arguments it takes; write a function: lambda x: {name}(x, ...)")
    known = [one for one in parameters if one.name in (*tensors, *numbers) or one.default is one.empty]
    taken = ", ".join(one.name for one in known if one.name in tensors or one.default is one.empty)
    plain = [one for one in known if one.name in numbers and one.default is not one.empty]
    held = "".join(f", {one.name}={numbers[one.name]}" for one in plain)
    called = ", ".join(f"{one.name}={one.name}" for one in known)
    text = f"import {place}\n\n\ndef {name}({taken}{held}):\n    return {place}.{name}({called})\n"
    return Request(text, dict(tensors), dict(numbers), dict(values), function=name)


def _found_in(module: str, name: str) -> object:
    return getattr(importlib.import_module(module), name, None)


def _shape_text(name: str, tensor: torch.Tensor) -> str:
    dtype = DTYPE_OF_TORCH.get(tensor.dtype)
    if dtype is None:
        raise BadArgument(
            f"{name} is a tensor of {tensor.dtype}; kernel files have {', '.join(DTYPE_OF_TORCH.values())}"
        )
    return f"{'x'.join(map(str, tensor.shape))}:{dtype.value}"


# -- by name --


def is_named_object(text: str) -> bool:
    """Whether a request is `package.module:Name`, and no words: what stands before the colon can be imported.

    Raises `BadArgument` for what cannot be words either, since a model would be paid to read it.
    """
    text = text.strip()
    place, colon, _ = text.partition(":")
    if not colon or place.endswith(".py") or Path(text).exists():
        return False
    found = _NAMED.fullmatch(text)
    if found is not None and _is_installed(found["module"].partition(".")[0]):
        return True
    if re.search(r"\s", place):
        return False
    if found is None and "(" in text and text.count("(") != text.count(")"):
        raise BadArgument(f"{text}: a bracket is not closed; write PACKAGE.MODULE:NAME(ARGUMENTS)")
    if re.search(r"\s", text.partition("(")[0]):
        return False
    raise BadArgument(f"{text}: no package called {place} can be imported; write PACKAGE.MODULE:NAME or FILE.py:NAME")


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def named_object(text: str) -> Any:
    """`package.module:Name` or `package.module:Name(64, eps=1e-5)`; arguments may use what the module has imported.

    A class without brackets is made without arguments.
    """
    found = _NAMED.fullmatch(text.strip())
    assert found is not None
    try:
        module = importlib.import_module(found["module"])
    except Exception as error:  # whatever somebody's module raises
        raise BadArgument(f"{text}: {found['module']} cannot be imported: {type(error).__name__}: {error}") from None
    value: Any = module
    for name in found["name"].split("."):
        if not hasattr(value, name):
            raise BadArgument(f"{text}: {getattr(value, '__name__', value)} has no {name}")
        value = getattr(value, name)
    if found["arguments"] is None and not isinstance(value, type):
        return value
    if not callable(value):
        raise BadArgument(f"{text}: {found['name']} is a {type(value).__name__}, which takes no arguments")
    return _called(text, module, found["name"], found["arguments"] or "")


def _called(text: str, module: types.ModuleType, name: str, arguments: str) -> Any:
    try:
        torch.manual_seed(0)
        return eval(f"{name}({arguments})", {"torch": torch, **vars(module)})
    except SyntaxError:
        raise BadArgument(f"{text}: {arguments!r} are no arguments of a call; write them as in Python") from None
    except Exception as error:  # whatever somebody's constructor raises
        raise BadArgument(f"{text} fails: {type(error).__name__}: {' '.join(str(error).split())}") from None


def installed_name(text: str) -> str:
    """`package.module:Name(...)` for a name in a file of an installed package; any other text as it is."""
    path, mark, name = text.strip().partition(".py:")
    if not mark or not Path(f"{path}.py").is_file():
        return text
    place = Path(path).expanduser().resolve()
    for folder in map(Path, sys.path):
        if folder.name in INSTALLED and place.is_relative_to(folder.resolve()):
            return f"{'.'.join(place.relative_to(folder.resolve()).parts)}:{name}"
    return text


def resolved(request: Request) -> Request:
    """A request with the source of the object it names; any other as it is."""
    text = installed_name(request.text)
    if request.function or not is_named_object(text):
        return request
    found = object_request(named_object(text), request.shapes, request.numbers, request.values).request
    return replace(
        request, text=found.text, shapes=found.shapes, values=found.values, function=found.function, module=found.module
    )
