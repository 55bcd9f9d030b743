"""Layout: whether a call's tensors lie in memory as a file expects. Not an error when they do not."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.kernel_file.problems import Code, Problem
from tilewright.kernel_file.syntax import Accept, Parameter
from tilewright.kernel_file.values import show_value
from tilewright.records import TensorSpec

TENSOR_ALIGNMENT = 16


def layout_problem(parameter: Parameter, spec: TensorSpec, accepts: Mapping[str, Accept]) -> Problem | None:
    """Why this tensor keeps the file from being used, if it does."""
    accept = accepts.get(parameter.name)
    strided = accept is not None and accept.strided
    unaligned = accept is not None and accept.unaligned
    at = accept.at if accept is not None else parameter.at
    name = parameter.name

    def refused(found: str, remedy: str) -> Problem:
        return Problem(Code.DOES_NOT_APPLY, at.line, at.column, found, remedy)

    if not strided and not spec.is_contiguous:
        found = f"{name}: {spec} has strides {show_value(spec.stride)}, which is not contiguous"
        return refused(found, f"pass {name}.contiguous(), or a file that says `accept {name}: strided`")
    if strided and parameter.in_place and overlaps_itself(spec):
        found = f"{name}: {spec} has strides {show_value(spec.stride)}, so that elements share memory"
        return refused(found, f"{name} is changed in place; pass a tensor of its own memory")
    if spec.numel == 0:
        return None
    wanted = spec.dtype.itemsize if unaligned else max(TENSOR_ALIGNMENT, spec.dtype.itemsize)
    if spec.alignment % wanted:
        found = f"{name} starts at an address aligned to {spec.alignment} bytes, not to {wanted}"
        remedy = f"pass {name}.clone(), or a file that says `accept {name}: unaligned`"
        return refused(found, remedy)
    return None


def overlaps_itself(spec: TensorSpec) -> bool:
    """Whether two elements may lie at one address (a stride smaller than what lies inside it)."""
    if 0 in spec.shape:
        return False
    reach = 0
    dimensions = [(s, n) for n, s in zip(spec.shape, spec.stride, strict=True) if n > 1]
    for step, size in sorted(dimensions):
        if step <= reach:
            return True
        reach += (size - 1) * step
    return False


def is_dense(spec: TensorSpec) -> bool:
    """Whether the elements fill their memory without gaps or overlaps, in any order of dimensions."""
    if any(step < 0 for step in spec.stride):
        return False
    return 0 in spec.shape or (not overlaps_itself(spec) and spec.extent == spec.numel)
