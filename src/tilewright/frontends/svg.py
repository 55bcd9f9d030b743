"""The pieces that pictures are drawn of: lines, texts, a page. Nothing here knows what is drawn."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

INK, FAINT, GOOD, DOT, BAD, GREY = "#1f2933", "#d5dbe1", "#0b7a4b", "#2f6fb5", "#c2452d", "#5b6770"


def page(width: float, height: float, title: str, subtitle: str, left: float, body: Iterable[str]) -> str:
    """A whole picture, with a title and a line below it."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
            f'height="{height:g}" font-family="system-ui, sans-serif" font-size="12" role="img">',
            f"<title>{escape(title)}</title>",
            f'<rect width="{width:g}" height="{height:g}" fill="white"/>',
            text(left, 26, title, size=16, anchor="start"),
            text(left, 44, subtitle, colour=GREY, anchor="start"),
            *body,
            "</svg>\n",
        ]
    )


def line(x1: float, y1: float, x2: float, y2: float, colour: str, dashes: str = "") -> str:
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"{dashed}/>'


def text(x: float, y: float, said: str, *, colour: str = INK, anchor: str = "middle", size: int = 12) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}" font-size="{size}">{escape(said)}</text>'
    )


def rectangle(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'


def polyline(points: Iterable[tuple[float, float]], colour: str) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2.5"/>'


def dot(x: float, y: float, colour: str, radius: float = 4) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="{colour}"/>'


def titled(title: str, *marks: str) -> str:
    """Marks that say something when they are pointed at."""
    return f"<g><title>{escape(title)}</title>{''.join(marks)}</g>"
