"""Library steps: call an ATen operator and check its result against the buffer that the plan declares."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import torch

from tilewright.devices.inputs import DTYPE_OF_TORCH, TORCH_DTYPE
from tilewright.records import Buffer, DType, LibraryCall, LibraryValue, TensorArgument


class LibraryStepError(RuntimeError):
    """A library step that raised, or whose result is not what the plan declares."""

    def __init__(self, call: LibraryCall, problem: str) -> None:
        self.call = call
        self.line = call.line
        super().__init__(f"library step {call.target} = {call.function} (plan line {call.line}): {problem}")


class LibraryStep:
    """One call of an operator."""

    def __init__(self, call: LibraryCall, target: Buffer) -> None:
        self._call = call
        self._target = target
        self._operator = _operator(call)

    def run(self, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The result, checked; `tensors` are the inputs and buffers by name."""
        arguments = [_argument(value, tensors) for value in self._call.arguments]
        autocast = torch.is_autocast_enabled("cuda")
        try:
            # No gradient is recorded and no autocast changes a dtype.
            with torch.no_grad(), torch.autocast("cuda", enabled=False) if autocast else contextlib.nullcontext():
                result = self._operator(*arguments)
        except (RuntimeError, TypeError) as error:
            raise LibraryStepError(self._call, f"torch refused it: {error}") from error
        self._check(result, [value for value in arguments if isinstance(value, torch.Tensor)])
        return result  # type: ignore[no-any-return]

    def _check(self, result: object, arguments: list[torch.Tensor]) -> None:
        declared = self._target.spec
        if not isinstance(result, torch.Tensor):
            raise LibraryStepError(self._call, f"it returned {type(result).__name__}, not one tensor")
        dtype = DTYPE_OF_TORCH.get(result.dtype)
        if dtype is not declared.dtype or tuple(result.shape) != declared.shape:
            raise LibraryStepError(
                self._call,
                f"it returned {dtype or result.dtype}[{', '.join(map(str, result.shape))}], and "
                f"{self._target.name} is declared {declared}; declare what the operator returns",
            )
        if any(result.device != tensor.device for tensor in arguments):
            raise LibraryStepError(self._call, f"it returned a tensor on {result.device}, away from its arguments")
        if not declared.has_strides(tuple(result.stride())):
            raise LibraryStepError(
                self._call,
                f"it returned strides {tuple(result.stride())}, and {self._target.name} has {declared.stride}; "
                "nothing is copied behind the caller's back, so use an operator that returns this layout",
            )
        if result.data_ptr() % 16:
            raise LibraryStepError(self._call, "it returned memory that is not 16-byte aligned")
        if any(result.untyped_storage().data_ptr() == t.untyped_storage().data_ptr() for t in arguments if t.numel()):
            raise LibraryStepError(self._call, "it returned a view of its argument, not a new tensor")


def _operator(call: LibraryCall) -> Callable[..., Any]:
    found: Any = torch.ops
    for part in call.function.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            raise LibraryStepError(call, f"this torch ({torch.__version__}) has no such operator") from error
    operator: Callable[..., Any] = found
    return operator


def _argument(value: LibraryValue, tensors: Mapping[str, torch.Tensor]) -> object:
    if isinstance(value, TensorArgument):
        return tensors[value.name]
    if isinstance(value, DType):
        return TORCH_DTYPE[value]
    return list(value) if isinstance(value, tuple) else value
