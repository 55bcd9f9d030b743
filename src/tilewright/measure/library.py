"""What a vendor step must do at the least, from its operator and the sizes of its tensors."""

from __future__ import annotations

import math

from tilewright.measure.preparation import Prepared
from tilewright.records import LibraryCall, TensorArgument, TensorSpec

_PRODUCTS = ("mm", "bmm", "matmul", "addmm", "baddbmm", "linear", "convolution", "conv1d", "conv2d", "conv3d")


def library_work(call: LibraryCall, prepared: Prepared) -> tuple[int, float, str]:
    """Bytes moved, floating-point operations, and the dtype they are done in; no operations where none are known."""
    specs = {**dict(prepared.evaluation.tensors), **{one.name: one.spec for one in prepared.plan.buffers}}
    given = [specs[one.name] for one in call.arguments if isinstance(one, TensorArgument)]
    target = specs[call.target]
    moved = sum(spec.storage_bytes for spec in (*given, target))
    return moved, _operations(call.function.rpartition(".")[2], given, target), str(target.dtype)


def _operations(name: str, given: list[TensorSpec], target: TensorSpec) -> float:
    """Two for each product: the elements of the result times the length of a sum."""
    if name not in _PRODUCTS:
        return 0.0
    operands = given[1:] if name in ("addmm", "baddbmm") else given
    if len(operands) < 2 or operands[0].ndim < 2 or operands[1].ndim < 2:
        return 0.0
    length = operands[0].shape[-1]
    if name.startswith("conv"):
        length = math.prod(operands[1].shape[1:])
    return 2.0 * target.numel * length
