"""The reference behind a finished kernel: a task's own text or a function, with its identity and form of answer."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import torch

from tilewright.devices.cuda.torch_dtypes import TORCH_DTYPE
from tilewright.records import Task
from tilewright.runtime.returned import Form, form_of

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

    def form(self) -> Form | None:
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


def form_of_task(function: Function, task: Task, others: Mapping[str, Any]) -> Form | None:
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
            return form_of(function(**arguments, **others), arguments, in_place)
    return None  # it runs in none of these ways, so nobody can say; a kernel's plain answer it is


def _fake_mode() -> contextlib.AbstractContextManager[Any]:
    from torch._subclasses.fake_tensor import FakeTensorMode

    mode: contextlib.AbstractContextManager[Any] = FakeTensorMode(allow_non_fake_inputs=True)
    return mode
