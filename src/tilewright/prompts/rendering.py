"""Templates from this package's files. A name that a template uses and nobody gives is an error, never a blank."""

from __future__ import annotations

from functools import cache
from importlib import resources

import jinja2


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tilewright.prompts", "templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=False,
        autoescape=False,
        auto_reload=False,  # a run under way keeps the texts it began with
    )
    environment.globals["idiom"] = idiom
    return environment


@cache
def idiom(name: str) -> str:
    """A tested kernel file of `idioms/`, without the blank at its end."""
    return resources.files("tilewright.prompts").joinpath("idioms", f"{name}.cu").read_text(encoding="utf-8").rstrip()


def render(name: str, **values: object) -> str:
    """A template as text, blanks at its ends removed."""
    return _environment().get_template(f"{name}.md.j2").render(**values).strip()


def render_with_idioms(name: str, **values: object) -> tuple[str, tuple[str, ...]]:
    """A template that names, in `idioms`, the patterns to show after it."""
    module = _environment().get_template(f"{name}.md.j2").make_module(values)
    return str(module).strip(), tuple(getattr(module, "idioms", ()))
