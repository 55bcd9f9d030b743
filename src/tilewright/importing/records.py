"""What an import is asked, what it finds, and what it could not carry."""

from __future__ import annotations

from dataclasses import dataclass


class ImportProblem(ValueError):
    """Something that cannot be brought into a kernel file; the message names the construct and its place."""


class Contradiction(ImportProblem):
    """What is said of a launcher's arguments, where it cannot be."""


@dataclass(frozen=True)
class HostRequest:
    """A host program that serves one function, and the calls to make; asked of the child."""

    source: str
    calls: tuple[str, ...]  # each a line: multiprocessors, then an argument per parameter
    seconds: float = 60.0


@dataclass(frozen=True)
class HostAnswer:
    said: str  # what the program wrote; empty where it could not be compiled
    diagnostics: str  # what the compiler complained of, or how the program died
