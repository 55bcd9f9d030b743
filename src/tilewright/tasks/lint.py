"""Whether a task's answers prove anything: a kernel that ignores its inputs must not be able to pass."""

from __future__ import annotations

from tilewright.records import Task
from tilewright.reference import Reference
from tilewright.tasks.errors import TaskError
from tilewright.tasks.questions import ANSWER_SECONDS, LINT, LintAnswer, LintRequest

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
