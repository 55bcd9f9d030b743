"""Requests to the reference's child process, and its answers; the lint of a task."""

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
    unspecified: tuple[str, ...]  # tensors whose values were not given
    numbers: tuple[NumberInput, ...]
    dimensions: tuple[Dimension, ...]  # `varies`: may be dynamic; a `multiple_of` above 1 is kept
    unlink: bool  # whether to look for independent axes among those of one dimension


@dataclass(frozen=True)
class ProbeAnswer:
    tensors: tuple[TensorInput, ...]
    dimensions: tuple[Dimension, ...]
    outputs: tuple[TaskOutput, ...]  # named y0, y1, ...
    assumptions: tuple[str, ...]  # {x} stands for the dimension x
    numbers: tuple[NumberInput, ...] = ()  # with their bounds


@dataclass(frozen=True)
class BoundAnswer:
    dimensions: tuple[Dimension, ...]
    numbers: tuple[NumberInput, ...]
    assumptions: tuple[str, ...]  # {x} stands for the dimension x


@dataclass(frozen=True)
class LintRequest:
    task: Task
    sizes: dict[str, int]


@dataclass(frozen=True)
class LintAnswer:
    mismatch: str  # how the outputs differ from those of the task
    reason: str  # why the task is degenerate
    idle: tuple[str, ...] = ()  # inputs that change no output
    leading: tuple[tuple[str, int], ...] = ()  # as in `Task`
    copied: str = ""  # the input that the first output equals, if that is the reason
    constant: bool = False  # whether the reason is that outputs hardly differ between the drawn inputs


@dataclass(frozen=True)
class DerivativeRequest:
    task: Task
    sizes: dict[str, int]


@dataclass(frozen=True)
class SavedSet:
    """Results and inputs of the forward that, with the incoming gradients, determine the gradients."""

    results: tuple[str, ...]
    inputs: tuple[str, ...]


@dataclass(frozen=True)
class DerivativeAnswer:
    structure: str  # of the returned value: "one" tensor, "flat" tuple, or "nested"
    differentiable: tuple[bool, ...]  # of each result
    by: tuple[str, ...]  # inputs that get a gradient
    cuts: tuple[SavedSet, ...]  # the first saves no result
    autograd_bytes: int | None  # saved by autograd at the task's sizes
    ranges: tuple[tuple[float, float], ...] = ()  # minimum and maximum of each result for the drawn inputs


@dataclass(frozen=True)
class PrintRequest:
    """Asks for Python lines that compute gradients from saved `inputs` and `results` and the incoming `gradients`."""

    task: Task
    sizes: dict[str, int]  # to trace at, all different
    other_sizes: tuple[dict[str, int], ...]  # to check the lines at
    by: tuple[str, ...]
    inputs: tuple[str, ...]
    results: tuple[str, ...]
    gradients: tuple[str, ...]
    labels: dict[str, tuple[str, ...]]  # the dimensions of every input
    known_sizes: dict[str, str]  # dimension -> expression of its size
    dtypes: dict[str, str]  # such as "torch.bfloat16" -> "y.dtype"


@dataclass(frozen=True)
class PrintedGradients:
    lines: tuple[str, ...]  # empty if the graph cannot be printed
    returned: tuple[str, ...]  # variables that hold the gradients


@dataclass(frozen=True)
class ModuleRequest:
    build: str  # a Python expression for the module: `Model(*get_init_inputs())`
    inputs: str  # one for its inputs: `get_inputs()`; "" if shapes were given


@dataclass(frozen=True)
class FoundTensor:
    name: str  # "conv.weight", or "" for an input
    dtype: DType
    shape: tuple[int, ...]
    values: Values | None
    learned: bool = False
    statistic: bool = False  # running statistic of a norm in training mode: written, not read
    structure: str = ""  # such as symmetry, which is lost when elements are drawn independently


@dataclass(frozen=True)
class FoundNumber:
    value: int | float | bool


@dataclass(frozen=True)
class ModuleAnswer:
    parameters: tuple[FoundTensor, ...]
    inputs: tuple[FoundTensor | FoundNumber, ...]
    assumptions: tuple[str, ...]
    forward: tuple[SourceParameter, ...]  # without *args and **kwargs
    held: tuple[str, ...] = ()  # mask buffers that stay in the module


def some_of(names: Sequence[str]) -> str:
    """The names, abbreviated if there are many."""
    return ", ".join(names) if len(names) <= _LISTED else f"{', '.join(names[:2])} and {len(names) - 2} more"


# -- lint --

_LARGEST_ELEMENTS = 1 << 22
_SMALL_SIZES = (48, 40, 56, 24, 72, 88)  # used in turn, rounded to the multiple of the dimension


def lint_reference(task: Task, reference: Reference) -> LintAnswer:
    """Lint the reference by calling it with several sets of inputs.

    Raises `TaskError` if its outputs are not those of the task, and `ReferenceProblem`.
    """
    answer: LintAnswer = reference.call(LINT, LintRequest(task, small_sizes(task)), LintAnswer, ANSWER_SECONDS)
    if answer.mismatch:
        raise TaskError(f"task {task.name}: {answer.mismatch}")
    return answer


def degenerate_reason(answer: LintAnswer) -> str:
    """Why the task is degenerate; "" if it is not."""
    if answer.reason or not answer.idle:
        return answer.reason
    them = "it" if len(answer.idle) == 1 else "them"
    return f"no output depends on {', '.join(answer.idle)}; leave {them} out of the inputs"


def small_sizes(task: Task) -> dict[str, int]:
    """Sizes at which the reference runs quickly: the task's own if small, else with dynamic dimensions made smaller."""
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
    """Halve the largest dynamic size until a call is cheap or no size can be reduced."""
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
