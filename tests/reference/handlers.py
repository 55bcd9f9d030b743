"""A handler for tests: the reference's own results for given tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tilewright.records import ReturnedTensor, Task, TensorSpec


@dataclass(frozen=True)
class EvaluationRequest:
    task: Task
    tensors: tuple[ReturnedTensor, ...]  # the inputs, with their content


@dataclass(frozen=True)
class EvaluationAnswer:
    tensors: tuple[ReturnedTensor, ...]


def evaluate(function: Callable[..., Any], request: EvaluationRequest) -> EvaluationAnswer:
    from tilewright.reference.torch_calls import call_reference, dtype_of, to_bytes, to_torch

    given = {one.name: to_torch(one.spec, one.content) for one in request.tensors}
    results = call_reference(function, request.task, given)
    return EvaluationAnswer(
        tuple(
            ReturnedTensor("y", TensorSpec.contiguous(dtype_of(one), tuple(one.shape)), to_bytes(one))
            for one in results
        )
    )


def broken(function: Callable[..., Any], request: int) -> int:
    raise KeyError("ours")


def run(function: Callable[..., Any], request: str) -> str:
    """What the function makes of a text, or what it fails with."""
    try:
        return repr(function(request))
    except BaseException as error:
        return f"failed: {error!r}"
