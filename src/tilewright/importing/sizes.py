"""Sizes at which an imported file can be emulated: those of its call made small, as long as the file takes them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from tilewright.importing.calls import Given, is_block
from tilewright.kernel_file import ArgumentValue, DoesNotApply, KernelFile, KernelFileError, evaluate
from tilewright.kernel_file.evaluate import Evaluation
from tilewright.records import GpuProfile, Launch, TensorSpec

_MOST_ELEMENTS = 1 << 19
_MOST_THREADS = (1 << 14, 1 << 17)  # as few as can be
_SMALL = 8  # sizes up to this are kept: kernel sizes, strides, channels


def _less(divisor: int) -> Callable[[int, int], int]:
    return lambda _, size: max(size // divisor, 1) if size > _SMALL * divisor else size


def as_is(_: int, size: int) -> int:
    return size


Way = Callable[[int, int], int]
# Sizes of the sort kernels are written for, which show whether the import is right; and others, which show what the
# kernel counts on without saying so.
ROUND: tuple[Way, ...] = (
    lambda number, _: 32 + 32 * number,
    lambda _, size: min(size, 128),
    lambda _, size: min(size, 256),
    _less(16),
    _less(4),
    _less(2),
    as_is,
)
ODD: tuple[Way, ...] = (lambda number, _: 11 + 8 * number, lambda number, _: 16 + 8 * number)


def small_arguments(
    file: KernelFile, call: Sequence[Given], gpu: GpuProfile, ways: Sequence[Way] = ROUND
) -> dict[str, ArgumentValue] | None:
    """The call's arguments with each of its sizes made another small one; None where the file takes none such."""
    sizes = list(dict.fromkeys(s for one in call if one.has_shape for s in one.shape if s > _SMALL))
    if not sizes:  # of pointers nobody says how much is there: the numbers are the sizes
        sizes = list(dict.fromkeys(v for one in call if (v := _size_of(one)) > _SMALL))
    for most, way in itertools.product(_MOST_THREADS, ways):
        smaller = {size: min(way(number, size), size) for number, size in enumerate(sizes)}
        arguments = {one.name: _argument(one, smaller) for one in call if one.is_passed}
        shaped = {one.name for one in call if one.has_shape}
        elements = sum(math.prod(v.shape) for n, v in arguments.items() if isinstance(v, TensorSpec) and n in shaped)
        if elements > _MOST_ELEMENTS:
            continue
        try:
            if 0 < threads(evaluate(file, arguments, gpu)) <= most:  # without a thread all is well, and nothing seen
                return arguments
        except (DoesNotApply, KernelFileError):
            continue
    return None


def _argument(one: Given, smaller: dict[int, int]) -> ArgumentValue:
    if one.kind == "int" and isinstance(one.value, int) and not is_block(one.name):
        return smaller.get(one.value, one.value)
    if not one.has_shape:
        return one.argument()
    return replace(one, shape=tuple(smaller.get(size, size) for size in one.shape)).argument()


def _size_of(one: Given) -> int:
    return one.value if one.kind == "int" and isinstance(one.value, int) and not is_block(one.name) else 0


def threads(evaluation: Evaluation) -> int:
    return sum(math.prod(step.grid) * math.prod(step.block) for step in evaluation.steps if isinstance(step, Launch))
