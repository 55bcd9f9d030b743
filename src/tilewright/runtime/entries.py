"""Cached entries of the fast path: per-call checks, late numbers, the prepared plan, unwrapped results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tilewright.kernel_file import DoesNotApply, Op, settle
from tilewright.records import TensorSpec
from tilewright.runtime import torch_library
from tilewright.runtime.backends import PreparedCall
from tilewright.runtime.errors import GradientNotSupported, OverlappingTensors
from tilewright.runtime.fast_path import Entry

Specs = Sequence[TensorSpec | None]  # of the tensors in order; None where absent


def make_entry(
    ready: PreparedCall, op: Op, specs: Specs, slow: Callable[..., Any], differentiated: Callable[..., Any] | None
) -> Entry:
    """The entry for calls with the cache key of `ready`; `slow(tensors, numbers)` selects a file anew.

    Where a tensor requires grad, `differentiated(tensors, numbers)` runs the calls made in grad mode.
    """
    if ready.selected.evaluation.late.is_empty and len(op.results) == 1:
        entry = _single_result(ready)
    else:
        entry = _any_result(ready, op, slow)
    entry = with_in_place_checks(entry, op, specs)
    if differentiated is None:
        return entry

    def checking_grad_mode(tensors: tuple[Any, ...], addresses: tuple[int, ...], numbers: tuple[Any, ...]) -> Any:
        return differentiated(tensors, numbers) if torch.is_grad_enabled() else entry(tensors, addresses, numbers)

    return checking_grad_mode


def with_in_place_checks(entry: Entry, op: Op, specs: Specs) -> Entry:
    """Add checks for tensors changed in place: refuse overlap, and bump their version counters."""
    if not any(parameter.in_place for parameter in op.parameters):
        return entry
    return _counting_versions(_checking_overlap(entry, op, specs), op)


def _single_result(ready: PreparedCall) -> Entry:
    """The commonest case: every step saved is a tenth of a microsecond."""
    if ready.prepared.is_plain:
        return ready.prepared.run_plain  # without late numbers it ignores `numbers`
    run_at = ready.prepared.run_at

    def entry(tensors: tuple[Any, ...], addresses: tuple[int, ...], numbers: tuple[Any, ...]) -> Any:
        return run_at(tensors, addresses, ())[0]

    return entry


def _any_result(ready: PreparedCall, op: Op, slow: Callable[..., Any]) -> Entry:
    run_at = ready.prepared.run_at
    late_of = _late_function(ready, op)
    single = len(op.results) == 1

    def entry(tensors: tuple[Any, ...], addresses: tuple[int, ...], numbers: tuple[Any, ...]) -> Any:
        try:
            late = late_of(numbers)
        except DoesNotApply:  # these numbers make a `let` fail: this call needs another file
            return slow(tensors, numbers)
        try:
            results = run_at(tensors, addresses, late)
        except OverflowError:
            settle(ready.plan, late)  # raises the error that names kernel and argument
            raise
        return results[0] if single else results or None

    return entry


def _late_function(ready: PreparedCall, op: Op) -> Callable[[tuple[Any, ...]], tuple[int | float | bool, ...]]:
    """Late numbers from a call's numbers, with the last result cached: most calls repeat the same `eps`."""
    names = tuple(p.name for p in op.numbers)
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
        if 0.0 not in numbers and not has_lists:  # 0.0 == -0.0, but they differ as arguments
            known = (numbers, late)  # one assignment: atomic for other threads
        return late

    return late_of


def _checking_overlap(entry: Entry, op: Op, specs: Specs) -> Entry:
    tensors = op.tensors
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
            meet = start < other_start + extents[other] and other_start < start + extents[one]
            # Overlapping ranges may still have disjoint elements, as the halves of a matrix do.
            if meet and overlap(extent_of(start, specs[one]), extent_of(other_start, specs[other])):
                raise _overlapping(op, tensors[one].name, tensors[other].name)
        return entry(values, addresses, numbers)

    return checked


def refuse_traced_overlap(op: Op, values: Sequence[Any]) -> None:
    """The overlap check for traced tensors: functionalization would otherwise change a copy and go on.

    With symbolic sizes only tensors with the same storage offset are known to overlap.
    """
    tensors = [(p, v) for p, v in zip(op.parameters, values, strict=True) if isinstance(v, torch.Tensor)]
    for parameter, value in tensors:
        for other, other_value in tensors:
            if not parameter.in_place or other is parameter or not torch_library.share_memory(value, [other_value]):
                continue
            extents = [_traced_extent(value), _traced_extent(other_value)]
            if extents[0] is None or extents[1] is None:
                meet = value.storage_offset() is other_value.storage_offset()
            else:
                meet = overlap(extents[0], extents[1])
            if meet:
                raise _overlapping(op, parameter.name, other.name)


def _traced_extent(tensor: torch.Tensor) -> Extent | None:
    """The extent of a tensor within its storage; None where a size is symbolic."""
    numbers = (tensor.storage_offset(), *tensor.shape, *tensor.stride())
    if any(type(number) is not int for number in numbers):
        return None
    size = tensor.itemsize
    dimensions = tuple((n, s * size) for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n > 1)
    return Extent(int(tensor.storage_offset()) * size, dimensions, size, tensor.numel() == 0)


def _overlapping(op: Op, name: str, other: str) -> OverlappingTensors:
    return OverlappingTensors(
        f"{op.name}: {name} is changed in place and shares memory with {other}; pass {other}.clone()"
    )


def _counting_versions(entry: Entry, op: Op) -> Entry:
    """Bump version counters, so that a backward that saved the old values raises, as with torch's own ops."""
    changed = [position for position, parameter in enumerate(op.tensors) if parameter.in_place]

    def counting(values: tuple[Any, ...], addresses: tuple[int, ...], numbers: tuple[Any, ...]) -> Any:
        result = entry(values, addresses, numbers)
        for position in changed:
            _count_change(values[position])
        return result

    return counting


def count_changes(op: Op, values: Sequence[Any]) -> None:
    """Bump the version counters of the values that the op changes in place."""
    for parameter, value in zip(op.parameters, values, strict=True):
        if parameter.in_place:
            _count_change(value)


def _count_change(tensor: torch.Tensor | None) -> None:
    if tensor is not None and not tensor.is_inference():
        torch.autograd.graph.increment_version(tensor)


def refuse_gradients(op: Op, tensors: Sequence[torch.Tensor | None]) -> None:
    wanting = [one.name for one, t in zip(op.tensors, tensors, strict=True) if t is not None and t.requires_grad]
    if wanting:
        raise GradientNotSupported(
            f"{op.name}: {', '.join(wanting)} requires grad, and a kernel file computes no gradient: the result would "
            f"silently stop it; call it under torch.no_grad(), or pass {wanting[0]}.detach()"
        )


# -- memory overlap --


@dataclass(frozen=True)
class Extent:
    """A tensor's elements in memory."""

    address: int
    dimensions: tuple[tuple[int, int], ...]  # (size, stride in bytes) of the dimensions longer than one
    itemsize: int
    is_empty: bool

    @property
    def end(self) -> int:
        return self.address + self.itemsize + sum((size - 1) * step for size, step in self.dimensions)


def extent_of(address: int, spec: TensorSpec | None) -> Extent:
    assert spec is not None  # absent tensors are not paired
    itemsize = spec.dtype.itemsize
    dimensions = tuple((n, s * itemsize) for n, s in zip(spec.shape, spec.stride, strict=True) if n > 1)
    return Extent(address, dimensions, itemsize, spec.numel == 0)


def overlap(one: Extent, other: Extent) -> bool:
    """Whether two tensors may share an element. Exact for disjoint ranges and for column slices of one matrix."""
    if one.is_empty or other.is_empty or one.end <= other.address or other.end <= one.address:
        return False
    pitches = {step for _, step in (*one.dimensions, *other.dimensions)}
    return not any(_apart_within(pitch, one, other) for pitch in pitches if pitch > 0)


def _apart_within(pitch: int, one: Extent, other: Extent) -> bool:
    """Whether both are column slices of rows of `pitch` bytes, with disjoint columns."""
    first, second = sorted((one, other), key=lambda tensor: tensor.address)
    widths = _row_width(pitch, first), _row_width(pitch, second)
    if widths[0] is None or widths[1] is None:
        return False
    start = (second.address - first.address) % pitch  # in rows that begin where the first tensor does
    return widths[0] <= start and start + widths[1] <= pitch


def _row_width(pitch: int, tensor: Extent) -> int | None:
    """The bytes that the tensor spans of each row of `pitch`; None where it has no such rows."""
    if any(step % pitch for _, step in tensor.dimensions if step >= pitch):
        return None
    inner = sum((size - 1) * step for size, step in tensor.dimensions if step < pitch)
    return tensor.itemsize + inner
