"""Problems of kernel files: code, location, message, remedy."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tilewright.kernel_file.syntax import Span
from tilewright.records import Carried


class Code(str, Enum):
    """The codes of docs/kernel-file.md's table of errors."""

    SYNTAX = "syntax"
    UNKNOWN_DIRECTIVE = "unknown-directive"
    UNKNOWN_FUNCTION = "unknown-function"
    OP_FIRST = "op-first"
    NO_LAUNCH = "no-launch"
    PLAN_AFTER_CODE = "plan-after-code"
    VERSION = "version"
    PDL = "pdl"
    LIBRARY = "library"
    UNKNOWN_NAME = "unknown-name"
    NAME_TAKEN = "name-taken"
    UNUSED = "unused"
    TYPE = "type"
    TASK_MISMATCH = "task-mismatch"
    OUT = "out"
    CONST = "const"
    VALUE = "value"
    LIMIT = "limit"
    MAP = "map"
    ARGUMENT = "argument"
    INCLUDE = "include"
    HOST_CODE = "host-code"
    DEVICE_STATE = "device-state"
    DEVICE_CALL = "device-call"  # in records of earlier versions; such calls are found in the PTX
    DOES_NOT_APPLY = "does-not-apply"


@dataclass(frozen=True)
class Autofix:
    """The one mechanical fix of a problem: replace `length` characters at a place by `replacement`."""

    line: int  # 1-based
    column: int  # 1-based
    length: int
    replacement: str

    @classmethod
    def of(cls, at: Span, replacement: str | None) -> Autofix | None:
        """Replace a span; None without a replacement."""
        return None if replacement is None else cls(*at, replacement)

    @classmethod
    def between(cls, first: Span, last: Span, replacement: str | None) -> Autofix | None:
        """Replace everything from one span to another, if on one line."""
        if first.line != last.line:
            return None
        return cls.of(first._replace(length=last.column + last.length - first.column), replacement)


@dataclass(frozen=True)
class Problem:
    """One problem. Lines and columns are 1-based; 0 for the whole file."""

    code: Code
    line: int
    column: int
    found: str  # the message
    remedy: str  # how to correct it
    autofix: Autofix | None = None

    @classmethod
    def at(cls, span: Span, code: Code, found: str, remedy: str, autofix: Autofix | None = None) -> Problem:
        return cls(code, span.line, span.column, found, remedy, autofix)

    def __str__(self) -> str:
        place = f"{self.line}:{self.column}: " if self.line else ""
        return f"{place}{self.code.value}: {self.found}; {self.remedy}"


class KernelFileError(Carried, ValueError):
    """An invalid kernel file, with all problems in file order."""

    def __init__(self, problems: tuple[Problem, ...], name: str = "kernel file") -> None:
        self.problems = problems
        self.name = name
        super().__init__("\n".join(f"{name}:{problem}" for problem in problems))


class DoesNotApply(Exception):
    """Not an error: the file does not take this call, with the line that rules it out."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        super().__init__(str(problem))
