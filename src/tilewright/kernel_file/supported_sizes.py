"""The sizes of a task that kernel files support, found by evaluating their plans."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tilewright.kernel_file.compiled_plan import KernelFile
from tilewright.kernel_file.evaluate import Evaluation, try_evaluate
from tilewright.records import Dimension, GpuProfile, SizeLimit, Task

Takes = Callable[[dict[str, int]], bool]

_WIDEST = 4  # times the task's size
_HALVINGS = 11  # powers of two below the largest
_STEPS = (1, 2, 4, 8, 16, 32, 64, 128)  # from the task's size, to find the supported multiples


def size_limits(task: Task, takes: Takes) -> tuple[SizeLimit, ...]:
    """The limits of each variable dimension, with the others at the task's sizes."""
    found = (_limit(task, one, takes) for one in task.free if one.varies)
    return tuple(one for one in found if one is not None)


def size_limits_of_files(task: Task, files: Sequence[KernelFile], gpu: GpuProfile) -> tuple[SizeLimit, ...]:
    """The limits of an op's files together."""

    def takes(sizes: dict[str, int]) -> bool:
        arguments = task.arguments(sizes)
        return any(isinstance(try_evaluate(file, arguments, gpu), Evaluation) for file in files)

    return size_limits(task, takes)


def further_sizes(dimension: Dimension) -> list[int]:
    """About twenty sizes to try: powers of two, odd neighbours, some between."""
    own, largest = dimension.size, _WIDEST * dimension.size
    power = 1 << max(largest.bit_length() - 1, 0)
    wanted = {power >> step for step in range(_HALVINGS)} | {1, 3, own // 2 | 1, own - 1 | 1, own + 1 | 1, 2 * own + 1}
    wanted |= {3 * own // 4, 3 * own // 2, 3 * own, largest - 1, largest}
    allowed = {dimension.permitted(size) for size in wanted if size > 0}
    return sorted(allowed - {own})


def _limit(task: Task, one: Dimension, takes: Takes) -> SizeLimit | None:
    own = task.sizes

    def at(size: int) -> bool:
        return takes(task.complete({**own, one.name: size}))

    def sound(size: int) -> bool:
        return size > 0 and one.takes(size) and task.is_sound(task.complete({**own, one.name: size}))

    tried = [size for size in further_sizes(one) if sound(size)]
    declined = tuple(size for size in tried if not at(size))
    if not declined:
        return None
    near = {one.size + sign * step * one.multiple_of for step in _STEPS for sign in (-1, 1)}
    known = {size: at(size) for size in sorted({*tried, *filter(sound, near), one.size})}
    taken = [size for size, is_taken in known.items() if is_taken]
    unit = math.gcd(*taken)
    for prime in (2, 3, 5, 7):  # the unit may be a divisor of the gcd of the sizes tried
        while unit and unit % prime == 0:
            near_sizes = (one.size + unit // prime, one.size - unit // prime)
            if not any(sound(size) and at(size) for size in near_sizes):
                break
            unit //= prime
    if not taken or (taken == [one.size] and unit == one.size):
        return SizeLimit(one.name, declined, one.size, one.size)
    multiples = [size for size in known if size % unit == 0]
    low, high = taken[0], taken[-1]
    if any(not known[size] for size in multiples if low < size < high):
        return SizeLimit(one.name, declined)
    at_least = _edge(low, max((size for size in multiples if size < low), default=None), unit, at)
    at_most = _edge(high, min((size for size in multiples if size > high), default=None), unit, at)
    return SizeLimit(one.name, declined, at_least, at_most, unit if unit > one.multiple_of else 1)


def _edge(inside: int, outside: int | None, unit: int, takes: Callable[[int], bool]) -> int | None:
    """Bisect for the last supported size before an unsupported one; None where `outside` is None."""
    if outside is None:
        return None
    while (steps := abs(outside - inside) // (2 * unit)) > 0:
        middle = inside + (steps if outside > inside else -steps) * unit
        inside, outside = (middle, outside) if takes(middle) else (inside, middle)
    return inside
