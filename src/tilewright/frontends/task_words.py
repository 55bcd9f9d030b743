"""A task in a few lines: the op, what it takes and gives, which sizes vary, what was assumed."""

from __future__ import annotations

from tilewright.records import Dimension, NumberInput, Task
from tilewright.tasks import task_op_line


def task_words(task: Task) -> list[str]:
    """Lines for a person, who sees here that a result is of another dtype, or a size fixed, than was meant."""
    lines = [task_op_line(task), f"{', '.join(input_words(task))}{_results(task)}", *_sizes(task)]
    lines += [f"assumed: {assumption}" for assumption in task.assumptions]
    return lines


def input_words(task: Task) -> list[str]:
    """`x = bf16[4096, 1024]`, `eps = 1e-05`."""
    specs = task.specs()
    return [
        f"{one.name} = {one.value if isinstance(one, NumberInput) else specs.get(one.name, 'None')}"
        for one in task.inputs
    ]


def _results(task: Task) -> str:
    results = ", ".join(f"{name} = {spec}" for name, spec in task.output_specs().items())
    return f" -> {results}" if results else ""


def _sizes(task: Task) -> list[str]:
    """Which dimensions may have other sizes in a call, and which may not; those of size 1 go without saying."""
    varying = [f"{one.name}{_limits(one)}" for one in task.free if one.varies]
    follow = [f"{one.name} = {one.formula}" for one in task.dimensions if one.varies and one.formula is not None]
    fixed = [f"{one.name} = {one.size}" for one in task.dimensions if not one.varies and one.size != 1]
    parts = [f"any {', '.join(varying)}"] if varying else []
    parts += [f"then {', '.join(follow)}"] if follow else []
    parts += [f"always {', '.join(fixed)}"] if fixed else []
    return ["; ".join(parts)] if parts else []


def _limits(one: Dimension) -> str:
    limits = [f"a multiple of {one.multiple_of}"] if one.multiple_of > 1 else []
    limits += [f"at least {one.at_least}"] if one.at_least > 1 else []
    return f" ({', '.join(limits)})" if limits else ""
