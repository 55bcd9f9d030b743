"""A decorated function's kernels as one operator of torch, for calls that are traced.

Which kernel runs is decided when the operator is called, as in a plain call: by then sizes are numbers. Where none
takes the call, or something that the function reads has become another, the function itself runs inside the operator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tilewright.devices.cuda.torch_dtypes import TORCH_DTYPE
from tilewright.frontends.references import FunctionReference
from tilewright.kernel_file import Code, KernelFile, NoneApplies, Problem, Reason
from tilewright.records import Task
from tilewright.runtime import CallRefused, Operation
from tilewright.runtime.backward import Backward
from tilewright.runtime.last_resort import LastResort, NoFileTakes
from tilewright.runtime.returned import Form
from tilewright.runtime.torch_ops import operator_of

Find = Callable[[dict[str, Any]], Operation | None]  # the operation for a call, by all its arguments


class KernelFamily:
    """The finished kernels of one function that have the same op line."""

    def __init__(
        self,
        files: Sequence[KernelFile],
        tasks: Sequence[Task],
        reference: FunctionReference,
        returned: Form | None,
        find: Find,
        backward: Backward | None = None,
    ) -> None:
        """`backward`: the one of the first file, whose own reference takes what it was not made for."""
        self.files = tuple(files)
        self.op = files[0].plan.op
        self.last_resort = LastResort(self.op, reference, strict=False)
        self.names = reference.names
        self.others = tuple(reference.others.items())
        self.kinds = tuple(_Kind.of(task) for task in tasks)
        self.returned = returned
        self.backward = backward
        self._find = find
        self.torch_op = operator_of(self, lambda: Operation(self.files)).overload

    def takes(self, bound: Mapping[str, Any]) -> bool:
        """Whether a call is of a kind that some kernel was made for, whatever its sizes. Dynamo traces this."""
        for name, value in self.others:
            if isinstance(bound[name], torch.Tensor) or bound[name] != value:
                return False
        return any(kind.takes(bound) for kind in self.kinds)

    def call(self, bound: Mapping[str, Any]) -> Any:
        """The call through the operator. Dynamo traces this."""
        result = self.torch_op(*[bound[name] for name in self.names])
        if self.returned is None:
            return result
        results = (result,) if len(self.op.results) == 1 else result or ()
        return self.returned.filled(results, bound)

    def run_values(self, *values: Any) -> Any:
        """What the operator runs."""
        bound = {**dict(zip(self.names, values, strict=True)), **dict(self.others)}
        operation = self._find(bound)
        if operation is None:
            raise self._nobody("no kernel was made for these sizes, or something that the function reads", values)
        try:
            return operation.run_values(*values)
        except CallRefused as refusal:
            raise self._nobody(str(refusal), values) from None

    def _nobody(self, found: str, values: Sequence[Any]) -> NoFileTakes:
        problem = Problem(Code.DOES_NOT_APPLY, 0, 0, found, "make a kernel for this call")
        return NoFileTakes(NoneApplies((Reason(self.op.name, problem),)), values)


class _Kind:
    """What of a task's inputs is the same at every size: dtypes, numbers of dimensions, numbers."""

    def __init__(
        self, numbers: tuple[tuple[str, Any], ...], tensors: tuple[tuple[str, Any, int, bool, bool], ...]
    ) -> None:
        self.numbers = numbers
        self.tensors = tensors  # name, dtype, dimensions, whether the first leads, whether it may be absent

    @staticmethod
    def of(task: Task) -> _Kind:
        leading = {name for name, _ in task.leading}
        tensors = tuple(
            (one.name, TORCH_DTYPE[one.dtype], len(one.dimensions), one.name in leading, one.optional)
            for one in task.tensors
        )
        return _Kind(tuple((one.name, one.value) for one in task.numbers), tensors)

    def takes(self, bound: Mapping[str, Any]) -> bool:
        for name, number in self.numbers:
            if bound[name] != number:
                return False
        for name, dtype, dimensions, leads, optional in self.tensors:
            value = bound[name]
            if value is None and optional:
                continue
            if not isinstance(value, torch.Tensor) or value.dtype != dtype:
                return False
            if value.dim() != dimensions and not (leads and value.dim() >= dimensions - 1):
                return False
        return True
