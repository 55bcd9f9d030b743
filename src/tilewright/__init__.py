"""Tilewright: describe a GPU operation, get one CUDA kernel file that runs from PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilewright.runtime import load

__version__ = "0.1.0"
__all__ = ["__version__", "load"]


def __getattr__(name: str) -> object:
    """`load` brings torch, so it is imported when it is first asked for."""
    if name == "load":
        from tilewright.runtime import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
