"""A document at a terminal, as Markdown as GitHub shows it, and as HTML.

Whatever is put in stays text: it is escaped, and characters that nobody sees are shown.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tilewright.frontends.report import document as doc
from tilewright.store import write_text

BAR_CELLS = 16
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def bar(share: float, cells: int = BAR_CELLS) -> str:
    eighths = max(1, round(min(share, 1.0) * cells * 8))
    return _EIGHTHS[8] * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")


# -- as Markdown --

_MARKS = re.compile(r"[\\`*\[\]|~#]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_STROKE = re.compile(r"(?<!\\)\|")  # which ends a cell even within code
_AT_START = re.compile(r"^(\s*)([-+=:>]|\d+[.)](?=\s))")
_IN_BOLD = (doc.Tone.STRONG, doc.Tone.GOOD, doc.Tone.FAIR, doc.Tone.BAD)


def markdown(document: doc.Document, pictures: str | None) -> str:
    """`pictures`: what stands before a picture's file name in a link; None where there are no such files."""
    parts = [f"# {_plain(document.title)}"]
    for section in document.sections:
        parts += [f"{'#' * section.level} {_marked(_one_line(section.title))}"] if section.title else []
        parts += [_block(block, pictures) for block in section.blocks]
    if document.glossary:
        parts.append("## Glossary")
        parts += [f'<a id="{one.anchor}"></a>**{_plain(one.term)}**: {one.meaning}' for one in document.glossary]
    return "\n\n".join(part for part in parts if part) + "\n"


def _block(block: doc.Block, pictures: str | None) -> str:
    match block:
        case doc.Paragraph(spans):
            return _line_start("".join(map(_span, spans)))
        case doc.Quote(spans):
            return "> " + _line_start("".join(map(_span, spans)).strip())
        case doc.Items(items):
            return "\n".join(f"- {_line_start(_cell(one))}" for one in items)
        case doc.Source(text, language):
            return _fenced(text, language)
        case doc.Excerpt(lines):
            notes = [note for one in lines for note in one.notes]
            code = "\n".join(f"{one.number or '-':>4} | {one.text.rstrip()}" for one in lines)
            return "\n\n".join([_fenced(code, "cuda"), *([_block(doc.Items(tuple(notes)), pictures)] if notes else [])])
        case doc.Picture(name, _, says):
            shown = [f"![{name}]({pictures}{name}.svg)"] if pictures is not None else []
            return "\n\n".join([*shown, *([f"*{_cell(says)}*"] if says else [])])
        case doc.Table(heads, rows):
            head, *others = (f"| {' | '.join(map(_table_cell, line))} |" for line in (heads, *rows))
            return "\n".join([head, f"|{'---|' * len(heads)}", *others])
        case doc.Fold(title, blocks):
            inner = "\n\n".join(_block(one, pictures) for one in blocks)
            return f"<details><summary>{escape(_one_line(title))}</summary>\n\n{inner}\n\n</details>"


def _table_cell(cell: doc.Cell) -> str:
    return _STROKE.sub(r"\\|", _cell(cell))


def _cell(cell: doc.Cell) -> str:
    match cell:
        case doc.Bar(share):
            return bar(share)
        case str():
            return _marked(_one_line(cut(cell)))
    return "".join(map(_span, cell))


def _span(span: doc.Span) -> str:
    match span:
        case doc.Code(text):
            line = _one_line(cut(text))
            fence = "`" * (_longest_run(line) + 1)
            room = " " if line.startswith("`") or line.endswith("`") else ""
            return f"{fence}{room}{line}{room}{fence}"
        case doc.Link(text, anchor, file):
            return f"[{_plain(text)}]({file or f'#{anchor}'})"
        case doc.Mark(text, tone):
            return f"**{_marked(_one_line(text))}**" if tone in _IN_BOLD and text.strip() else _marked(text)
        case _:
            return _marked(span)


def _plain(text: str) -> str:
    return _line_start(_marked(_one_line(text)))


def _marked(text: str) -> str:
    """Text in which nothing is a mark; HTML in it is text too."""
    return _MARKS.sub(lambda found: f"\\{found[0]}", escape(re.sub(r"\s+", " ", visible(text)), quote=False))


def _line_start(text: str) -> str:
    return _AT_START.sub(lambda found: f"{found[1]}{found[2][:-1]}\\{found[2][-1]}", text)


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", visible(text)).strip()


def _fenced(text: str, language: str) -> str:
    lines = "\n".join(cut(line) for line in visible(text).split("\n")).rstrip("\n")
    fence = "`" * max(3, _longest_run(lines) + 1)
    return f"{fence}{language}\n{lines}\n{fence}"


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0)


# -- as HTML --

# Nothing but this server's own script and sheet of styles, and no address but its own.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'self'"
)
_MOST_CHARACTERS = 2000  # of one line; a browser lays out longer ones slowly
# Control characters but tab and line feed, halves of characters, and what is of no width or turns the writing round.
_UNSEEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    r"\ud800-\udfff\U000e0000-\U000e007f]"
)


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tilewright.frontends.report", "templates"),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        finalize=lambda value: visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "cut": cut,
        "cut_lines": lambda text: "\n".join(map(cut, text.split("\n"))),
        "picture": picture,
        "kind": lambda part: type(part).__name__,
    }
    return environment


def render(template: str, **values: Any) -> str:
    return _environment().get_template(f"{template}.html.j2").render(values)


def visible(text: str) -> str:
    """The same text, with their codes in place of characters that nobody sees. Some of these turn the direction of
    writing, and what is read must be what is compiled."""
    return _UNSEEN.sub(lambda found: f"[U+{ord(found[0]):04X}]", text)


def cut(text: str) -> str:
    """A line of a length that can be shown."""
    left = len(text) - _MOST_CHARACTERS
    return text if left <= 0 else f"{text[:_MOST_CHARACTERS]} ... and {left:,} more characters"


def picture(svg: str) -> Markup:
    """A picture of ours, whose own texts are escaped."""
    return Markup(visible(svg))


@cache
def _styles() -> str:
    return (resources.files("tilewright.frontends.report") / "static" / "style.css").read_text("utf-8")


def encoded(page: str) -> bytes:
    return page.encode("utf-8", "replace")


def whole_page(document: doc.Document) -> str:
    """One HTML file that needs nothing beside it."""
    return render("document_file", document=document, styles=_styles())


def write_page(document: doc.Document, output: Path) -> int:
    """As the file's name says. Returns how many pictures there are beside it."""
    if output.suffix.lower() in (".html", ".htm"):
        output.write_bytes(encoded(whole_page(document)))
        return 0
    place = pictures_folder(output)
    if document.pictures:
        place.mkdir(exist_ok=True)
    for one in document.pictures:
        write_text(place / f"{one.name}.svg", one.svg)
    write_text(output, markdown(document, f"{place.name}/"))
    return len(document.pictures)


def pictures_folder(output: Path) -> Path:
    """The folder beside a Markdown file that holds its pictures."""
    return output.with_name(f"{output.stem}_pictures")


# -- at a terminal --

_STYLES = {
    doc.Tone.PLAIN: "",
    doc.Tone.STRONG: "bold",
    doc.Tone.GOOD: "bold green",
    doc.Tone.FAIR: "yellow",
    doc.Tone.BAD: "bold red",
    doc.Tone.FAINT: "dim",
}
_WIDEST = 10_000
_CHANGES = {"+": "green", "-": "red", "@": "cyan"}


def show(console: Console, shown: doc.Document | Iterable[doc.Block]) -> None:
    """Everything but what is folded, and pictures."""
    if not isinstance(shown, doc.Document):
        for block in shown:
            _show_block(console, block)
        return
    if shown.title:
        console.print(Text(shown.title, style="bold"))
    for section in shown.sections:
        blocks = [one for one in section.blocks if not isinstance(one, (doc.Fold, doc.Picture))]
        if section.title and blocks:
            console.print(Text(f"\n{section.title}", style="bold"))
        show(console, blocks)


def _show_block(console: Console, block: doc.Block) -> None:
    match block:
        case doc.Paragraph(spans, tone):
            console.print(_line(spans, _STYLES[tone]), soft_wrap=True)
        case doc.Quote(spans):
            console.print(Text.assemble("  ", _line(spans)), soft_wrap=True)
        case doc.Items(items):
            for item in items:
                console.print(Text.assemble("  - ", cell_text(item)), soft_wrap=True)
        case doc.Source(text, language):
            for line in text.rstrip("\n").split("\n"):
                style = _CHANGES.get(line[:1], "") if language == "diff" else ""
                console.print(Text(line, style=style), soft_wrap=True)
        case doc.Excerpt(lines):
            _show_excerpt(console, lines)
        case doc.Table():
            _show_table(console, block)


def _show_excerpt(console: Console, lines: Sequence[doc.Line]) -> None:
    width = max(len(str(one.number or "-")) for one in lines)
    for one in lines:
        text = one.text.expandtabs(4).rstrip()
        console.print(Text(f"  {one.number or '-':>{width}} | {text}"), soft_wrap=True)
        if one.marked:
            indent = len(text) - len(text.lstrip())
            console.print(Text(f"  {'':>{width}} | {'':{indent}}{'^' * max(len(text.strip()), 1)}", style="red"))
        for note in one.notes:
            console.print(Text(f"  {'':>{width}}   {note}"), soft_wrap=True)


def _show_table(console: Console, shown: doc.Table) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold", show_header=any(shown.heads))
    for head in shown.heads:
        table.add_column(head, justify="right" if head in shown.numbers else "left", no_wrap=head in shown.whole)
    for number, row in enumerate(shown.rows):
        table.add_row(*map(cell_text, row), style=_STYLES[shown.tones[number]] if shown.tones else "")
    if console.is_terminal:
        console.print(table)
        return
    # In a file or a pipe no cell need be broken, and no line be filled up.
    width, console.width = console.width, _WIDEST
    with console.capture() as captured:
        console.print(table)
    console.width = width
    for line in captured.get().splitlines():
        console.print(Text(line.rstrip()), soft_wrap=True)


def cell_text(cell: doc.Cell) -> Text:
    """A cell of a table at a terminal."""
    match cell:
        case doc.Bar(share):
            return Text(f"{bar(share):<{BAR_CELLS}}", no_wrap=True)
        case str():
            return Text(cell)
    return _line(cell)


def _line(spans: Sequence[doc.Span], style: str = "") -> Text:
    parts = [(doc.text_of(one), _STYLES[one.tone] if isinstance(one, doc.Mark) else "") for one in spans]
    return Text.assemble(*parts, style=style)


def plain_text(shown: doc.Document | Iterable[doc.Block], width: int = 160) -> str:
    """What a terminal would show, without colours."""
    stream = io.StringIO()
    show(Console(file=stream, width=width, highlight=False, color_system=None, soft_wrap=True), shown)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()).strip()
