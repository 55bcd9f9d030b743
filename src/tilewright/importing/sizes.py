"""Chooses small sizes for emulating an imported kernel file."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from tilewright.importing.calls import CallArgument, is_block
from tilewright.kernel_file import ArgumentValue, DoesNotApply, KernelFile, KernelFileError, evaluate
from tilewright.kernel_file.evaluate import Evaluation
from tilewright.records import GpuProfile, Launch, TensorSpec

_MOST_ELEMENTS = 1 << 19
_MOST_THREADS = (1 << 14, 1 << 17)  # tried in this order
_SMALL = 8  # sizes up to this are not changed: filter sizes, strides, channels


def _less(divisor: int) -> Callable[[int, int], int]:
    return lambda _, size: max(size // divisor, 1) if size > _SMALL * divisor else size


def unchanged(_: int, size: int) -> int:
    return size


SizeRule = Callable[[int, int], int]
# Round sizes show whether the import is right, odd sizes what the kernel assumes without checking.
ROUND_SIZES: tuple[SizeRule, ...] = (
    lambda number, _: 32 + 32 * number,
    lambda _, size: min(size, 128),
    lambda _, size: min(size, 256),
    _less(16),
    _less(4),
    _less(2),
    unchanged,
)
ODD_SIZES: tuple[SizeRule, ...] = (lambda number, _: 11 + 8 * number, lambda number, _: 16 + 8 * number)


def small_arguments(
    file: KernelFile, call: Sequence[CallArgument], gpu: GpuProfile, ways: Sequence[SizeRule] = ROUND_SIZES
) -> dict[str, ArgumentValue] | None:
    """The call's arguments at small sizes; None if the file accepts none of them."""
    sizes = list(dict.fromkeys(s for one in call if one.has_shape for s in one.shape if s > _SMALL))
    if not sizes:  # plain pointers have no sizes: use the numbers
        numbers = (one.value for one in call if one.kind == "int" and not is_block(one.name))
        sizes = list(dict.fromkeys(value for value in numbers if isinstance(value, int) and value > _SMALL))
    for most, way in itertools.product(_MOST_THREADS, ways):
        smaller = {size: min(way(number, size), size) for number, size in enumerate(sizes)}
        arguments = {one.name: _argument(one, smaller) for one in call if one.is_passed}
        shaped = {one.name for one in call if one.has_shape}
        elements = sum(math.prod(v.shape) for n, v in arguments.items() if isinstance(v, TensorSpec) and n in shaped)
        if elements > _MOST_ELEMENTS:
            continue
        try:
            if 0 < threads(evaluate(file, arguments, gpu)) <= most:  # a run without threads checks nothing
                return arguments
        except (DoesNotApply, KernelFileError):
            continue
    return None


def _argument(one: CallArgument, smaller: dict[int, int]) -> ArgumentValue:
    if one.kind == "int" and isinstance(one.value, int) and not is_block(one.name):
        return smaller.get(one.value, one.value)
    if not one.has_shape:
        return one.argument()
    return replace(one, shape=tuple(smaller.get(size, size) for size in one.shape)).argument()


def threads(evaluation: Evaluation) -> int:
    return sum(math.prod(step.grid) * math.prod(step.block) for step in evaluation.steps if isinstance(step, Launch))
