"""A candidate's text as a kernel file of the task, or what is wrong with it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tilewright.kernel_file import (
    DoesNotApply,
    KernelFile,
    KernelFileError,
    Op,
    Problem,
    apply_autofixes,
    autofix,
    compare_op,
    compare_out,
    evaluate,
    op_of_task,
    parse,
)
from tilewright.kernel_file.words import DIRECTIVES
from tilewright.records import BadPlan, PlanProblem, Task

_PLAN_LINE = re.compile(rf"(\s*//!\s*(?:(?:{'|'.join(DIRECTIVES)})\b)?)(.*)")  # the directive's word, what follows it
_NAME = re.compile(r"(?<![\w.])[A-Za-z_]\w*")


def read_kernel(text: str, task: Task) -> KernelFile | BadPlan:
    """Parse the text, fix what has one mechanical fix, and compare it with the task's op and outputs.

    Results that are only called otherwise are renamed in the plan.

    The file returned has the fixed text. Whether it takes the task's own sizes is not asked here.
    """
    try:
        file = autofix(text, allow_library=task.allow_library)
        file = _with_results_of(file, op_of_task(task), task.allow_library)
        problems = compare_op(file, op_of_task(task))
        fixed = apply_autofixes(file.text, problems)
        if fixed != file.text:
            file = autofix(fixed, allow_library=task.allow_library)
            problems = compare_op(file, op_of_task(task))
        problems = problems or _out_problems(file, task)
    except KernelFileError as error:
        problems = error.problems
    return bad_plan(problems, text) if problems else file


def _with_results_of(file: KernelFile, op: Op, allow_library: bool) -> KernelFile:
    """The file with its results called as the task calls them: their names are the plan's own affair."""
    written = file.plan.op.results
    lines = file.text.split("\n")
    plan = {number: found for number, line in enumerate(lines) if (found := _PLAN_LINE.match(line))}
    used = {word for found in plan.values() for word in re.findall(r"\w+", found[2])}
    if written == op.results or len(written) != len(op.results) or used & ({*op.results} - {*written}):
        return file
    names = dict(zip(written, op.results, strict=True))
    for number, line in plan.items():
        lines[number] = line[1] + _NAME.sub(lambda found: names.get(found[0], found[0]), line[2])
    try:
        return parse("\n".join(lines), file.name, allow_library=allow_library)
    except KernelFileError:
        return file


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
