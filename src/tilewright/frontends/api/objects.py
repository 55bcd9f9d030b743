"""A Python object as a request: a function, a lambda, a closure, a partial, a module, a method of one.

The text of a request stands alone, so the object is written down as source. What it has beside its arguments -
parameters of a module, tensors of the function around it - become inputs of the kernel, and `Original` says where they
are found at a call.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tilewright.devices.inputs import DTYPE_OF_TORCH
from tilewright.frontends.api.bound_kernel import Original
from tilewright.store import Request
from tilewright.tasks.errors import BadArgument
from tilewright.tasks.lifting.definition_source import FunctionText, function_text
from tilewright.tasks.lifting.module_source import drawn_like, module_source
from tilewright.tasks.lifting.source_text import undecorated


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
    places = {"torch.nn.functional": torch.nn.functional, "torch": torch}
    place = next((one for one, module in places.items() if getattr(module, name, None) is asked), None)
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


def _shape_text(name: str, tensor: torch.Tensor) -> str:
    dtype = DTYPE_OF_TORCH.get(tensor.dtype)
    if dtype is None:
        raise BadArgument(
            f"{name} is a tensor of {tensor.dtype}; kernel files have {', '.join(DTYPE_OF_TORCH.values())}"
        )
    return f"{'x'.join(map(str, tensor.shape))}:{dtype.value}"
