"""A candidate's text as a kernel file of the task, or what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.kernel_file import (
    DoesNotApply,
    KernelFile,
    KernelFileError,
    Problem,
    compare_op,
    compare_out,
    evaluate,
    mend,
)
from tilewright.kernel_file.mend import apply_mends
from tilewright.kernel_file.task_op import op_of_task
from tilewright.records import BadPlan, PlanProblem, Task


def read_kernel(text: str, task: Task) -> KernelFile | BadPlan:
    """Parse the text, mend what has one mechanical mend, and compare it with the task's op and outputs.

    The file returned has the mended text. Whether it takes the task's own sizes is not asked here.
    """
    try:
        file = mend(text, allow_library=task.allow_library).file
        problems = compare_op(file, op_of_task(task))
        mended, applied = apply_mends(file.text, problems)
        if applied:
            file = mend(mended, allow_library=task.allow_library).file
            problems = compare_op(file, op_of_task(task))
        problems = problems or _out_problems(file, task)
    except KernelFileError as error:
        problems = error.problems
    return bad_plan(problems, text) if problems else file


def _out_problems(file: KernelFile, task: Task) -> tuple[Problem, ...]:
    try:
        evaluation = evaluate(file, task.arguments(), task.profile)
    except DoesNotApply:
        return ()
    return compare_out(evaluation, task.output_specs())


def bad_plan(problems: Iterable[Problem], text: str) -> BadPlan:
    lines = text.split("\n")
    return BadPlan(
        tuple(
            PlanProblem(
                line=one.line,
                column=one.column,
                code=one.code.value,
                message=one.found,
                remedy=one.remedy,
                source_line=lines[one.line - 1] if 0 < one.line <= len(lines) else "",
            )
            for one in problems
        )
    )
