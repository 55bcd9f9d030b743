"""Kernels of Python objects: the request for a function, module or method, and its kernel called in the object's place.

A module's parameters become inputs of the kernel, which are looked up at every call. Plain values
are constants with guards: where one fails, and in training mode where that matters, the object itself runs.
"""

from __future__ import annotations

import functools
import inspect
import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from tilewright.devices.inputs import DTYPE_OF_TORCH
from tilewright.records import Task
from tilewright.runtime import ReferenceUsed
from tilewright.store import Request
from tilewright.tasks import module_call
from tilewright.tasks.errors import BadArgument
from tilewright.tasks.lifting.definition_source import function_text
from tilewright.tasks.lifting.module_source import AttributeGuard, module_source
from tilewright.tasks.lifting.source_text import undecorated
from tilewright.tasks.reading.python_source import usable_name

# -- from an object to a request --


@dataclass(frozen=True)
class Original:
    """The object that a kernel was made from: how it is called, and what it adds to the arguments of a call."""

    function: Callable[..., Any]
    parameters: tuple[inspect.Parameter, ...]
    module: torch.nn.Module | None = None  # whose parameters are inputs
    constants: Sequence[AttributeGuard] = ()  # of the module
    trains_otherwise: bool = False  # training mode may compute something else


@dataclass(frozen=True)
class ObjectRequest:
    """`original` is None where the kernel is called with all its inputs."""

    request: Request
    original: Original | None


def object_request(
    asked: Any, tensors: Mapping[str, str], numbers: Mapping[str, str], values: Mapping[str, str]
) -> ObjectRequest:
    """Raises `BadArgument` for an object that cannot stand in a source text."""
    asked, given = undecorated(asked), Request("", dict(tensors), dict(numbers), dict(values))
    if isinstance(asked, type) and issubclass(asked, torch.nn.Module):
        raise BadArgument(f"{asked.__name__} is a class; give an instance of it: {asked.__name__}(...)")
    if isinstance(asked, torch.nn.Module):
        return _of_module(asked, asked.forward, given)
    if isinstance(asked, types.MethodType):
        if not isinstance(asked.__self__, torch.nn.Module):
            name = f"{type(asked.__self__).__name__}.{asked.__name__}"
            raise BadArgument(f"{name} is a method of an object that is no nn.Module; write a function that calls it")
        return _of_module(asked.__self__, asked, given)
    if isinstance(asked, functools.partial):
        raise BadArgument("a functools.partial hides its parameters; write a function or a lambda that calls it")
    asked = inspect.unwrap(asked)
    if _is_of_torch(asked):
        return ObjectRequest(_of_torch(asked, given), None)
    return _of_function(asked, given)


def parts_hint(module: torch.nn.Module) -> str:
    """What to do where no kernel can be made of a module as a whole; "" for one that has no parts."""
    if next(module.children(), None) is None:
        return ""
    return "; of a whole layer, `tilewright find` (tilewright.find) makes kernels for the parts that are worth one"


def _of_function(asked: Callable[..., Any], given: Request) -> ObjectRequest:
    text = function_text(asked)
    return ObjectRequest(replace(given, text=text.source, function=text.function), None)


def _of_module(module: torch.nn.Module, method: Callable[..., Any], given: Request) -> ObjectRequest:
    try:
        text = module_source(module, method.__name__)
    except BadArgument as refusal:
        raise BadArgument(f"{refusal}{parts_hint(module)}") from None
    is_forward, name = method.__name__ == "forward", type(module).__name__
    function, values = name if is_forward else f"{name}_{method.__name__}", {**text.values, **given.values}
    request = replace(given, text=text.source, values=values, function=function, module=text.build)
    parameters = tuple(inspect.signature(method).parameters.values())
    called = module if is_forward else method  # with its hooks
    original = Original(called, parameters, module, text.constants, trains_otherwise=text.trains_otherwise)
    return ObjectRequest(request, original)


def _is_of_torch(asked: Any) -> bool:
    named = getattr(asked, "__module__", None) or getattr(getattr(asked, "__objclass__", None), "__module__", "") or ""
    return named.partition(".")[0] == "torch" or isinstance(asked, types.BuiltinFunctionType)


def _of_torch(asked: Any, given: Request) -> Request:
    """The text calls a function of torch; a copy of its source would bring much that has no part in the result."""
    name = getattr(asked, "__name__", "function")
    places = {"torch.nn.functional": torch.nn.functional, "torch": torch}
    place = next((one for one, module in places.items() if getattr(module, name, None) is asked), None)
    try:
        parameters = inspect.signature(asked).parameters.values()
    except (TypeError, ValueError):
        parameters = None
    if place is None or parameters is None:
        raise BadArgument(f"{name} does not say which arguments it takes; write a function: lambda x: {name}(x, ...)")
    known = [one for one in parameters if one.name in (*given.shapes, *given.numbers) or one.default is one.empty]
    taken = ", ".join(one.name for one in known if one.name in given.shapes or one.default is one.empty)
    plain = [one for one in known if one.name in given.numbers and one.default is not one.empty]
    defaults = "".join(f", {one.name}={given.numbers[one.name]}" for one in plain)
    called = ", ".join(f"{one.name}={one.name}" for one in known)
    text = f"import {place}\n\n\ndef {name}({taken}{defaults}):\n    return {place}.{name}({called})\n"
    return replace(given, text=text, function=name)


def tensor_text(name: str, tensor: torch.Tensor) -> str:
    """`4096x1024:bf16`."""
    dtype = DTYPE_OF_TORCH.get(tensor.dtype)
    if dtype is None:
        raise BadArgument(f"{name} is a tensor of {tensor.dtype}; kernels have {', '.join(DTYPE_OF_TORCH.values())}")
    return f"{'x'.join(map(str, tensor.shape))}:{dtype.value}"


# -- from a call of the object to a call of the kernel --


@dataclass(frozen=True)
class _Input:
    """Where an input of the kernel comes from: an argument, or a parameter by its path."""

    argument: str = ""
    path: tuple[str, ...] = ()


class ArgumentMap:
    """Maps the arguments of a call to those of the kernel, for any module like the one it was made from."""

    def __init__(self, task: Task, original: Original) -> None:
        self.original = original
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        self._positional = tuple(one.name for one in original.parameters if one.kind in kinds)
        self._defaults = {one.name: one.default for one in original.parameters if one.default is not one.empty}
        call = module_call(task)
        self._constants = {**self._defaults, **(call.held if call else {})}
        state, arguments = (call.state, call.arguments) if call else ({}, {})
        # A name that has a meaning in a launch plan is replaced there.
        own = {usable_name(one.name): one.name for one in reversed(original.parameters)}
        self._inputs = tuple(
            _Input(path=tuple(state[one.name].split(".")))
            if one.name in state
            else _Input(argument=arguments.get(one.name) or own.get(one.name, one.name))
            for one in task.inputs
        )
        self._taken = frozenset(one.argument for one in self._inputs if one.argument)

    def values(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, list[Any]]:
        """The kernel's arguments for a call, or why it does not take the call."""
        if reason := self._failed_guard(module):
            return reason, []
        if len(args) > len(self._positional):
            return "there are more arguments than it takes", []  # the original raises the error
        given = {**dict(zip(self._positional, args, strict=False)), **kwargs}
        for name, value in given.items():
            if name not in self._taken and not (name in self._constants and _same(value, self._constants[name])):
                return f"the kernel was made without {name}", []
        given = {**self._defaults, **given}
        values: list[Any] = []
        for one in self._inputs:
            if one.path:
                values.append(functools.reduce(getattr, one.path, module))
            elif one.argument in given:
                values.append(given[one.argument])
            else:
                return f"{one.argument} is not given", []
        return "", values

    def _failed_guard(self, module: Any) -> str:
        """What has changed since the kernel was made."""
        if module is not None and module.training and self.original.trains_otherwise:
            return "it is in training mode"
        for one in self.original.constants:
            if not one.holds(module):
                return f"{one.name} has changed since the kernel was made"
        return ""


class BoundKernel:
    """A kernel that is called like the object it was made from. `made` is the kernel as a function of all its inputs.

    Everything else of `made` is here too: `kernel`, `task`, `entry`, `run`, `operation`.
    """

    def __init__(self, made: Any, original: Original) -> None:
        self.made = made
        self.original = original
        self._map = ArgumentMap(made.task, original)
        self._warned: set[str] = set()
        self.__name__ = made.task.name
        self.__doc__ = made.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module = self.original.module
        reason, values = self._map.values(module, args, kwargs)
        if module is not None and (module._forward_hooks or module._forward_pre_hooks):
            reason = "it has hooks"
        if not reason:
            return self.made(*values)
        if reason not in self._warned:
            self._warned.add(reason)
            text = f"{self.__name__}: {reason}, so the original runs (said once)"
            warnings.warn(text, ReferenceUsed, stacklevel=2)
        return self.original.function(*args, **kwargs)

    def explain(self, *args: Any, **kwargs: Any) -> str:
        """Which file takes such a call and with what launches, or why the original would run."""
        reason, values = self._map.values(self.original.module, args, kwargs)
        return f"{self.__name__}: {reason}, so the original runs" if reason else str(self.made.explain(*values))

    def prepare(self, *args: Any, **kwargs: Any) -> None:
        """Build in advance what calls like this one need."""
        reason, values = self._map.values(self.original.module, args, kwargs)
        if not reason:
            self.made.prepare(*values)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "made":
            raise AttributeError(name)
        return getattr(self.made, name)

    def __repr__(self) -> str:
        return f"<{self.__name__} bound to {type(self.original.module).__name__}; {self.made!r}>"


def _same(value: object, constant: object) -> bool:
    if value is constant:
        return True
    return type(value) is type(constant) and not isinstance(value, torch.Tensor) and value == constant
