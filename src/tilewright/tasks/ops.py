"""The op line that a task's kernel files must have."""

from __future__ import annotations

from tilewright.kernel_file import Op, print_op
from tilewright.kernel_file.op_line import op_of_task
from tilewright.records import Task


def task_op(task: Task) -> Op:
    """The op as `compare_op` wants it."""
    return op_of_task(task)


def task_op_line(task: Task) -> str:
    """`layernorm_gelu(x, weight, bias, eps: float = 1e-5) -> y`."""
    return print_op(task_op(task)).removeprefix("op").strip()
