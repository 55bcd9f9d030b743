"""The contract an author is given: what a kernel file is and what it may do, as text for a prompt."""

from __future__ import annotations

from functools import cache
from importlib import resources


@cache
def contract() -> str:
    """The text of contract.md; a test keeps it true to the parser."""
    return resources.files("tilewright.kernel_file").joinpath("contract.md").read_text(encoding="utf-8")
