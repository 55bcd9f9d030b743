"""The default precision of a task with convolutions: f32 if PyTorch computes them in f32 by default.

Without a GPU, that is decided by their channels and groups.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tilewright.records import DType, Precision, Task
from tilewright.reference import AnyReference, ReferenceProblem
from tilewright.reference.protocol import LIST, ConvolutionRequest, ListAnswer

ResolvePrecision = Callable[[Task, AnyReference], Task]  # sets the precision of a task for which none was given

_ASSUMED = "PyTorch computes convolutions with so few channels per group in f32; this was not checked on a GPU"
_UNSEEN = "the convolutions of the reference could not be traced: all are taken to be f32"


def may_convolve(task: Task) -> bool:
    """Whether the source may contain f32 convolutions."""
    return "conv" in task.reference.lower() and any(one.dtype is DType.F32 for one in task.tensors)


def precision_from_channels(task: Task, reference: AnyReference) -> Task:
    """The task with the precision that PyTorch's rule gives its convolutions."""
    likely = likely_f32(task, reference)
    if likely is None:
        return replace(task, precision=Precision.DEFAULT_F32, assumptions=(*task.assumptions, _UNSEEN))
    if not likely or not all(likely):
        return task
    return replace(task, precision=Precision.DEFAULT_F32, assumptions=(*task.assumptions, _ASSUMED))


def likely_f32(task: Task, reference: AnyReference) -> tuple[bool, ...] | None:
    """For every f32 convolution, whether PyTorch's rule computes it in f32; None if tracing failed."""
    try:
        answer: ListAnswer = reference.call(LIST, ConvolutionRequest(task), ListAnswer)
    except ReferenceProblem:
        return None
    return answer.likely_f32
