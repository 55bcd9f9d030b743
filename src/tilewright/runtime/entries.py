"""What a recognised call runs: the checks each call needs, late numbers, the prepared plan, the results unwrapped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tilewright.kernel_file import DoesNotApply, Op, settle
from tilewright.records import TensorSpec
from tilewright.runtime.errors import GradientNotSupported, OverlappingTensors
from tilewright.runtime.on_device import Ready
from tilewright.runtime.overlap import overlap, region
from tilewright.runtime.quick_call import Entry

Specs = Sequence[TensorSpec | None]  # of the tensors in order; None where absent


def make_entry(ready: Ready, op: Op, specs: Specs, requires_grad: bool, again: Callable[..., Any]) -> Entry:
    """The entry for calls like the one `ready` was made for; `again(tensors, numbers)` takes the slow way."""
    if ready.selected.evaluation.late.is_empty and len(op.results) == 1:
        entry = _only_result(ready)
    else:
        entry = _any_result(ready, op, again)
    entry = with_in_place_checks(entry, op, specs)
    return _checking_gradients(entry, op) if requires_grad else entry


def with_in_place_checks(entry: Entry, op: Op, specs: Specs) -> Entry:
    """An entry that refuses overlap of what it changes in place, and tells autograd that it was changed."""
    if not any(parameter.in_place for parameter in op.parameters):
        return entry
    return _counting_versions(_checking_overlap(entry, op, specs), op)


def _only_result(ready: Ready) -> Entry:
    """The commonest case by itself: each thing not done here is a tenth of a microsecond."""
    run_at = ready.prepared.run_at

    def entry(tensors: tuple[Any, ...], addresses: tuple[int, ...], numbers: tuple[Any, ...]) -> Any:
        return run_at(tensors, addresses, ())[0]

    return entry


def _any_result(ready: Ready, op: Op, again: Callable[..., Any]) -> Entry:
    run_at = ready.prepared.run_at
    late_of = _late_function(ready, op)
    single = len(op.results) == 1

    def entry(tensors: tuple[Any, ...], addresses: tuple[int, ...], numbers: tuple[Any, ...]) -> Any:
        try:
            late = late_of(numbers)
        except DoesNotApply:  # these numbers make a `let` fail: another file must be asked, this once
            return again(tensors, numbers)
        try:
            results = run_at(tensors, addresses, late)
        except OverflowError:
            settle(ready.plan, late)  # raises what says which argument of which kernel does not fit
            raise
        return results[0] if single else results or None

    return entry


def _late_function(ready: Ready, op: Op) -> Callable[[tuple[Any, ...]], tuple[int | float | bool, ...]]:
    """Late numbers from a call's numbers. The last are kept: most calls come with the same `eps` as the one before."""
    names = tuple(p.name for p in op.parameters if p.scalar is not None)
    late_values = ready.selected.evaluation.late_values
    if ready.selected.evaluation.late.is_empty:
        return lambda numbers: ()
    has_lists = any(p.is_list for p in op.parameters)
    known: tuple[Any, tuple[int | float | bool, ...]] = (None, ())

    def late_of(numbers: tuple[Any, ...]) -> tuple[int | float | bool, ...]:
        nonlocal known
        if numbers == known[0]:
            return known[1]
        late = late_values(dict(zip(names, numbers, strict=True)))
        if 0.0 not in numbers and not has_lists:  # 0.0 and -0.0 are equal and not the same
            known = (numbers, late)  # one assignment, so that another thread sees both or neither
        return late

    return late_of


def _checking_overlap(entry: Entry, op: Op, specs: Specs) -> Entry:
    tensors = [parameter for parameter in op.parameters if parameter.scalar is None]
    extents = [0 if spec is None else spec.storage_bytes for spec in specs]
    pairs = [
        (one, other)
        for one, parameter in enumerate(tensors)
        for other in range(len(tensors))
        if parameter.in_place and extents[one] and extents[other]
        and (other > one or (other < one and not tensors[other].in_place))
    ]  # fmt: skip

    def checked(values: tuple[Any, ...], addresses: tuple[int, ...], numbers: tuple[Any, ...]) -> Any:
        for one, other in pairs:
            start, other_start = addresses[one], addresses[other]
            if start < other_start + extents[other] and other_start < start + extents[one]:
                _refuse_overlap(
                    op.name, tensors[one].name, tensors[other].name, *_regions(one, other, addresses, specs)
                )
        return entry(values, addresses, numbers)

    return checked


def _counting_versions(entry: Entry, op: Op) -> Entry:
    """Tell autograd what was changed: a backward that saved the old values must notice, as with torch's own ops."""
    tensors = [parameter for parameter in op.parameters if parameter.scalar is None]
    changed = [position for position, parameter in enumerate(tensors) if parameter.in_place]

    def counting(values: tuple[Any, ...], addresses: tuple[int, ...], numbers: tuple[Any, ...]) -> Any:
        result = entry(values, addresses, numbers)
        for position in changed:
            tensor = values[position]
            if tensor is not None and not tensor.is_inference():
                torch.autograd.graph.increment_version(tensor)
        return result

    return counting


def _regions(one: int, other: int, addresses: tuple[int, ...], specs: Specs) -> tuple[Any, Any]:
    first, second = specs[one], specs[other]
    assert first is not None
    assert second is not None
    return region(addresses[one], first), region(addresses[other], second)


def _refuse_overlap(op: str, name: str, other_name: str, one: Any, other: Any) -> None:
    """The ranges meet; the elements may still lie apart, as the halves of a matrix do."""
    if overlap(one, other):
        raise OverlappingTensors(
            f"{op}: {name} is changed in place and shares memory with {other_name}; pass {other_name}.clone()"
        )


def _checking_gradients(entry: Entry, op: Op) -> Entry:
    """Grad mode is a property of the moment, so it is asked at every call that has such an input."""

    def checked(tensors: tuple[Any, ...], addresses: tuple[int, ...], numbers: tuple[Any, ...]) -> Any:
        if torch.is_grad_enabled():
            refuse_gradients(op, tensors)
        return entry(tensors, addresses, numbers)

    return checked


def refuse_gradients(op: Op, tensors: Sequence[torch.Tensor | None]) -> None:
    names = [parameter.name for parameter in op.parameters if parameter.scalar is None]
    wanting = [name for name, t in zip(names, tensors, strict=True) if t is not None and t.requires_grad]
    if wanting:
        raise GradientNotSupported(
            f"{op.name}: {', '.join(wanting)} requires grad, and a kernel file computes no gradient: the result would "
            f"silently stop it; call it under torch.no_grad(), or pass {wanting[0]}.detach()"
        )
