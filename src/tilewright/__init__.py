"""Tilewright: describe a GPU operation, get one CUDA kernel file that runs from PyTorch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilewright.frontends.agents.tools import smolagents_tools
    from tilewright.frontends.api.decorator import kernel
    from tilewright.frontends.api.make import make
    from tilewright.frontends.finding.finding import find
    from tilewright.runtime import load

__version__ = "0.1.0"
_HOMES = {
    "find": "frontends.finding.finding",
    "kernel": "frontends.api.decorator",
    "load": "runtime",
    "make": "frontends.api.make",
    "smolagents_tools": "frontends.agents.tools",
}
__all__ = ["__version__", "find", "kernel", "load", "make", "smolagents_tools"]


def __getattr__(name: str) -> object:
    """What brings torch is imported when it is first asked for."""
    if name in _HOMES:
        return getattr(import_module(f"tilewright.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
