"""The words of lessons: terms that are linked from their first use, how CUDA is written, resources of the model."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from importlib import resources

from tilewright.frontends.report.document import Cell, Code, Entry, Link, Paragraph, Quote, Span, Tone, say
from tilewright.records.gpu import reached

_WORDS = tomllib.loads(resources.files("tilewright.frontends.report").joinpath("glossary.toml").read_text("utf-8"))
RESOURCES: dict[str, str] = _WORDS["resources"]  # of the performance model: what each is, what makes it smaller
_TERMS: dict[str, list[str]] = _WORDS["terms"]  # what each is called in texts (a regular expression), and its meaning


def key_to(text: str) -> Iterator[tuple[str, str]]:
    """What occurs in a kernel file, with what it means."""
    for written, (pattern, meaning) in _WORDS["cuda"].items():
        if re.search(pattern, text, re.MULTILINE):
            yield written, meaning


# Terms are explained in a sentence or two; those that occur are printed, linked from their first use.
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

    def say(self, *parts: str | Code, tone: Tone = Tone.PLAIN) -> Paragraph:
        """A paragraph in which the first use of each term leads to the glossary."""
        spans: list[Span] = []
        for part in parts:
            spans += [part] if isinstance(part, Code) else self.linked(part)
        return say(*spans, tone=tone)

    def quote(self, text: str) -> Quote:
        return Quote(tuple(self.linked(text)))

    def cell(self, text: str) -> Cell:
        return tuple(self.linked(text))

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
