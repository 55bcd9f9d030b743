"""A lesson as records: sections of blocks. How they look is for `markdown` and the HTML templates to say."""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import escape

from tilewright.frontends.report.templating import cut, shown


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


# -- a lesson as Markdown, as GitHub shows it --

_MARKS = re.compile(r"[\\`*\[\]|~#]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_BAR = re.compile(r"(?<!\\)\|")  # which ends a cell even within code
_AT_START = re.compile(r"^(\s*)([-+=:>]|\d+[.)](?=\s))")


def markdown(lesson: Lesson, pictures: str | None) -> str:
    """`pictures`: what stands before a picture's file name in a link; None where there are no such files."""
    parts = [f"# {_plain(lesson.title)}"]
    for section in lesson.sections:
        parts += [_heading(section), *(_block(block, pictures) for block in section.blocks)]
    parts.append("## Glossary")
    parts += [f'<a id="{one.anchor}"></a>**{_plain(one.term)}**: {one.meaning}' for one in lesson.glossary]
    return "\n\n".join(part for part in parts if part) + "\n"


def _heading(section: Section) -> str:
    return f"{'#' * section.level} {_marked(_one_line(section.title))}"


def _block(block: Block, pictures: str | None) -> str:
    match block:
        case Paragraph(spans):
            return _line_start("".join(_span(one) for one in spans))
        case Quote(spans):
            return "> " + _line_start("".join(_span(one) for one in spans).strip())
        case Source(text, language):
            return _fenced(text, language)
        case Picture(name, _, says):
            caption = f"*{_cell(says)}*"
            return f"![{name}]({pictures}{name}.svg)\n\n{caption}" if pictures is not None else caption
        case Table(heads, rows):
            head, *lines = (f"| {' | '.join(map(_table_cell, line))} |" for line in (heads, *rows))
            return "\n".join([head, f"|{'---|' * len(heads)}", *lines])
        case Fold(title, blocks):
            inner = "\n\n".join(_block(one, pictures) for one in blocks)
            return f"<details><summary>{escape(_one_line(title))}</summary>\n\n{inner}\n\n</details>"


def _table_cell(cell: Cell) -> str:
    return _BAR.sub(r"\\|", _cell(cell))


def _cell(cell: Cell) -> str:
    if isinstance(cell, str):
        return _marked(_one_line(cut(cell)))
    return "".join(map(_span, cell))


def _span(span: Span) -> str:
    match span:
        case Code(text):
            line = _one_line(cut(text))
            fence = "`" * (_longest_run(line) + 1)
            room = " " if line.startswith("`") or line.endswith("`") else ""
            return f"{fence}{room}{line}{room}{fence}"
        case Link(text, anchor):
            return f"[{_plain(text)}](#{anchor})"
        case _:
            return _marked(span)


def _plain(text: str) -> str:
    return _line_start(_marked(_one_line(text)))


def _marked(text: str) -> str:
    """Text in which nothing is a mark; HTML in it is text too."""
    return _MARKS.sub(lambda found: f"\\{found[0]}", escape(re.sub(r"\s+", " ", shown(text)), quote=False))


def _line_start(text: str) -> str:
    return _AT_START.sub(lambda found: f"{found[1]}{found[2][:-1]}\\{found[2][-1]}", text)


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", shown(text)).strip()


def _fenced(text: str, language: str) -> str:
    lines = "\n".join(cut(line) for line in shown(text).split("\n")).rstrip("\n")
    fence = "`" * max(3, _longest_run(lines) + 1)
    return f"{fence}{language}\n{lines}\n{fence}"


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0)
