"""What an input holds, as text: `normal`, `normal 0 2`, `uniform -1 1`, `integers 0 100`, `index rows`."""

from __future__ import annotations

import re

from tilewright.records import DType, IndexValues, IntegerValues, NormalValues, UniformValues, Values
from tilewright.tasks.options import TaskError

_FORMS = "normal, normal:MEAN:DEVIATION, uniform:LOW:HIGH, integers:LOW:HIGH or index:DIMENSION"


def parse_values(where: str, text: str) -> Values:
    """The values that a text describes; words are parted by blanks or colons. `where` is for the message."""
    kind, *words = re.split(r"[\s:]+", text.strip())
    try:
        made = _values(kind, words)
    except ValueError:
        raise TaskError(f"{where}: {text!r} says no values; write {_FORMS}") from None
    return made


def _values(kind: str, words: list[str]) -> Values:
    if kind == "normal" and len(words) in (0, 2):
        made = NormalValues(*map(float, words))
        if made.deviation < 0:
            raise ValueError
        return made
    if kind == "uniform" and len(words) in (0, 2):
        between = UniformValues(*map(float, words))
        if not between.low <= between.high:
            raise ValueError
        return between
    if kind == "integers" and len(words) == 2:
        whole = IntegerValues(*map(int, words))
        if whole.low >= whole.high:
            raise ValueError
        return whole
    if kind == "index" and len(words) == 1:
        return IndexValues(words[0])
    raise ValueError(kind)


def print_values(values: Values) -> str:
    """The text that `parse_values` reads as these values."""
    if isinstance(values, NormalValues):
        return "normal" if values == NormalValues() else f"normal {values.mean!r} {values.deviation!r}"
    if isinstance(values, UniformValues):
        return f"uniform {values.low!r} {values.high!r}"
    if isinstance(values, IntegerValues):
        return f"integers {values.low} {values.high}"
    return f"index {values.dimension}"


def check_values(where: str, dtype: DType, values: Values) -> None:
    """Raises where a tensor of that dtype cannot hold such values."""
    if not dtype.is_float and isinstance(values, (NormalValues, UniformValues)):
        held = print_values(values)
        raise TaskError(f"{where}: {dtype} cannot hold {held}; write integers:LOW:HIGH or index:DIMENSION")
