"""What the reference's process is asked on the way to a task, and what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.records import Dimension, DType, NumberInput, Task, TaskOutput, TensorInput, Values
from tilewright.tasks.reading.python_source import SourceParameter

ANSWER_SECONDS = 120.0
PROBE = "tilewright.tasks.child.probing:probe"
BOUND = "tilewright.tasks.child.probing:bound"
LINT = "tilewright.tasks.child.lint_run:run_lint"
DESCRIBE = "tilewright.tasks.child.module_run:describe"
DIFFERENTIATE = "tilewright.tasks.child.differentiation:differentiate"
PRINT_GRADIENTS = "tilewright.tasks.child.gradient_printing:printed"
_LISTED = 4


@dataclass(frozen=True)
class ProbeRequest:
    tensors: tuple[TensorInput, ...]
    unsaid: tuple[str, ...]  # tensors whose values nobody said
    numbers: tuple[NumberInput, ...]
    dimensions: tuple[Dimension, ...]  # `varies`: whether it may be tried; a multiple above 1 is believed
    unlink: bool  # whether axes of one dimension may turn out to be independent


@dataclass(frozen=True)
class ProbeAnswer:
    tensors: tuple[TensorInput, ...]
    dimensions: tuple[Dimension, ...]
    outputs: tuple[TaskOutput, ...]  # called y0, y1, ...
    assumptions: tuple[str, ...]  # in which {x} is the dimension x
    numbers: tuple[NumberInput, ...] = ()  # with the bounds that were found


@dataclass(frozen=True)
class BoundAnswer:
    dimensions: tuple[Dimension, ...]
    numbers: tuple[NumberInput, ...]
    assumptions: tuple[str, ...]  # in which {x} is the dimension x


@dataclass(frozen=True)
class LintRequest:
    task: Task
    sizes: dict[str, int]


@dataclass(frozen=True)
class LintAnswer:
    mismatch: str  # where the reference returns something else than the task says
    reason: str  # why answers prove nothing
    idle: tuple[str, ...] = ()  # tensors without influence on any output
    leading: tuple[tuple[str, int], ...] = ()  # as in a task
    copied: str = ""  # the tensor that the first output equals, where that is the reason
    constant: bool = False  # whether the reason is that answers hardly differ, for the values that were drawn


@dataclass(frozen=True)
class DerivativeRequest:
    task: Task
    sizes: dict[str, int]


@dataclass(frozen=True)
class Cut:
    """What is enough for the gradients, beside those of the results: results and inputs of the function."""

    results: tuple[str, ...]
    inputs: tuple[str, ...]


@dataclass(frozen=True)
class DerivativeAnswer:
    structure: str  # of what the function returns: one tensor, a flat tuple, or nested
    differentiable: tuple[bool, ...]  # of each result
    by: tuple[str, ...]  # inputs that get a gradient
    cuts: tuple[Cut, ...]  # the first keeps no result
    autograd_bytes: int | None  # at the task's own sizes
    ranges: tuple[tuple[float, float], ...] = ()  # between which each result lies, for the values that were drawn


@dataclass(frozen=True)
class PrintRequest:
    """The gradients `by` inputs, in lines that use the kept `inputs` and `results` and the results' `gradients`."""

    task: Task
    sizes: dict[str, int]  # to trace at, all different
    other_sizes: tuple[dict[str, int], ...]  # at which the lines must be right too
    by: tuple[str, ...]
    inputs: tuple[str, ...]
    results: tuple[str, ...]
    gradients: tuple[str, ...]
    labels: dict[str, tuple[str, ...]]  # the dimensions of every input
    known_sizes: dict[str, str]  # a dimension -> what its size is in the lines
    dtypes: dict[str, str]  # such as "torch.bfloat16" -> "y.dtype"


@dataclass(frozen=True)
class PrintedGradients:
    lines: tuple[str, ...]  # empty where they cannot be had
    returned: tuple[str, ...]  # the gradients, by name


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
    forward: tuple[SourceParameter, ...]  # without *args and **kwargs
    held: tuple[str, ...] = ()  # masks that stay inside


def some_of(names: Sequence[str]) -> str:
    """The names in a sentence; a network has hundreds."""
    return ", ".join(names) if len(names) <= _LISTED else f"{', '.join(names[:2])} and {len(names) - 2} more"
