"""Numbers that were said and make no sense: a temperature of 0, more groups than channels, a window of nothing."""

from __future__ import annotations

from tilewright.playbook.errors import NotUnderstood
from tilewright.playbook.named_operation import Number
from tilewright.playbook.phrases import Clause

Sizes = tuple[int | None, ...]  # of the value at hand; None where nobody knows


def check_numbers(clause: Clause, sizes: Sizes) -> None:
    """Raises `NotUnderstood` where PyTorch would refuse a number of the step, or its result say nothing."""
    if wrong := _wrong(clause, sizes):
        raise NotUnderstood(f"{wrong}; say another number")


def _wrong(clause: Clause, sizes: Sizes) -> str | None:
    operation, numbers = clause.operation, [float(one) for one in clause.numbers]
    if not operation.pattern:
        return None  # an expression, which may be called as an operation is
    named = {one.name: numbers[one.place] for one in operation.extras if isinstance(one, Number)}
    if named.get("temperature", 1.0) <= 0:
        return f"a temperature is above 0, and {named['temperature']} is not"
    if named.get("eps", 1.0) < 0:
        return f"an eps is not below 0, and {named['eps']} is"
    if operation.name in ("huber", "smooth_l1") and numbers[0] <= 0:
        return f"where {operation.says} turns linear is above 0, and {clause.numbers[0]} is not"
    if operation.name == "smoothed_cross_entropy" and not 0 <= numbers[0] <= 1:
        return f"labels are smoothed by 0 to 1, and {clause.numbers[0]} is not between them"
    if operation.name == "divide" and numbers == [0.0]:
        return "nothing can be divided by 0"
    if operation.name == "clamp" and numbers[0] > numbers[1]:
        return f"the lower bound of a clamp, {clause.numbers[0]}, is above the upper one, {clause.numbers[1]}"
    if operation.name == "top_k":
        return _wrong_count(int(numbers[0]), sizes[-1])
    if operation.name == "group_norm":
        return _wrong_groups(int(numbers[0]), sizes[1])
    if "_pool_" in operation.name and operation.whole:
        window, stride, padding = map(int, numbers)
        return _wrong_window(window, stride, padding, sizes[2:])
    if "conv_" in operation.name:
        window, stride, padding, dilation = map(int, numbers)
        reach = dilation * (window - 1) + 1 if "transpose" not in operation.name else 1
        return _wrong_taps(window, stride, dilation) or _too_wide(reach, padding, sizes[2:])
    return None


def _wrong_count(count: int, row: int | None) -> str | None:
    if count < 1 or (row is not None and count > row):
        return f"of rows of {row or 'any number of'} elements there is no top {count}"
    return None


def _wrong_groups(groups: int, channels: int | None) -> str | None:
    if groups < 1 or (channels is not None and channels % groups):
        return f"{channels or 'the'} channels cannot be parted into {groups} equal groups"
    return None


def _wrong_window(window: int, stride: int, padding: int, sizes: Sizes) -> str | None:
    if window >= 1 and stride >= 1 and 2 * padding > window:
        return f"a padding is at most half the window, and {padding} is more than half of {window}"
    return _wrong_taps(window, stride) or _too_wide(window, padding, sizes)


def _wrong_taps(window: int, stride: int, dilation: int = 1) -> str | None:
    if window < 1 or stride < 1:
        return f"a window and its stride are at least 1, and {window} and {stride} are said"
    return f"a dilation is at least 1, and {dilation} is said" if dilation < 1 else None


def _too_wide(window: int, padding: int, sizes: Sizes) -> str | None:
    known = [one for one in sizes if one is not None]
    if known and min(known) + 2 * padding < window:
        return f"a window of {window} is larger than a side of {min(known)} with {padding} of padding"
    return None
