"""The precision of a task for which nobody said one: f32 where PyTorch's own convolutions are f32 by default.

Without a GPU to ask, that is taken from their channels and groups.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tilewright.records import DType, Precision, Task
from tilewright.reference import AnyReference, ReferenceProblem
from tilewright.reference.protocol import LIST, ConvolutionRequest, ListAnswer

Settle = Callable[[Task, AnyReference], Task]  # of a task whose precision nobody said, and its reference

_ASSUMED = "PyTorch computes convolutions of so few channels a group in f32; no GPU could be asked"
_UNSEEN = "which convolutions the reference makes could not be seen: all are to be f32"


def may_convolve(task: Task) -> bool:
    """Whether it may have f32 convolutions, by its text; without f32 inputs nothing may be rounded anyway."""
    return "conv" in task.reference.lower() and any(one.dtype is DType.F32 for one in task.tensors)


def settled_by_channels(task: Task, reference: AnyReference) -> Task:
    """The task at the precision that its convolutions have by the rule."""
    likely = likely_f32(task, reference)
    if likely is None:
        return replace(task, precision=Precision.DEFAULT_F32, assumptions=(*task.assumptions, _UNSEEN))
    if not likely or not all(likely):
        return task
    return replace(task, precision=Precision.DEFAULT_F32, assumptions=(*task.assumptions, _ASSUMED))


def likely_f32(task: Task, reference: AnyReference) -> tuple[bool, ...] | None:
    """Of every f32 convolution whether PyTorch computes it so, by the rule; None where they could not be seen."""
    try:
        answer: ListAnswer = reference.call(LIST, ConvolutionRequest(task), ListAnswer)
    except ReferenceProblem:
        return None
    return answer.likely_f32
