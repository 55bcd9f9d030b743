"""Sizes beyond the cases, at which a file's plan is only evaluated: which of them does it decline?

Nothing is built or run, so they may be large. One dimension is changed at a time, the others keep their own sizes.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.records import Dimension, Task

Sizes = dict[str, int]

_WIDEST = 4  # times the own size
_HALVINGS = 11  # powers of two below the largest; smaller ones are left to the cases
_SHOWN = 5  # sizes of a dimension in a note


def declined_note(task: Task, takes: Callable[[Sizes], bool]) -> str:
    """What is declined of each dimension that varies, in a few words; empty where nothing is."""
    said = []
    for one in task.free:
        if not one.varies:
            continue
        tried = {size: sizes for size in _further(one) if task.is_sound(sizes := _changed(task, one.name, size))}
        declined = [size for size, sizes in tried.items() if not takes(sizes)]
        if declined and len(declined) == len(tried):
            said.append(f"every {one.name} tried but {one.size}")
        elif declined:
            said.append(f"{one.name}={', '.join(map(str, _spread(declined)))}")
    return f"the file declines, among others, {'; '.join(said)}" if said else ""


def _further(dimension: Dimension) -> list[int]:
    """About twenty sizes: powers of two, odd ones beside them, some between."""
    own, largest = dimension.size, _WIDEST * dimension.size
    power = 1 << max(largest.bit_length() - 1, 0)
    wanted = {power >> step for step in range(_HALVINGS)} | {1, 3, own // 2 | 1, own - 1 | 1, own + 1 | 1, 2 * own + 1}
    wanted |= {3 * own // 4, 3 * own // 2, 3 * own, largest - 1}
    multiple = dimension.multiple_of
    permitted = {-(-max(size, dimension.at_least) // multiple) * multiple for size in wanted if size > 0}
    return sorted(permitted - {own})


def _changed(task: Task, name: str, size: int) -> Sizes:
    return task.complete({**task.sizes, name: size})


def _spread(sizes: list[int]) -> list[int]:
    """A few of them, from the least to the greatest."""
    if len(sizes) <= _SHOWN:
        return sizes
    return [sizes[number * (len(sizes) - 1) // (_SHOWN - 1)] for number in range(_SHOWN)]
