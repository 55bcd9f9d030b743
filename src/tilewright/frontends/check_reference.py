"""In the reference's process: what a kernel returned for one call, beside what the reference returns for it.

The inputs are drawn again from the same seeds, so they need not travel. What counts as right is the referee's envelope.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tilewright.devices.emulation.input_content import input_bytes
from tilewright.frontends.check_records import ReferenceRequest, ReferenceVerdict, ResultVerdict
from tilewright.records import Precision
from tilewright.reference.torch_calls import call_by_name, to_torch
from tilewright.verify.diagnosis import diagnose
from tilewright.verify.envelope import Expected, compare
from tilewright.verify.expectation import Tensors, expectations


def judge(function: Callable[..., Any], request: ReferenceRequest) -> ReferenceVerdict:
    """Compare every result, and every tensor changed in place."""
    numbers = {number.name: number.value for number in request.numbers}
    tensors = {one.name: to_torch(one.spec, bytes(input_bytes(one))) for one in request.inputs}

    def call(given: Tensors) -> tuple[torch.Tensor, ...]:
        arguments = {name: given[name].clone() if name in given else numbers.get(name) for name in request.names}
        return call_by_name(function, arguments, list(request.in_place), len(request.results))

    outputs = {output.name: output for output in request.outputs}
    verdicts = []
    names = (*request.results, *request.in_place)
    for name, expected in zip(names, expectations(call, tensors, Precision.DTYPE), strict=True):
        found = to_torch(outputs[name].spec, outputs[name].content)
        verdicts.append(verdict_of(name, found, expected, request.tolerance, tensors))
    return ReferenceVerdict(tuple(verdicts))


def verdict_of(
    name: str, found: torch.Tensor, expected: Expected, tolerance: float | None, inputs: Tensors
) -> ResultVerdict:
    """One result in words and numbers."""
    if tuple(found.shape) != tuple(expected.truth.shape):
        message = f"its shape is {list(found.shape)}, the reference returns {list(expected.truth.shape)}"
        return ResultVerdict(name, False, message, None, None)
    if found.numel() == 0:
        return ResultVerdict(name, True, "no elements", 0.0, 0.0)
    comparison = compare(found, expected, tolerance)
    worst = float(comparison.error.max())
    if comparison.right:
        own = comparison.own_worst
        message = "equal" if own is None else f"worst error {worst:.3g}, the reference's own at this dtype {own:.3g}"
        return ResultVerdict(name, True, message, worst, own)
    wrong = diagnose(name, found, expected, comparison, inputs)
    first = wrong.first[0]
    message = (
        f"{wrong.wrong} of {wrong.elements} elements are off, first at {list(first.index)}: {first.got:.6g}, expected "
        f"{first.expected:.6g}, where {first.allowed:.3g} of error is allowed; "
        f"{wrong.pattern.value}: {wrong.description}"
    )
    return ResultVerdict(name, False, message, wrong.worst_error, wrong.reference_error)
