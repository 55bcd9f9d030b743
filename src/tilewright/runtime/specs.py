"""`TensorSpec` from torch tensors, specs or text such as `4096x1024:bf16`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tilewright.devices.inputs import DTYPE_OF_TORCH
from tilewright.kernel_file import CallError, Code, Op, Problem, Reason, Signature
from tilewright.records import ScalarType, TensorSpec

TENSOR_ALIGNMENT = 16


def spec_of(tensor: torch.Tensor) -> TensorSpec:
    """The spec of a tensor, with its alignment up to 16 bytes, the most that any rule needs."""
    is_fake = tensor.device.type == "meta" or (type(tensor) is not torch.Tensor and hasattr(tensor, "fake_mode"))
    address = 0 if is_fake else tensor.data_ptr()
    alignment = (address | TENSOR_ALIGNMENT) & -(address | TENSOR_ALIGNMENT)
    return TensorSpec(
        DTYPE_OF_TORCH[tensor.dtype], tuple(map(int, tensor.shape)), tuple(map(int, tensor.stride())), alignment
    )


def traced_arguments(op: Op, values: Sequence[Any]) -> dict[str, Any]:
    """The arguments of a traced call for the evaluator: sizes, strides and numbers may be symbolic."""

    def traced(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return TensorSpec(DTYPE_OF_TORCH[value.dtype], tuple(value.shape), tuple(value.stride()))
        return tuple(value) if isinstance(value, (list, tuple)) else value

    pairs = zip(op.parameters, values, strict=True)
    return {parameter.name: traced(value) for parameter, value in pairs}


def unsupported_reasons(op: Op, values: Sequence[Any]) -> tuple[Reason, ...]:
    """The tensors that no kernel file supports, with reasons."""
    pairs = zip(op.parameters, values, strict=True)
    found = (unsupported_tensor(v, p.name) for p, v in pairs if p.scalar is None and v is not None)
    return tuple(Reason(op.name, problem) for problem in found if problem is not None)


def unsupported_tensor(tensor: torch.Tensor, name: str) -> Problem | None:
    """Why no kernel file supports this tensor; None where one may."""
    if tensor.is_nested:
        return _reason(f"{name} is a nested tensor", f"pass {name}.to_padded_tensor(...)")
    if tensor.layout is not torch.strided:
        return _reason(f"{name} is a {tensor.layout} tensor", f"pass {name}.to_dense()")
    if tensor.dtype not in DTYPE_OF_TORCH:
        known = " ".join(DTYPE_OF_TORCH.values())
        return _reason(f"{name} has dtype {tensor.dtype}", f"kernel files take {known}")
    if tensor.is_neg():
        return _reason(f"{name} is a negated view", f"pass {name}.resolve_neg()")
    return None


def _reason(found: str, remedy: str) -> Problem:
    return Problem(Code.DOES_NOT_APPLY, 0, 0, found, remedy)


# In place of omitted numbers that the selection does not depend on.
_PLACEHOLDER: dict[ScalarType, int | float | bool] = {ScalarType.INT: 1, ScalarType.FLOAT: 1.0, ScalarType.BOOL: False}


def abstract_arguments(
    signature: Signature, deciding: frozenset[str], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Arguments for `prepare` and `explain`: tensors, specs or text; numbers that do not matter may be omitted."""
    op = signature.op
    names = signature.names
    given = dict(kwargs)
    for parameter in op.parameters[len(args) :]:
        idle = parameter.scalar is not None and parameter.name not in deciding and not parameter.is_list
        if idle and parameter.name not in given and not parameter.has_default and not parameter.optional:
            assert parameter.scalar is not None
            given[parameter.name] = _PLACEHOLDER[parameter.scalar]
    tensors = {one.name for one in op.tensors}
    positional = [
        read_spec(op.name, names[i], value) if i < len(names) and names[i] in tensors else value
        for i, value in enumerate(args)
    ]
    named = {name: read_spec(op.name, name, value) if name in tensors else value for name, value in given.items()}
    return dict(zip(names, signature.normalise(positional, named), strict=True))


def read_spec(op: str, name: str, value: Any) -> TensorSpec | None:
    """A tensor's spec from a tensor, a spec, or text; None stays None."""
    if value is None or isinstance(value, TensorSpec):
        return value
    if isinstance(value, torch.Tensor):
        problem = unsupported_tensor(value, name)
        if problem is not None:
            raise CallError(f"{op}(): {problem.found}; {problem.remedy}")
        return spec_of(value)
    if isinstance(value, str):
        try:
            return TensorSpec.parse(value)
        except ValueError as error:
            raise CallError(f"{op}(): {name}: {error}") from None
    raise CallError(
        f"{op}(): {name} is a tensor; found {type(value).__name__}; "
        "give a tensor, a TensorSpec or text like 4096x1024:bf16"
    )
