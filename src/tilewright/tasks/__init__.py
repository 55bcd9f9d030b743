"""From a request to a `Task`: a reference that was run, inputs whose shapes were probed, a lint of what it proves."""

from tilewright.tasks.folders import (
    fit_specification,
    task_from_folder,
    task_from_specification,
    write_task_folder,
)
from tilewright.tasks.functions import task_from_function, task_from_source
from tilewright.tasks.kinds import classify
from tilewright.tasks.lint import lint
from tilewright.tasks.modules import task_from_kernelbench, task_from_module
from tilewright.tasks.opening import open_task
from tilewright.tasks.ops import task_op, task_op_line
from tilewright.tasks.options import TaskError, TaskOptions

__all__ = [
    "TaskError",
    "TaskOptions",
    "classify",
    "fit_specification",
    "lint",
    "open_task",
    "task_from_folder",
    "task_from_function",
    "task_from_kernelbench",
    "task_from_module",
    "task_from_source",
    "task_from_specification",
    "task_op",
    "task_op_line",
    "write_task_folder",
]
