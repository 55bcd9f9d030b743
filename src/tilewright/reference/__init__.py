"""Somebody's PyTorch code, run in a limited child process: the truth a kernel is compared with."""

from tilewright.reference.protocol import AnyReference, ReferenceProblem
from tilewright.reference.reference import Reference, ReferenceLimits, start_ahead

__all__ = ["AnyReference", "Reference", "ReferenceLimits", "ReferenceProblem", "start_ahead"]
