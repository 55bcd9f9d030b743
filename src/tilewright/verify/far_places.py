"""Places of large tensors that an index of 32 bits does not reach, and whether blocks that were judged came there.

A block whose index wraps works on another place, and does it right; what it leaves out is seen by nobody. So of a
result that long, something beyond each limit must have been written.
"""

from __future__ import annotations

from tilewright.records import Task, TensorSpec, WrittenPart
from tilewright.verify.case_work import Sizes

_LIMITS = (1 << 31, 1 << 32)  # of elements and of bytes, in signed and unsigned integers


def not_reached(task: Task, called: Sizes, written: tuple[WrittenPart, ...], *, judged: bool) -> str:
    """What no judged block reached in a call at these sizes, in a clause; "" where there is no such thing."""
    own, given = {**task.specs(), **task.output_specs()}, {**task.specs(called), **task.output_specs(called)}
    for name, spec in own.items():
        for limit in _LIMITS:
            for unit, size in (("elements", 1), ("bytes", spec.dtype.itemsize)):
                if spec.numel * size <= limit:
                    continue
                if (
                    not judged
                    or given[name].numel * size <= limit
                    or not _reaches(task, name, spec, written, limit / size)
                ):
                    return f"{name} has more than {limit:,} {unit}, and no judged block is known to have come so far"
    return ""


def _reaches(task: Task, name: str, spec: TensorSpec, written: tuple[WrittenPart, ...], element: float) -> bool:
    """Whether a result was written from there on; what was read is seen in the results."""
    if name not in {one.name for one in task.outputs}:
        return True
    part = next((one for one in written if one.name == name), None)
    if part is None:
        return False
    last = sum(max(places) * step for places, step in zip(part.indices, spec.stride, strict=True))
    return last >= element
