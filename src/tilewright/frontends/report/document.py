"""The document model of every report: sections of blocks. `rendering` shows it at a terminal, in Markdown and HTML."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


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


def say(*spans: Span, tone: Tone = Tone.PLAIN) -> Paragraph:
    return Paragraph(tuple(one for one in spans if (one if isinstance(one, str) else one.text)), tone)


def say_each(texts: Iterable[str], tone: Tone = Tone.PLAIN) -> list[Paragraph]:
    """A paragraph for each text that is not empty."""
    return [say(one, tone=tone) for one in texts if one]
