"""The text files of an export, rendered from templates; a name that a template misses is an error."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

FOLDER = Path(__file__).parent / "templates"


@lru_cache(maxsize=1)
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(FOLDER), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True,
    )  # fmt: skip


def rendered(template: str, **values: Any) -> str:
    """The template `package/_op.py` (its file ends in .j2) with these values."""
    return _environment().get_template(f"{template}.j2").render(**values)
