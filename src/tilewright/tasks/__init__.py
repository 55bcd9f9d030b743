"""Makes a `Task` from a request: runs the reference, probes its shapes, lints it."""

from tilewright.tasks.default_precision import ResolvePrecision, may_convolve, precision_from_channels
from tilewright.tasks.drafts import Precheck, TaskOptions, called_names, task_op_line
from tilewright.tasks.errors import RefusedRequest, TaskError
from tilewright.tasks.gradients import backward_task, derivative_words, refuse_without_gradients
from tilewright.tasks.reading.folders import (
    fit_specification,
    open_task,
    task_from_folder,
    task_from_source,
    task_from_specification,
)
from tilewright.tasks.reading.modules import (
    ModuleCall,
    module_call,
    task_from_kernelbench,
    task_from_module,
    task_from_module_source,
)
