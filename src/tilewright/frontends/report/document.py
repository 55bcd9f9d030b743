"""The document model of every report: sections of blocks, and the words of lessons.

`rendering` shows it at a terminal, in Markdown and in HTML.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from importlib import resources

from tilewright.records.gpu import reached


class Tone(str, Enum):
    PLAIN = ""
    STRONG = "strong"
    GOOD = "good"
    FAIR = "fair"  # right, and not all that was asked for
    BAD = "bad"
    FAINT = "faint"


@dataclass(frozen=True)
class Code:
    """A few words of code within a sentence."""

    text: str


@dataclass(frozen=True)
class Link:
    """The first use of a term of the glossary, or a file beside the document."""

    text: str
    anchor: str = ""
    file: str = ""


@dataclass(frozen=True)
class Mark:
    """A few words that stand out."""

    text: str
    tone: Tone = Tone.STRONG


@dataclass(frozen=True)
class Bar:
    """A cell of a table: `share` of its width, 0 to 1."""

    share: float
    best: bool = False


Span = str | Code | Link | Mark
Cell = str | Bar | tuple[Span, ...]  # of a table


@dataclass(frozen=True)
class Paragraph:
    spans: tuple[Span, ...]
    tone: Tone = Tone.PLAIN


@dataclass(frozen=True)
class Quote:
    """What somebody wrote, word for word."""

    spans: tuple[Span, ...]


@dataclass(frozen=True)
class Items:
    """A list."""

    items: tuple[Cell, ...]


@dataclass(frozen=True)
class Source:
    text: str
    language: str = ""


@dataclass(frozen=True)
class Line:
    """A line of a file, with what is said of it. A marked one is underlined where only text can be shown."""

    number: int | None
    text: str
    notes: tuple[str, ...] = ()
    marked: bool = False


@dataclass(frozen=True)
class Excerpt:
    """Lines of a file that need not follow each other."""

    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Picture:
    name: str  # of its file, without the ending
    svg: str
    says: Cell  # what is to be seen, for who cannot see it


@dataclass(frozen=True)
class Table:
    heads: tuple[str, ...]  # none is shown where all are empty
    rows: tuple[tuple[Cell, ...], ...]
    numbers: tuple[str, ...] = ()  # heads of columns that are ranged right
    tones: tuple[Tone, ...] = ()  # of the rows
    whole: frozenset[str] = frozenset()  # heads of columns whose cells are never broken


@dataclass(frozen=True)
class Fold:
    """Shown when it is asked for; not at a terminal."""

    title: str
    blocks: tuple[Block, ...]


Block = Paragraph | Quote | Items | Source | Excerpt | Picture | Table | Fold


@dataclass(frozen=True)
class Section:
    title: str  # "" where its blocks follow without one
    blocks: tuple[Block, ...]
    level: int = 2


@dataclass(frozen=True)
class Entry:
    """A term of the glossary that a document uses."""

    anchor: str
    term: str
    meaning: str


@dataclass(frozen=True)
class Document:
    title: str
    sections: tuple[Section, ...]
    glossary: tuple[Entry, ...] = ()

    @property
    def blocks(self) -> tuple[Block, ...]:
        return tuple(block for one in self.sections for block in one.blocks)

    @property
    def pictures(self) -> tuple[Picture, ...]:
        return tuple(block for block in self.blocks if isinstance(block, Picture))


def text_of(span: Span) -> str:
    return span if isinstance(span, str) else span.text


def say(*spans: Span, tone: Tone = Tone.PLAIN) -> Paragraph:
    return Paragraph(tuple(filter(text_of, spans)), tone)


def say_each(texts: Iterable[str], tone: Tone = Tone.PLAIN) -> list[Paragraph]:
    """A paragraph for each text that is not empty."""
    return [say(one, tone=tone) for one in texts if one]


def numbered(text: str) -> str:
    return "\n".join(f"{number:>4} | {line}" for number, line in enumerate(text.splitlines(), 1))


# -- the words of lessons: terms that are linked from their first use, how CUDA is written, resources of the model --

_WORDS = tomllib.loads(resources.files("tilewright.frontends.report").joinpath("glossary.toml").read_text("utf-8"))
RESOURCES: dict[str, str] = _WORDS["resources"]  # of the performance model: what each is, what makes it smaller
LESSON: dict[str, str] = _WORDS["lesson"]  # paragraphs, with places for what is said in them
REMEDIES: dict[str, str] = _WORDS["remedies"]  # of a kernel that a resource bounds
STAGES: dict[str, str] = _WORDS["stages"]  # of a run
REJECTIONS: dict[str, str] = _WORDS["rejections"]  # what is to be learnt from each kind of evidence
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

    def say_each(self, texts: Iterable[str], tone: Tone = Tone.PLAIN) -> list[Paragraph]:
        return [self.say(one, tone=tone) for one in texts if one]

    def text(self, name: str, **values: object) -> Paragraph:
        """A paragraph of the lesson, by its name there; what stands between backquotes is code."""
        parts = (part.format(**values) for part in LESSON[name].split("`"))
        return self.say(*(Code(part) if number % 2 else part for number, part in enumerate(parts)))

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
