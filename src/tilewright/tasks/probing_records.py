"""What `probing` is asked in the child, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.records import DType, NumberInput, SizeFormula, Values

PROBE = "tilewright.tasks.probing:probe"


@dataclass(frozen=True)
class ProbeTensor:
    name: str
    dtype: DType
    labels: tuple[str, ...]  # one per axis; axes of one label have one size
    values: Values | None  # None: the usual for the dtype


@dataclass(frozen=True)
class ProbedDimension:
    label: str
    size: int
    varies: bool
    multiple_of: int
    formula: SizeFormula | None = None  # of other labels, from which its size follows
    at_least: int = 1


@dataclass(frozen=True)
class ProbeRequest:
    tensors: tuple[ProbeTensor, ...]
    numbers: tuple[NumberInput, ...]
    dimensions: tuple[ProbedDimension, ...]  # `varies`: whether it may be tried; a multiple above 1 is believed
    unlink: bool  # whether axes of one label may turn out to be independent


@dataclass(frozen=True)
class ProbedTensor:
    labels: tuple[str, ...]
    values: Values
    in_place: bool


@dataclass(frozen=True)
class ProbedOutput:
    dtype: DType
    shape: tuple[str | int, ...]


@dataclass(frozen=True)
class ProbeAnswer:
    tensors: tuple[ProbedTensor, ...]
    dimensions: tuple[ProbedDimension, ...]
    outputs: tuple[ProbedOutput, ...]
    assumptions: tuple[str, ...]
