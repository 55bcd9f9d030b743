"""Whether a result is right: its error against the truth in f64, with the reference's own error as the yardstick.

A bare tolerance is either too loose to see a wrong digit or too tight for a long sum. A kernel may expect to be judged
by what the reference itself achieves at the same dtype, so an error is allowed up to a small multiple of: the worst
error of the reference, one rounding of the element to its dtype, and what one f32 rounding of the inputs does to the
truth. The last is large exactly where terms cancel, as in a sum. Integers and booleans must equal the reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tilewright.frontends.check_records import ResultVerdict

FACTOR = 4.0


@dataclass(frozen=True)
class Expected:
    """One result as the reference has it: at the dtype, in f64, and in f64 from inputs one f32 rounding away."""

    name: str
    own: torch.Tensor
    truth: torch.Tensor
    nearby: torch.Tensor


def agreement(found: torch.Tensor, expected: Expected, tolerance: float | None) -> ResultVerdict:
    """Judge one result. `tolerance` replaces the envelope: relative to the element, or to the usual one if smaller."""
    name = expected.name
    if tuple(found.shape) != tuple(expected.truth.shape):
        message = f"its shape is {list(found.shape)}, the reference returns {list(expected.truth.shape)}"
        return ResultVerdict(name, False, message, None, None)
    if found.numel() == 0:
        return ResultVerdict(name, True, "no elements", 0.0, 0.0)
    if not found.is_floating_point():
        return _exact(found, expected)
    return _close(found, expected, tolerance)


def _exact(found: torch.Tensor, expected: Expected) -> ResultVerdict:
    """Equal to the reference at the dtype or in f64: a tie may be broken either way."""
    differs = found.double() != expected.own.double()
    differs &= found.double() != expected.truth.double()
    if not bool(differs.any()):
        return ResultVerdict(expected.name, True, "equal", 0.0, 0.0)
    message = f"{int(differs.sum())} of {differs.numel()} elements differ, first {_first(differs, found, expected.own)}"
    error = (found.double() - expected.own.double()).abs().max()
    return ResultVerdict(expected.name, False, message, float(error), 0.0)


def _close(found: torch.Tensor, expected: Expected, tolerance: float | None) -> ResultVerdict:
    truth = expected.truth.double()
    # The reference's answer as this dtype can hold it: it may return a wider one.
    own = expected.own.to(found.dtype).double()
    wide = found.double()
    finite = truth.isfinite() & own.isfinite()
    # Where the dtype overflows and f64 does not, the reference's own answer says what is right.
    special = torch.where(truth.isfinite() & ~own.isfinite(), own, truth)
    misplaced = ~finite & ~((wide == special) | (wide.isnan() & special.isnan()))
    misplaced |= finite & ~wide.isfinite()
    if bool(misplaced.any()):
        count = f"{int(misplaced.sum())} of {misplaced.numel()}"
        message = f"NaN or infinity misplaced in {count} elements, first {_first(misplaced, found, truth)}"
        return ResultVerdict(expected.name, False, message, None, None)
    error = torch.where(finite, (wide - truth).abs(), 0.0)
    own_error = torch.where(finite, (own - truth).abs(), 0.0)
    allowed = _allowed(found.dtype, expected, own_error, finite, tolerance)
    worst, own_worst = float(error.max()), float(own_error.max())
    wrong = error > allowed
    if bool(wrong.any()):
        place = int(torch.where(wrong, error / allowed.clamp(min=1e-300), 0.0).argmax())
        index = _index(place, found.shape)
        message = (
            f"{int(wrong.sum())} of {wrong.numel()} elements are off, worst at {list(index)}: "
            f"{wide[index].item():.6g}, expected {truth[index].item():.6g}; an error of {error[index].item():.3g} "
            f"where {allowed[index].item():.3g} is allowed and the reference's own worst is {own_worst:.3g}"
        )
        return ResultVerdict(expected.name, False, message, worst, own_worst)
    message = f"worst error {worst:.3g}, the reference's own at this dtype {own_worst:.3g}"
    return ResultVerdict(expected.name, True, message, worst, own_worst)


def _allowed(
    dtype: torch.dtype, expected: Expected, own_error: torch.Tensor, finite: torch.Tensor, tolerance: float | None
) -> torch.Tensor:
    size = torch.where(finite, expected.truth.double().abs(), 0.0)
    usual = size.square().mean().sqrt()
    if tolerance is not None:
        return tolerance * torch.maximum(size, usual)
    kind = torch.finfo(dtype)
    rounding = kind.eps * torch.maximum(size, usual) + kind.tiny
    moved = torch.where(finite, (expected.nearby.double() - expected.truth.double()).abs(), 0.0)
    moved = torch.where(moved.isfinite(), moved, 0.0)
    return FACTOR * (own_error.max() + rounding + moved.max())


def _first(where: torch.Tensor, found: torch.Tensor, expected: torch.Tensor) -> str:
    index = tuple(int(i) for i in where.nonzero()[0])
    return f"at {list(index)}: {found[index].item()}, expected {expected[index].item()}"


def _index(place: int, shape: Sequence[int]) -> tuple[int, ...]:
    index: list[int] = []
    for size in reversed(shape):
        index.append(place % size)
        place //= size
    return tuple(reversed(index))
