"""Templates as HTML. Whatever is put into one stays text: it is escaped, and characters that nobody sees are shown."""

from __future__ import annotations

import unicodedata
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
_SEEN = "\t\n"


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tilewright.frontends.view", "templates"),
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
    """The same text with signs for control characters and for those that turn the direction of writing: the order of
    what is read must be the order of what is compiled."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_sign(one) if unicodedata.category(one) in ("Cc", "Cf", "Cs") else one for one in text)


def _sign(character: str) -> str:
    code = ord(character)
    if character in _SEEN:
        return character
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else f"[U+{code:04X}]"


def cut(text: str) -> str:
    """A line of a length that can be shown."""
    left = len(text) - _MOST_CHARACTERS
    return text if left <= 0 else f"{text[:_MOST_CHARACTERS]} ... and {left:,} more characters"


def picture(svg: str) -> Markup:
    """A picture of ours, whose own texts are escaped."""
    return Markup(shown(svg))


def percent(fraction: float | None) -> str:
    return "" if fraction is None else f"{fraction:.0%}"
