"""Renders this package's templates. An undefined name in a template is an error."""

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
        auto_reload=False,  # a run keeps the texts it started with
    )
    environment.globals["idiom"] = idiom
    return environment


@cache
def idiom(name: str) -> str:
    """A tested kernel file of `idioms/`."""
    return resources.files("tilewright.prompts").joinpath("idioms", f"{name}.cu").read_text(encoding="utf-8").rstrip()


def render(name: str, **values: object) -> str:
    """Render a template, without leading and trailing blanks."""
    return _environment().get_template(f"{name}.md.j2").render(**values).strip()


def render_with_idioms(name: str, **values: object) -> tuple[str, tuple[str, ...]]:
    """Render a template; its variable `idioms` names the patterns to show after it."""
    module = _environment().get_template(f"{name}.md.j2").make_module(values)
    return str(module).strip(), tuple(getattr(module, "idioms", ()))
