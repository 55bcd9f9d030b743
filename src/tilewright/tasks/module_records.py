"""What the child is asked about a module's class, and what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.records import DType, Values

_LISTED = 4
DESCRIBE = "tilewright.tasks.module_run:describe"


@dataclass(frozen=True)
class ModuleRequest:
    build: str  # a Python expression that makes the module: `Model(*get_init_inputs())`
    inputs: str  # one that makes its inputs: `get_inputs()`; "" where shapes are given


@dataclass(frozen=True)
class FoundTensor:
    name: str  # "conv.weight", or "" for an input
    dtype: DType
    shape: tuple[int, ...]
    values: Values | None
    learned: bool = False
    statistic: bool = False  # of a norm in training mode, which writes it and does not read it
    structure: str = ""  # what is lost when its elements are drawn one by one


@dataclass(frozen=True)
class FoundNumber:
    value: int | float | bool


@dataclass(frozen=True)
class ModuleAnswer:
    parameters: tuple[FoundTensor, ...]
    inputs: tuple[FoundTensor | FoundNumber, ...]
    assumptions: tuple[str, ...]


def some_of(names: Sequence[str]) -> str:
    """The names in a sentence; a network has hundreds."""
    return ", ".join(names) if len(names) <= _LISTED else f"{', '.join(names[:2])} and {len(names) - 2} more"
