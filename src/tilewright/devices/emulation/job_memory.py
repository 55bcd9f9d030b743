"""A job's tensors for the emulator: inputs made from bytes or from a seed, outputs and scratch poisoned.

A GPU draws other values from the same seed, so jobs that must see the same inputs on both carry them as `Data`.
"""

from __future__ import annotations

import numpy as np

from tilewright.devices.emulation.drawing import BadContent, drawn
from tilewright.devices.emulation.plan_memory import Bytes, PlanMemory
from tilewright.records import Buffer, Data, InputTensor, Job


def input_bytes(one: InputTensor) -> Bytes:
    """An input's storage; raises `BadContent`."""
    if not isinstance(one.content, Data):
        try:
            return drawn(one.spec, one.content)
        except BadContent as error:
            raise BadContent(f"input {one.name!r}: {error}") from error
    given = np.frombuffer(one.content.content, dtype=np.uint8)
    if given.size != one.spec.storage_bytes:
        raise BadContent(
            f"input {one.name!r}: {one.spec} with strides {one.spec.stride} takes {one.spec.storage_bytes} bytes, "
            f"its data has {given.size}"
        )
    return given


def job_memory(job: Job, contents: dict[str, Bytes]) -> PlanMemory:
    """Fresh memory for one run. Inputs that are returned may be written: they are the ones changed in place."""
    memory = PlanMemory()
    for one in job.inputs:
        memory.add_input(one.name, one.spec, contents[one.name], writable=one.name in job.returns)
    add_buffers(memory, job.plan.buffers, sampled=job.emulation.sampled_blocks is not None)
    return memory


def add_buffers(memory: PlanMemory, buffers: tuple[Buffer, ...], *, sampled: bool) -> None:
    """Outputs and scratch. Where only some blocks run, what the others would have written is not missed."""
    for buffer in buffers:
        memory.add_buffer(buffer, initialised=sampled)
