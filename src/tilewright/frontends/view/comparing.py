"""Two texts side by side: rows of equal and of changed lines, with long equal stretches apart so they can be folded."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

MOST_LINES = 4000  # of either text; beyond it a comparison takes too long
_AROUND = 4  # equal lines shown next to a change


@dataclass(frozen=True)
class Half:
    """One side of a row: a line's number and its text, of which `changed` is what the other side has not."""

    number: int
    before: str
    changed: str = ""
    after: str = ""


@dataclass(frozen=True)
class Stretch:
    """Rows that belong together. A folded one is equal on both sides and far from any change."""

    rows: tuple[tuple[Half | None, Half | None], ...]
    equal: bool
    folded: bool = False


def side_by_side(left: str, right: str) -> list[Stretch]:
    """Raises `ValueError` where a text is too long to compare."""
    old, new = left.splitlines(), right.splitlines()
    if max(len(old), len(new)) > MOST_LINES:
        raise ValueError(f"texts of more than {MOST_LINES:,} lines are not compared")
    made: list[Stretch] = []
    codes = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    for position, (kind, a, b, c, d) in enumerate(codes):
        if kind == "equal":
            rows = tuple((Half(a + k + 1, old[a + k]), Half(c + k + 1, new[c + k])) for k in range(b - a))
            made += _folded(rows, position == 0, position == len(codes) - 1)
        else:
            made.append(Stretch(tuple(_changed(old, new, (a, b), (c, d))), equal=False))
    return made


def _folded(rows: tuple[tuple[Half, Half], ...], first: bool, last: bool) -> Iterator[Stretch]:
    """Equal lines in up to three stretches: those after a change, those far from any, those before the next."""
    start = 0 if first else _AROUND
    end = len(rows) if last else len(rows) - _AROUND
    if end - start <= 2:
        yield Stretch(rows, equal=True)
        return
    for part, folded in ((rows[:start], False), (rows[start:end], True), (rows[end:], False)):
        if part:
            yield Stretch(part, equal=True, folded=folded)


def _changed(
    old: list[str], new: list[str], left: tuple[int, int], right: tuple[int, int]
) -> Iterator[tuple[Half | None, Half | None]]:
    """Lines one by one beside each other; what is over on one side has nothing beside it."""
    for i, j in itertools.zip_longest(range(*left), range(*right)):
        if i is None or j is None:
            yield (
                Half(i + 1, "", old[i]) if i is not None else None,
                Half(j + 1, "", new[j]) if j is not None else None,
            )
            continue
        head = _shared(old[i], new[j])
        tail = _shared(old[i][head:][::-1], new[j][head:][::-1])
        yield _half(i, old[i], head, tail), _half(j, new[j], head, tail)


def _half(index: int, text: str, head: int, tail: int) -> Half:
    end = len(text) - tail
    return Half(index + 1, text[:head], text[head:end], text[end:])


def _shared(one: str, other: str) -> int:
    """How many characters both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))
