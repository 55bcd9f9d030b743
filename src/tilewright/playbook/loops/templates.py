"""The templates in `kernels/`, whose holes code generation fills, and the header that their files include."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from string import Template

from tilewright.device_library.definitions import Header, read_header

_FOLDER = Path(__file__).parent.parent / "kernels"
THREADS = 256  # of a block, where a template leaves no choice


@cache
def _template(file: str) -> Template:
    return Template((_FOLDER / f"{file}.cu").read_text())


@cache
def headers() -> tuple[Header, ...]:
    """What the templates have in common, beside the device library."""
    return (read_header("elements.cuh", (_FOLDER / "elements.cuh").read_text()),)


def filled(file: str, **holes: object) -> str:
    """A template with its holes filled; lines that this leaves empty are gone."""
    text = _template(file).substitute(holes)
    return "\n".join(line for line in text.split("\n") if line.strip())
