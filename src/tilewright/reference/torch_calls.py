"""In the child: tensors from bytes, and one call of the reference as a task describes it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch

from tilewright.devices.inputs import DTYPE_OF_TORCH, TORCH_DTYPE
from tilewright.records import DType, Task, TensorSpec
from tilewright.reference.loading import line_of_reference
from tilewright.reference.protocol import ReferenceProblem

__all__ = [
    "TORCH_DTYPE",
    "call_by_name",
    "call_reference",
    "dtype_of",
    "flat_results",
    "own_arguments",
    "to_bytes",
    "to_torch",
]


def to_torch(spec: TensorSpec, content: bytes) -> torch.Tensor:
    """A CPU tensor from bytes in storage order."""
    raw = torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)
    return raw.view(TORCH_DTYPE[spec.dtype]).as_strided(spec.shape, spec.stride)


def to_bytes(tensor: torch.Tensor) -> bytes:
    """The elements in row-major order."""
    whole = tensor.detach().cpu().contiguous()
    return bytes(whole.view(-1).view(torch.uint8).numpy().tobytes()) if whole.numel() else b""


def dtype_of(tensor: torch.Tensor) -> DType:
    """Raises `ReferenceProblem` for a dtype that kernel files do not have."""
    found = DTYPE_OF_TORCH.get(tensor.dtype)
    if found is None:
        known = ", ".join(DTYPE_OF_TORCH.values())
        raise ReferenceProblem(f"the reference uses a tensor of {tensor.dtype}; kernel files have {known}")
    return found


def call_reference(
    function: Callable[..., Any], task: Task, tensors: Mapping[str, torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """The results, one per output of the task, then every tensor changed in place.

    The given tensors are not changed. Absent optional tensors are passed as None.
    """
    arguments: dict[str, Any] = {one.name: one.value for one in task.numbers}
    for one in task.tensors:
        given = tensors.get(one.name)
        arguments[one.name] = None if given is None else given.clone()
    in_place = [one.name for one in task.tensors if one.in_place]
    return call_by_name(function, arguments, in_place, len(task.outputs))


def own_arguments(task: Task, device: str) -> dict[str, Any]:
    """The task's full-size arguments on a device, where values do not matter: floats from 0 to 1, else zeros."""
    arguments: dict[str, Any] = {one.name: one.value for one in task.numbers}
    specs = task.specs()
    for one in task.tensors:
        spec = specs.get(one.name)
        if spec is None:
            arguments[one.name] = None
            continue
        made = torch.empty_strided(spec.shape, spec.stride, dtype=TORCH_DTYPE[spec.dtype], device=device)
        arguments[one.name] = made.uniform_() if spec.dtype.is_float else made.zero_()
    return arguments


def call_by_name(
    function: Callable[..., Any], arguments: Mapping[str, Any], in_place: list[str], outputs: int
) -> tuple[torch.Tensor, ...]:
    """One call without gradients. A returned tensor that is an in-place argument counts once."""
    try:
        with torch.no_grad():
            returned = function(**arguments)
    except TypeError as error:
        if line_of_reference(error) is not None:
            raise
        raise ReferenceProblem(
            f"the reference cannot be called: {error}; it is called with the names {', '.join(arguments)}"
        ) from error
    changed = [arguments[name] for name in in_place]
    results = flat_results(returned)
    alone = tuple(one for one in results if not any(one is other for other in changed))
    if len(alone) == outputs:
        return (*alone, *changed)
    if len(results) == outputs + len(changed):
        return results
    raise ReferenceProblem(
        f"the reference returned {len(results)} tensors where the task has {outputs} outputs"
        + (f" beside {', '.join(in_place)}" if in_place else "")
        + "; return exactly those"
    )


def flat_results(returned: Any) -> tuple[torch.Tensor, ...]:
    """What a function returned, flattened to a tuple of tensors."""
    if returned is None:
        return ()
    if isinstance(returned, torch.Tensor):
        return (returned,)
    if isinstance(returned, Mapping):
        return flat_results(tuple(returned.values()))
    if isinstance(returned, (tuple, list)):
        return tuple(one for item in returned for one in flat_results(item))
    if isinstance(returned, (bool, int, float)):
        return (torch.tensor(returned),)
    if dataclasses.is_dataclass(returned) and not isinstance(returned, type):
        return flat_results(tuple(getattr(returned, one.name) for one in dataclasses.fields(returned)))
    raise ReferenceProblem(f"the reference returned a {type(returned).__name__}; return tensors")
