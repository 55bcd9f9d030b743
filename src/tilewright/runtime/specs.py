"""`TensorSpec` from torch tensors, specs or text such as `4096x1024:bf16`; and the vmap rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tilewright.devices.inputs import DTYPE_OF_TORCH
from tilewright.kernel_file import CallError, Code, KernelFile, Op, Problem, Reason, Signature
from tilewright.records import ScalarType, TensorSpec
from tilewright.runtime.errors import CallRefused

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


# -- torch.vmap --

Kernel = Callable[..., Any]

_OVERLAPS = 1  # MemOverlap::Yes


def vmap_rule(op: Op, operator: Any, files: Sequence[KernelFile] = ()) -> Kernel:
    """The vmap rule for an op: one call over a `lead` dimension where all files allow it, else a loop."""
    leads = [file.compiled.lead for file in files]
    leading = frozenset(name for name, _ in leads[0].ranks) if leads and all(leads) and leads[0] else frozenset()
    leading = leading if len({lead.ranks for lead in leads if lead}) == 1 else frozenset()
    changed = [number for number, parameter in enumerate(op.parameters) if parameter.in_place]

    def rule(info: Any, in_dims: Sequence[Any], *values: Any) -> tuple[Any, Any]:
        for number in changed:
            if values[number] is not None and in_dims[number] is None:
                name = op.parameters[number].name
                raise CallRefused(
                    f"{op.name}: vmap over a call that changes {name} in place, and {name} is not batched: every item "
                    f"would change the same memory; batch {name} too, or pass a clone for each"
                )
            if values[number] is not None and torch._debug_has_internal_overlap(values[number]) == _OVERLAPS:
                name = op.parameters[number].name
                raise CallRefused(
                    f"{op.name}: vmap over a call that changes {name} in place, and items of {name} lie in the same "
                    f"memory, as those of an expanded tensor do; pass {name}.clone()"
                )
        tensors = [(p.name, where) for p, where in zip(op.parameters, in_dims, strict=False) if p.scalar is None]
        if leading and not changed and all((where is not None) == (name in leading) for name, where in tensors):
            moved = [v if w is None else v.movedim(w, 0).contiguous() for v, w in zip(values, in_dims, strict=True)]
            result = operator(*moved)
            return result, tuple(0 for _ in result) if isinstance(result, tuple) else 0
        results = [_run_item(operator, values, in_dims, changed, number) for number in range(info.batch_size)]
        if not results:
            results = [operator(*(_meta_item(v, where) for v, where in zip(values, in_dims, strict=True)))]
            return _stacked(results, values, empty=True)
        return _stacked(results, values, empty=False)

    return rule


def _run_item(operator: Any, values: Sequence[Any], in_dims: Sequence[Any], changed: Sequence[int], number: int) -> Any:
    """One item, on contiguous copies: its slice may be strided or unaligned."""
    call = [_item(value, where, number) for value, where in zip(values, in_dims, strict=True)]
    result = operator(*call)
    for place in changed:
        if values[place] is not None:
            values[place].select(in_dims[place], number).copy_(call[place])
    return result


def _item(value: Any, where: Any, number: int) -> Any:
    if isinstance(value, (list, tuple)) and isinstance(where, (list, tuple)):
        return [_item(one, place, number) for one, place in zip(value, where, strict=True)]
    if where is None or value is None:
        return value
    return value.select(where, number).clone(memory_format=torch.contiguous_format)


def _meta_item(value: Any, where: Any) -> Any:
    """An item of an empty batch: a meta tensor of its shape."""
    if isinstance(value, (list, tuple)) and isinstance(where, (list, tuple)):
        return [_meta_item(one, place) for one, place in zip(value, where, strict=True)]
    if not isinstance(value, torch.Tensor):
        return value
    shape = list(value.shape)
    if where is not None:
        del shape[where]
    return torch.empty(shape, dtype=value.dtype, device="meta")


def _stacked(results: list[Any], values: Sequence[Any], empty: bool) -> tuple[Any, Any]:
    if results[0] is None:
        return None, None
    several = isinstance(results[0], (tuple, list))
    items = [tuple(one) if several else (one,) for one in results]
    device = next(value.device for value in values if isinstance(value, torch.Tensor))
    stacks = [
        torch.empty((0, *column[0].shape), dtype=column[0].dtype, device=device) if empty else torch.stack(column)
        for column in zip(*items, strict=True)
    ]
    if not several:
        return stacks[0], 0
    kind = type(results[0])
    return kind(stacks), kind([0] * len(stacks))
