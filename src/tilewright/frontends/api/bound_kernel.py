"""A finished kernel in the place of a module, a method or a closure: it is called as they are.

The kernel takes every parameter as an input; here they are fetched anew at each call, so training, loading weights and
moving to a device are followed. What the kernel was made with and holds - an eps, a number of the function around it -
is looked at too: where that has become another, where a call gives what the kernel has no input for, or where training
mode would compute something else, the original itself runs, and a warning says so once.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from tilewright.devices.inputs import TORCH_DTYPE
from tilewright.records import Task
from tilewright.runtime import ReferenceUsed
from tilewright.runtime.returned import OutputSpec, output_spec_of
from tilewright.tasks import module_call
from tilewright.tasks.lifting.module_source import HeldValue
from tilewright.tasks.lifting.source_text import Global
from tilewright.tasks.reading.python_source import usable_name


@dataclass(frozen=True)
class Original:
    """What a kernel was made from: how it is called, and what it brings to a call."""

    function: Callable[..., Any]
    parameters: tuple[inspect.Parameter, ...]
    globals: Sequence[Global] = ()  # that a function reads and the kernel holds
    module: torch.nn.Module | None = None  # whose parameters are inputs, by their paths
    held: Sequence[HeldValue] = ()  # plain values of the module that the kernel holds
    captured: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # namespaces of tensors, by input
    trains_otherwise: bool = False


@dataclass(frozen=True)
class _Input:
    """Where an input of the kernel comes from at a call: an argument, a parameter by its path, a captured tensor."""

    argument: str = ""
    path: tuple[str, ...] = ()
    captured: str = ""


class Wiring:
    """From the arguments of a call to those of a kernel, for any module like the one that it was made from."""

    def __init__(self, task: Task, original: Original) -> None:
        self.original = original
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        self._positional = tuple(one.name for one in original.parameters if one.kind in kinds)
        self._defaults = {one.name: one.default for one in original.parameters if one.default is not one.empty}
        self._inputs = _inputs(task, original)
        self._taken = frozenset(one.argument for one in self._inputs if one.argument)
        call = module_call(task)
        self._held = {**self._defaults, **(call.held if call else {})}

    def values(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, list[Any]]:
        """The kernel's arguments for a call, or why it does not take it."""
        reason = self._changed(module)
        if reason:
            return reason, []
        if len(args) > len(self._positional):
            return "it is given more than it takes", []  # and will say so itself
        given = dict(zip(self._positional, args, strict=False))
        given.update(kwargs)
        for name, value in given.items():
            if name not in self._taken and not (name in self._held and _same(value, self._held[name])):
                return f"the kernel was made without {name}", []
        values: list[Any] = []
        for one in self._inputs:
            if one.path:
                values.append(_reached(module, one.path))
            elif one.captured:
                values.append(self.original.captured[one.captured][one.captured])
            elif one.argument in given:
                values.append(given[one.argument])
            elif one.argument in self._defaults:
                values.append(self._defaults[one.argument])
            else:
                return f"{one.argument} is not given", []
        return "", values

    def _changed(self, module: Any) -> str:
        """What has become another since the kernel was made."""
        if module is not None and module.training and self.original.trains_otherwise:
            return "it is in training mode"
        for held in self.original.held:
            if not held.is_held_by(module):
                return f"{held.name} is not what the kernel was made with"
        for one in self.original.globals:
            if not one.is_as_it_was:
                return f"{one.name} is not what the kernel was made with"
        return ""


class BoundKernel:
    """A kernel called like what it was made from. `made` is the kernel as a function of all its inputs.

    Everything else of `made` is here too: `kernel`, `task`, `entry`, `run`, `operation`.
    """

    def __init__(self, made: Any, original: Original) -> None:
        self.made = made
        self.original = original
        self.wiring = Wiring(made.task, original)
        self._said: set[str] = set()
        self.__name__ = made.task.name
        self.__doc__ = made.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        reason, values = self.wiring.values(self.original.module, args, kwargs)
        module = self.original.module
        if module is not None and (module._forward_hooks or module._forward_pre_hooks):
            reason = "it has hooks"
        if reason:
            return self._itself(reason, args, kwargs)
        return self.made(*values)

    def explain(self, *args: Any, **kwargs: Any) -> str:
        """Which file takes such a call and with what launches, or why the original itself would run."""
        reason, values = self.wiring.values(self.original.module, args, kwargs)
        return f"{self.__name__}: {reason}, so it runs itself" if reason else str(self.made.explain(*values))

    def prepare(self, *args: Any, **kwargs: Any) -> None:
        """Build ahead what calls like this one need."""
        reason, values = self.wiring.values(self.original.module, args, kwargs)
        if not reason:
            self.made.prepare(*values)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "made":
            raise AttributeError(name)
        return getattr(self.made, name)

    def __repr__(self) -> str:
        kind = "a function" if self.original.module is None else type(self.original.module).__name__
        return f"<{self.__name__} bound to {kind}; {self.made!r}>"

    def _itself(self, reason: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if reason not in self._said:
            self._said.add(reason)
            warnings.warn(f"{self.__name__}: {reason}, so it runs itself (said once)", ReferenceUsed, stacklevel=3)
        return self.original.function(*args, **kwargs)


def _inputs(task: Task, original: Original) -> tuple[_Input, ...]:
    call = module_call(task)
    state = call.state if call else {}
    arguments = call.arguments if call else {}
    return tuple(
        _Input(path=tuple(state[one.name].split(".")))
        if one.name in state
        else _Input(captured=one.name)
        if one.name in original.captured
        else _Input(argument=arguments.get(one.name) or _own_name(one.name, original))
        for one in task.inputs
    )


def _own_name(name: str, original: Original) -> str:
    """The argument's own name: one that means something in a launch plan has another there."""
    return next((one.name for one in original.parameters if usable_name(one.name) == name), name)


def _reached(module: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        module = getattr(module, name)
    return module


def _same(value: object, held: object) -> bool:
    return value is held or (type(value) is type(held) and not isinstance(value, torch.Tensor) and value == held)


# -- the reference behind a finished kernel: --

Function = Callable[..., Any]


class TaskReference:
    """The reference that a caller gave, as the task has it: a text that is run in this process when first needed."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.identity = f"task {task.hash} {hashlib.sha256(task.reference.encode()).hexdigest()}"

    def __call__(self, *values: Any) -> Any:
        return self._function(**{one.name: value for one, value in zip(self.task.inputs, values, strict=True)})

    def __reduce__(self) -> tuple[Any, ...]:
        return TaskReference, (self.task,)

    @cached_property
    def _function(self) -> Function:
        namespace: dict[str, Any] = {"__name__": f"tilewright_reference_{self.task.name}"}
        exec(compile(self.task.reference, f"<the reference of {self.task.name}>", "exec"), namespace)
        function: Function = namespace[self.task.function]
        return function

    def form(self) -> OutputSpec | None:
        """The form of what it returns."""
        return form_of_task(lambda **arguments: self._function(**arguments), self.task, {})


class FunctionReference:
    """A caller's own function, with the arguments that are none of the kernel's."""

    def __init__(self, function: Function, names: tuple[str, ...], others: Mapping[str, Any], identity: str) -> None:
        self.function = function
        self.names = names
        self.others = others
        self.identity = identity

    def __call__(self, *values: Any) -> Any:
        return self.function(**dict(zip(self.names, values, strict=True)), **self.others)


def form_of_task(function: Function, task: Task, others: Mapping[str, Any]) -> OutputSpec | None:
    """The form of what a function returns for a task's inputs.

    It is called without content: on the meta device, which costs nothing, else with fake tensors, for whose first use
    torch imports its compiler. A function that looks at values is called with ones.
    """
    in_place = [one.name for one in task.tensors if one.in_place]
    for device, mode in (("meta", contextlib.nullcontext), ("cpu", _fake_mode), ("cpu", contextlib.nullcontext)):
        with contextlib.suppress(Exception), mode(), torch.no_grad():
            arguments: dict[str, Any] = dict.fromkeys(one.name for one in task.inputs)
            arguments |= {one.name: one.value for one in task.numbers}
            for name, spec in task.specs().items():
                empty = torch.empty_strided(spec.shape, spec.stride, dtype=TORCH_DTYPE[spec.dtype], device=device)
                arguments[name] = empty.fill_(1)
            return output_spec_of(function(**arguments, **others), arguments, in_place)
    return None  # it runs in none of these ways, so nobody can say; a kernel's plain answer it is


def _fake_mode() -> contextlib.AbstractContextManager[Any]:
    from torch._subclasses.fake_tensor import FakeTensorMode

    mode: contextlib.AbstractContextManager[Any] = FakeTensorMode(allow_non_fake_inputs=True)
    return mode
