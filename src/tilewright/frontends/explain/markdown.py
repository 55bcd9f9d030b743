"""A lesson as Markdown, as GitHub shows it. What a run says stays text: marks are escaped, fences are long enough."""

from __future__ import annotations

import re
from html import escape

from tilewright.frontends.explain.lesson import (
    Block,
    Cell,
    Code,
    Fold,
    Lesson,
    Link,
    Paragraph,
    Picture,
    Quote,
    Section,
    Source,
    Span,
    Table,
)
from tilewright.frontends.view.templating import cut, shown

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
