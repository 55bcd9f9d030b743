"""Where wrong elements lie: tails, tiles, rows, columns, every k-th. Looks at a mask alone, never at values."""

from __future__ import annotations

import itertools

import torch

from tilewright.records import Pattern

_NEARLY_ALL = 0.8  # of a row or column: some wrong elements are right by chance
_EVERYWHERE = 0.98


def place_of(wrong: torch.Tensor) -> tuple[Pattern, str]:
    """The pattern of the wrong elements, and a few words with its numbers."""
    flat = wrong.flatten().cpu()
    count, elements = int(flat.sum()), flat.numel()
    if count >= _EVERYWHERE * elements:
        return Pattern.ALL, f"all {elements} elements" if count == elements else f"{count} of {elements} elements"
    if count == 1:
        index = wrong.nonzero()[0].tolist()
        return (
            (Pattern.TAIL, f"the last element, {index}")
            if bool(flat[-1])
            else (Pattern.SCATTERED, f"one element, {index}")
        )
    if wrong.ndim >= 2 and wrong.shape[-1] > 1:
        mask = wrong.reshape(-1, wrong.shape[-1]).cpu()
        found = _columns(mask) or _rows(mask, wrong.shape) or _flat_tail(flat) or _box(mask)
    else:
        found = _flat_tail(flat)
    return found or _periodic(flat) or (Pattern.SCATTERED, f"{count} of {elements} elements, scattered")


def _columns(mask: torch.Tensor) -> tuple[Pattern, str] | None:
    """The same columns in every row."""
    rows, width = mask.shape
    share = mask.double().mean(0)
    bad = share >= _NEARLY_ALL
    if not bool(bad.any()) or bool((share[~bad] > 0.02).any()) or rows < 2:
        return None
    columns = bad.nonzero().flatten().tolist()
    first, last = columns[0], columns[-1]
    if len(columns) == last - first + 1:
        if last == width - 1:
            return Pattern.TAIL, f"the last {_many(len(columns), 'element')} of each row (columns {first} to {last})"
        return Pattern.COLUMNS, f"{_span('column', first, last)} of {width}, in every row"
    return _step("column", columns, width) or (Pattern.COLUMNS, f"{_many(len(columns), 'column')}: {_list(columns)}")


def _rows(mask: torch.Tensor, shape: torch.Size) -> tuple[Pattern, str] | None:
    """Whole rows."""
    height = mask.shape[0]
    share = mask.double().mean(1)
    bad = share >= _NEARLY_ALL
    if not bool(bad.any()) or bool((share[~bad] > 0.02).any()):
        return None
    rows = bad.nonzero().flatten().tolist()
    first, last = rows[0], rows[-1]
    unit = "row" if len(shape) == 2 else "row of the last dimension"
    if len(rows) == last - first + 1:
        if last == height - 1 and first:
            return Pattern.ROWS, f"the last {_many(len(rows), unit)} of {height} ({_span('row', first, last)})"
        return Pattern.ROWS, f"{_span(unit, first, last)} of {height}"
    return _step("row", rows, height) or (Pattern.ROWS, f"{_many(len(rows), unit)} of {height}: {_list(rows)}")


def _flat_tail(flat: torch.Tensor) -> tuple[Pattern, str] | None:
    first = int(flat.nonzero()[0])
    length = flat.numel() - first
    if first == 0 or float(flat[first:].double().mean()) < _NEARLY_ALL or length < 2:
        return None
    return Pattern.TAIL, f"from flat index {first} on: the last {length} of {flat.numel()} elements"


def _box(mask: torch.Tensor) -> tuple[Pattern, str] | None:
    """One rectangle."""
    places = mask.nonzero()
    (top, left), (bottom, right) = places.min(0).values.tolist(), places.max(0).values.tolist()
    area = (bottom - top + 1) * (right - left + 1)
    if area > mask.numel() // 2 or places.shape[0] < 0.6 * area or places.shape[0] < 4:
        return None
    return Pattern.ONE_TILE, f"one block of the output: {_span('row', top, bottom)}, {_span('column', left, right)}"


def _periodic(flat: torch.Tensor) -> tuple[Pattern, str] | None:
    return _step("element", flat.nonzero().flatten().tolist(), flat.numel())


def _step(unit: str, places: list[int], size: int) -> tuple[Pattern, str] | None:
    """Every k-th, all the way to the end."""
    if len(places) < 3:
        return None
    step = places[1] - places[0]
    regular = all(b - a == step for a, b in itertools.pairwise(places))
    if step < 2 or not regular or places[-1] + step < size or places[0] >= step:
        return None
    return Pattern.PERIODIC, f"every {_ordinal(step)} {unit}, starting at {places[0]}"


# -- words --


def _many(count: int, unit: str) -> str:
    head, _, rest = unit.partition(" ")
    return f"{count} {head}{'s' if count != 1 else ''}" + (f" {rest}" if rest else "")


def _span(unit: str, first: int, last: int) -> str:
    head, _, rest = unit.partition(" ")
    tail = f" {rest}" if rest else ""
    return f"{head}{tail} {first}" if first == last else f"{head}s{tail} {first} to {last}"


def _list(places: list[int]) -> str:
    shown = ", ".join(map(str, places[:8]))
    return shown + (", ..." if len(places) > 8 else "")


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
