"""Templates as HTML. Whatever is put into one stays text: it is escaped, and characters that nobody sees are shown."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import jinja2
from markupsafe import Markup

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
        finalize=_finalized,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"cut": cut, "picture": picture, "percent": percent}
    return environment


def render(template: str, **values: Any) -> str:
    return _environment().get_template(f"{template}.html.j2").render(values)


def _finalized(value: Any) -> Any:
    return shown(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def shown(text: str) -> str:
    """The same text, with their codes in place of characters that nobody sees. Some of these turn the direction of
    writing, and what is read must be what is compiled."""
    return _UNSEEN.sub(lambda found: f"[U+{ord(found[0]):04X}]", text)


def cut(text: str) -> str:
    """A line of a length that can be shown."""
    left = len(text) - _MOST_CHARACTERS
    return text if left <= 0 else f"{text[:_MOST_CHARACTERS]} ... and {left:,} more characters"


def picture(svg: str) -> Markup:
    """A picture of ours, whose own texts are escaped."""
    return Markup(shown(svg))


def percent(fraction: float | None) -> str:
    return "" if fraction is None else f"{fraction:.0%}"
