"""What the child is asked about a module's class, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.records import DType, Values

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


@dataclass(frozen=True)
class FoundNumber:
    value: int | float | bool


@dataclass(frozen=True)
class ModuleAnswer:
    parameters: tuple[FoundTensor, ...]
    inputs: tuple[FoundTensor | FoundNumber, ...]
    assumptions: tuple[str, ...]
