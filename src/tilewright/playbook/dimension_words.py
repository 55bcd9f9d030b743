"""Dimensions in words: "over the last dimension", "along dim 1", "of each column", "of all elements"."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tilewright.playbook.errors import NotUnderstood

_MARK = re.compile(r"§(\d+)")
_WITHIN = r"(?:\b(?:over|along|across|of|on|for|in|at) )?(?:the )?"
_DIMENSION = r"(?:dim(?:ension)?s?|ax[ie]s)"
_PLACES: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("last", "innermost", "final", "feature", "hidden", "embedding"), (-1,)),
    **dict.fromkeys(("last two", "last 2", "spatial"), (-2, -1)),
    **dict.fromkeys(("first", "leading", "outermost", "batch"), (0,)),
    **dict.fromkeys(("second", "channel", "channels"), (1,)),
    **dict.fromkeys(("all", "both"), ()),
    "second to last": (-2,),
    "third": (2,),
}
_PLACED = re.compile(rf"{_WITHIN}\b(?P<place>{'|'.join(sorted(_PLACES, key=len, reverse=True))}) {_DIMENSION}\b")
_NUMBERED = re.compile(
    rf",? ?(?:\b(?:over|along|across|on|in|of) )?(?:the )?\b{_DIMENSION} ?=? ?"
    r"(?:[(\[] ?(?P<listed>-?\d+(?: ?, ?-?\d+)*) ?[)\]]"
    r"|(?P<said>-?\d+(?:(?:,|,? and) ?-?\d+(?! ?[-\d.*/+@x]))*)(?![\d.]))"
)
_ROWS = re.compile(
    r"\b(?:over|along|across|of|for|in) (?:each|every|the|a) row\b|\b(?:each|every) row\b|\brow ?wise\b"
    r"|\bper (?:row|token)\b"
)
_COLUMNS = re.compile(
    r"\bcolumn (?=(?:sum|mean|average|max|min|norm|prod|var|std|arg)[a-z]*\b)|\bcolumn ?wise\b"
    r"|\b(?:of|for|in|over) (?:each|every) column\b|\b(?:each|every|per) column\b"
)
_CHANNELS = re.compile(r"\b(?:over|along|across) (?:the |all )?channels\b")
_EVERYTHING = re.compile(
    r"\b(?:(?:of|over|across|for|to|on) )?all(?: of)? (?:the )?(?:elements|entries|values|numbers)\b"
    r"|\b(?:of|over|across|for) every (?:element|entry|value)\b"
    r"|\b(?:of|over) (?:everything|the (?:whole|entire) (?:tensor|matrix|array|input))\b"
)
_STATISTIC = (
    r"(?:sum|add|total|average|mean|max(?:imum)?|min(?:imum)?|largest|greatest|smallest|l[12] norm|variance"
    r"|standard deviation)"
)
_WHOLE = re.compile(  # no row of it is meant; "prefix sum" is no statistic, and indices are along a dimension
    r"(?:^|(?<!prefix)(?<!suffix)(?<!ative)(?<!running)(?<!(?:index|ition) of)(?<!(?:index|ition) of the) )"
    rf"{_STATISTIC}(?: value| element| entry| number)? "
    r"(?P<whole>of (?:an?|the) (?:matrix|array|vector|tensor))\b"
)
_READINGS = re.compile(
    r"\b(over|along|across|of|for) (?:the |all |all the )?(rows|columns)\b|\bper channel\b"
    rf"|\b{_STATISTIC} (?:the |all |all the )?(rows|columns)\b"
    rf"|\b(?:{_STATISTIC}|soft ?max|normali[sz]e)(?: of| over| for| in)? (?:each|every|per) "
    r"(?:image|matrix|array|tensor)\b"
)
_OTHER = re.compile(rf"\b\w+ {_DIMENSION}\b")


@dataclass(frozen=True)
class Axis:
    """Dimensions as PyTorch counts them; none are all of them."""

    said: str
    dimensions: tuple[int, ...]

    @property
    def is_last(self) -> bool:
        return self.dimensions == (-1,)

    @property
    def least_rank(self) -> int:
        """Of a tensor that has these dimensions."""
        return max((one + 1 if one >= 0 else -one for one in self.dimensions), default=1)


LAST = Axis("the last dimension", (-1,))


def mark_axes(text: str) -> tuple[str, tuple[Axis, ...]]:
    """The text with a mark in place of every phrase that says dimensions. What has two readings is refused."""
    found: list[Axis] = []

    def marked(said: re.Match[str], dimensions: tuple[int, ...]) -> str:
        found.append(Axis(said[0].strip(" ,"), dimensions))
        return f" §{len(found) - 1} "

    text = _NUMBERED.sub(lambda one: marked(one, _numbers(one["listed"] or one["said"])), text)
    text = _PLACED.sub(lambda one: marked(one, _PLACES[one["place"]]), text)
    text = _EVERYTHING.sub(lambda one: marked(one, ()), text)
    for pattern, dimensions in ((_ROWS, (-1,)), (_COLUMNS, (-2,)), (_CHANNELS, (1,))):
        text = pattern.sub(lambda one, held=dimensions: marked(one, held), text)  # type: ignore[misc]
    if not found and (whole := _WHOLE.search(text)):
        found.append(Axis(whole["whole"], ()))
        text = f"{text[: whole.start('whole')]} §0 {text[whole.end('whole') :]}"
    if said := _READINGS.search(text):
        raise NotUnderstood(
            f'the playbook cannot tell which dimension "{said[0]}" means; say "of each row" or "over dim 1" for one '
            f'result per row, "of each column" or "over dim 0" for one per column'
        )
    if said := _OTHER.search(text):
        raise NotUnderstood(
            f'the playbook does not understand "{said[0]}"; say the last dimension, the first, or "over dim 1"'
        )
    return text, tuple(found)


def take_axes(text: str, axes: tuple[Axis, ...]) -> tuple[str, tuple[Axis, ...]]:
    """The text without its marks, and what they stand for."""
    said = tuple(axes[int(one[1])] for one in _MARK.finditer(text))
    return re.sub(r"\( *,? *\)", " ", _MARK.sub(" ", text)), said


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(one) for one in re.findall(r"-?\d+", text))
