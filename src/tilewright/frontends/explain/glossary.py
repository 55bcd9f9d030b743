"""The terms a lesson may use, each in a sentence or two; those that occur are printed, linked from their first use."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from importlib import resources

from tilewright.frontends.explain.lesson import Entry, Link
from tilewright.records.reaching import reached

# Term -> what it is called in texts (a regular expression), and its meaning.
_TERMS: dict[str, list[str]] = tomllib.loads(
    resources.files("tilewright.frontends.explain").joinpath("glossary.toml").read_text("utf-8")
)
_PATTERN = re.compile(
    r"(?<![\w.])(?:" + "|".join(f"(?P<t{n}>{form})" for n, (form, _) in enumerate(_TERMS.values())) + r")(?!\w)"
)


class Glossary:
    """Which terms a text has used so far."""

    def __init__(self) -> None:
        self._used: set[int] = set()

    def linked(self, text: str) -> Iterator[str | Link]:
        """The text with a link at the first use of each term."""
        done = 0
        for found in _PATTERN.finditer(text):
            number = _number(found)
            if number in self._used:
                continue
            self._used.add(number)
            if found.start() > done:
                yield text[done : found.start()]
            yield Link(found[0], _anchor(number))
            done = found.end()
        if done < len(text):
            yield text[done:]

    def entries(self) -> tuple[Entry, ...]:
        """The terms used, in the order of the alphabet; their meanings may use others, which are then among them."""
        meanings = [meaning for _, meaning in _TERMS.values()]
        known = reached(self._used, lambda number: map(_number, _PATTERN.finditer(meanings[number])))
        terms = [(number, term, meaning) for number, (term, (_, meaning)) in enumerate(_TERMS.items())]
        made = (Entry(_anchor(number), term, meaning) for number, term, meaning in terms if number in known)
        return tuple(sorted(made, key=lambda entry: entry.term.lower()))


def _number(found: re.Match[str]) -> int:
    assert found.lastgroup is not None
    return int(found.lastgroup[1:])


def _anchor(number: int) -> str:
    return f"term-{re.sub('[^a-z0-9]+', '-', list(_TERMS)[number].lower())}"
