"""From a request to a `Task`: a reference that was run, inputs whose shapes were probed, a lint of what it proves."""

from tilewright.tasks.drafts import Foresee, TaskOptions, called_names, task_op_line
from tilewright.tasks.errors import RefusedRequest, TaskError
from tilewright.tasks.gradients import backward_task, derivative_words, refuse_without_gradients
from tilewright.tasks.own_precision import Settle, may_convolve, settled_by_channels
from tilewright.tasks.reading.folders import (
    fit_specification,
    open_task,
    task_from_folder,
    task_from_source,
    task_from_specification,
    write_task_folder,
)
from tilewright.tasks.reading.modules import (
    ModuleCall,
    module_call,
    task_from_kernelbench,
    task_from_module,
    task_from_module_source,
)
