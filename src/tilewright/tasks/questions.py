"""What the reference's process is asked on the way to a task, and what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.records import Dimension, DType, NumberInput, Task, TaskOutput, TensorInput, Values
from tilewright.reference import Reference
from tilewright.tasks.errors import TaskError
from tilewright.tasks.reading.python_source import SourceParameter

ANSWER_SECONDS = 120.0
PROBE = "tilewright.tasks.child.probing:probe"
BOUND = "tilewright.tasks.child.probing:bound"
LINT = "tilewright.tasks.child.lint_run:run_lint"
DESCRIBE = "tilewright.tasks.child.module_run:describe"
DIFFERENTIATE = "tilewright.tasks.child.differentiation:differentiate"
PRINT_GRADIENTS = "tilewright.tasks.child.differentiation:printed"
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


# -- whether a task's answers prove anything: --

_LARGEST_ELEMENTS = 1 << 22
_SMALL_SIZES = (48, 40, 56, 24, 72, 88)  # in turn, rounded to the multiple a dimension needs


def examine(task: Task, reference: Reference) -> LintAnswer:
    """What calling the reference with several sets of inputs shows.

    Raises `TaskError` where the reference does not return what the task says, and `ReferenceProblem`.
    """
    answer: LintAnswer = reference.call(LINT, LintRequest(task, small_sizes(task)), LintAnswer, ANSWER_SECONDS)
    if answer.mismatch:
        raise TaskError(f"task {task.name}: {answer.mismatch}")
    return answer


def finding(answer: LintAnswer) -> str:
    """Why answers prove nothing; "" where they do."""
    if answer.reason or not answer.idle:
        return answer.reason
    them = "it" if len(answer.idle) == 1 else "them"
    return f"no output depends on {', '.join(answer.idle)}; leave {them} out of the inputs"


def small_sizes(task: Task) -> dict[str, int]:
    """Sizes at which the reference is quick: the task's own where they are small, else varying ones made smaller."""
    sizes = task.sizes
    if _elements(task, sizes) <= _LARGEST_ELEMENTS // 16:
        return sizes
    for number, dimension in enumerate(one for one in task.free if one.varies):
        step = dimension.multiple_of
        wanted = max(_SMALL_SIZES[number % len(_SMALL_SIZES)] // step * step, 2 * step, dimension.at_least)
        small = -(-wanted // step) * step
        smaller = task.complete({**sizes, dimension.name: min(dimension.size, small)})
        sizes = smaller if task.is_sound(smaller) else sizes
    return _cut_down(task, sizes)


def _cut_down(task: Task, sizes: dict[str, int]) -> dict[str, int]:
    """The largest varying size halved until a call is cheap; sizes that are fixed may be large by themselves."""
    stuck: set[str] = set()
    while _elements(task, sizes) > _LARGEST_ELEMENTS:
        movable = [one for one in task.free if one.varies and one.name not in stuck]
        if not movable:
            break
        largest = max(movable, key=lambda one: sizes[one.name] // one.multiple_of)
        count = sizes[largest.name] // largest.multiple_of // 2
        smaller = task.complete({**sizes, largest.name: count * largest.multiple_of})
        if count >= 2 and task.is_sound(smaller):
            sizes = smaller
        else:
            stuck.add(largest.name)
    return sizes


def _elements(task: Task, sizes: dict[str, int]) -> int:
    return sum(spec.numel for spec in (*task.specs(sizes).values(), *task.output_specs(sizes).values()))
