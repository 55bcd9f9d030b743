"""Tilewright: describe a GPU operation, get one CUDA kernel file that runs from PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilewright.frontends.agents.serving import smolagents_tools
    from tilewright.frontends.api import make
    from tilewright.frontends.decorated import kernel
    from tilewright.frontends.finding.finding import find
    from tilewright.runtime import load

__version__ = "0.1.0"
__all__ = ["__version__", "find", "kernel", "load", "make", "smolagents_tools"]


def __getattr__(name: str) -> object:
    """What brings torch is imported when it is first asked for."""
    if name == "load":
        from tilewright.runtime import load

        return load
    if name == "make":
        from tilewright.frontends.api import make

        return make
    if name == "find":
        from tilewright.frontends.finding.finding import find

        return find
    if name == "kernel":
        from tilewright.frontends.decorated import kernel

        return kernel
    if name == "smolagents_tools":
        from tilewright.frontends.agents.serving import smolagents_tools

        return smolagents_tools
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
