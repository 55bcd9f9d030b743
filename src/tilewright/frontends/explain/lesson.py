"""A lesson as records: sections of blocks. How they look is for `markdown` and the HTML templates to say."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Code:
    """A few words of code within a sentence."""

    text: str


@dataclass(frozen=True)
class Link:
    """The first use of a term of the glossary."""

    text: str
    anchor: str


Span = str | Code | Link
Cell = str | tuple[Span, ...]  # of a table


@dataclass(frozen=True)
class Paragraph:
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class Quote:
    """What the run's author said, word for word."""

    quoted: tuple[Span, ...]


@dataclass(frozen=True)
class Source:
    text: str
    language: str = ""


@dataclass(frozen=True)
class Picture:
    name: str  # of its file, without the ending
    svg: str
    says: Cell  # what is to be seen, for who cannot see it


@dataclass(frozen=True)
class Table:
    heads: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True)
class Fold:
    """Shown when it is asked for."""

    title: str
    blocks: tuple[Paragraph | Quote | Source | Table, ...]


Block = Paragraph | Quote | Source | Picture | Table | Fold


@dataclass(frozen=True)
class Section:
    title: str
    blocks: tuple[Block, ...]
    level: int = 2


@dataclass(frozen=True)
class Entry:
    """A term of the glossary that the lesson uses."""

    anchor: str
    term: str
    meaning: str


@dataclass(frozen=True)
class Lesson:
    title: str
    sections: tuple[Section, ...]
    glossary: tuple[Entry, ...]

    @property
    def pictures(self) -> tuple[Picture, ...]:
        return tuple(block for one in self.sections for block in one.blocks if isinstance(block, Picture))
