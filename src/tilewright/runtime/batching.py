"""What `torch.vmap` does with an operator: one call for each item of the batch, and the results stacked.

Where the files have a `lead` line, and the tensors it names are those that are batched, the batch is one more leading
dimension and there is one call. Otherwise a plan says nothing of dimensions it was not written for, so there is one
call for each item: right for every op, and as slow as that many calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tilewright.kernel_file import KernelFile, Op
from tilewright.runtime.errors import CallRefused

Kernel = Callable[..., Any]

_OVERLAPS = 1  # torch's answer where elements of a tensor surely share memory


def batched(op: Op, operator: Any, files: Sequence[KernelFile] = ()) -> Kernel:
    """The rule for an operator whose first arguments are the op's parameters; `files` are those behind it."""
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
            results = [operator(*(_of_no_item(v, where) for v, where in zip(values, in_dims, strict=True)))]
            return _stacked(results, values, empty=True)
        return _stacked(results, values, empty=False)

    return rule


def _run_item(operator: Any, values: Sequence[Any], in_dims: Sequence[Any], changed: Sequence[int], number: int) -> Any:
    """One call, on copies: an item of a batch may lie where no kernel takes it."""
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


def _of_no_item(value: Any, where: Any) -> Any:
    """For a batch of nothing: an argument that has the layout of an item, and no content."""
    if isinstance(value, (list, tuple)) and isinstance(where, (list, tuple)):
        return [_of_no_item(one, place) for one, place in zip(value, where, strict=True)]
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
