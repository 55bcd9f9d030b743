"""A document at a terminal: everything but what is folded, and pictures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.text import Text

from tilewright.frontends.cli.terminal import plain_table
from tilewright.frontends.report import document as doc
from tilewright.frontends.report.rendering import BAR_CELLS, bar

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
        told = [one for one in section.blocks if not isinstance(one, (doc.Fold, doc.Picture))]
        if section.title and told:
            console.print(Text(f"\n{section.title}", style="bold"))
        show(console, told)


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


def _show_table(console: Console, table: doc.Table) -> None:
    made = plain_table(table.heads, table.numbers)
    made.show_header = any(table.heads)
    for column, head in zip(made.columns, table.heads, strict=True):
        column.no_wrap = head in table.whole
    for number, row in enumerate(table.rows):
        tone = table.tones[number] if table.tones else doc.Tone.PLAIN
        made.add_row(*map(cell_text, row), style=_STYLES[tone])
    if console.is_terminal:
        console.print(made)
        return
    # In a file or a pipe no cell need be broken, and no line be filled up.
    width, console.width = console.width, _WIDEST
    with console.capture() as captured:
        console.print(made)
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
    parts = [(one.text, _STYLES[one.tone]) if isinstance(one, doc.Mark) else _plain_span(one) for one in spans]
    return Text.assemble(*parts, style=style)


def _plain_span(span: doc.Span) -> str:
    return span if isinstance(span, str) else span.text
