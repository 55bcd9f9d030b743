"""In what PyTorch computes the f32 convolutions of a task on the GPU at hand: that is asked there, once for a task."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial

from tilewright.devices.protocol import DeviceError
from tilewright.devices.spool import SpoolDevice
from tilewright.frontends.choices import ChosenDevice
from tilewright.frontends.gpu_turns import turn_at
from tilewright.records import PROFILES, Precision, Task
from tilewright.reference import AnyReference, Reference, ReferenceLimits, ReferenceProblem, start_ahead
from tilewright.reference.convolution_questions import MEASURE, WARM, ConvolutionRequest, PrecisionAnswer
from tilewright.reference.spooled import SpoolReference
from tilewright.tasks.own_precision import Settle, likely_f32, settled_by_channels


def settling_on(device: ChosenDevice) -> Settle:
    """Who finds out the precision of a task for which nobody said one: the GPU, or without one the rule."""
    return settled_by_channels if device.is_emulated else partial(_settled, device)


def _settled(device: ChosenDevice, task: Task, reference: AnyReference) -> Task:
    if likely_f32(task, reference) == ():
        return task
    is_f32 = _measured(device, task)
    if is_f32 is None:
        return settled_by_channels(task, reference)
    return replace(task, precision=Precision.DEFAULT_F32) if is_f32 else task


def _measured(device: ChosenDevice, task: Task) -> bool | None:
    """None where the GPU cannot say, or an older worker is not able to ask it."""
    with _reference_on(device, task) as reference:
        try:
            answer: PrecisionAnswer = reference.call(MEASURE, ConvolutionRequest(task), PrecisionAnswer)
        except DeviceError:
            raise
        except (ReferenceProblem, RuntimeError):
            return None
        return answer.f32


@contextmanager
def _reference_on(device: ChosenDevice, task: Task) -> Iterator[AnyReference]:
    """The task's reference where the GPU is, which is its own for so long where that is this machine."""
    if device.index is None:
        gpu = SpoolDevice(device.spool, arch=PROFILES[device.gpu].arch)
        yield SpoolReference(device.spool, task.reference, task.function, gpu=gpu.profile)
        return
    limits = ReferenceLimits.on_gpu(device.index)
    with Reference(task.reference, task.function, limits=limits) as reference:
        start_ahead(limits)  # for the judges, who come next
        with suppress(ReferenceProblem, RuntimeError):  # the next call says it again
            reference.call(WARM, ConvolutionRequest(task), PrecisionAnswer)
        with turn_at(device.index):
            yield reference
