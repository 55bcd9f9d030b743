"""Whether a result is right: measured against the truth in f64, with PyTorch's own error as the yardstick.

A bare tolerance is either too loose to find a wrong last digit or too tight for a long sum. What a user may expect is a
result about as good as PyTorch's own at the same dtype. So for every result, with error |result - truth|:

- NaN and infinities stand exactly where the truth has them;
- the worst error is at most `factor` times (PyTorch's worst error + one rounding of the element), where elements far
  below the result's usual size count as being of that size;
- the root mean square of the error, over enough elements for it to mean something, is at most `factor` times PyTorch's
  plus a quarter of a rounding. One lost bit of precision everywhere shows here, and not in the worst element.

A rounding is one to the result's dtype, plus one in f32 of the larger terms that `Case.magnitude` says cancelled.

Results of 16 bits get half the factor: their error is mostly the last rounding, which both sides have in common.
"""

from __future__ import annotations

import torch

from .cases import Arguments, Case, Results, as_tuple, in_f64

_ENOUGH_ELEMENTS = 1024


def disagreement(case: Case, arguments: Arguments, results: Results) -> str | None:
    """What is wrong with the results of a call, or None. The arguments are as they were before the call."""
    own = as_tuple(case.reference(*arguments))
    if len(results) != len(own):
        return f"{len(results)} results, expected {len(own)}"
    for position, (result, expected) in enumerate(zip(results, own, strict=True)):
        wrong = _form(result, expected)
        if wrong is None and case.exact:
            wrong = _unequal(result, expected)
        if wrong is not None:
            return f"result {position}: {wrong}"
    if case.exact:
        return None
    wide = in_f64(arguments)
    truths = as_tuple(case.reference(*wide))
    terms = tuple(map(torch.zeros_like, truths)) if case.magnitude is None else as_tuple(case.magnitude(*wide))
    for position, (result, expected, truth, term) in enumerate(zip(results, own, truths, terms, strict=True)):
        wrong = _inaccurate(result, expected, truth, term, case.factor)
        if wrong is not None:
            return f"result {position}: {wrong}"
    return None


def _form(result: torch.Tensor, expected: torch.Tensor) -> str | None:
    if result.dtype != expected.dtype or result.shape != expected.shape:
        found = f"{result.dtype} {tuple(result.shape)}"
        return f"{found}, expected {expected.dtype} {tuple(expected.shape)}"
    # The stride of a dimension of one element, or of an empty tensor, has no meaning.
    if result.numel() > 0:
        meant = [i for i, size in enumerate(result.shape) if size > 1]
        if [result.stride(i) for i in meant] != [expected.stride(i) for i in meant]:
            return f"strides {result.stride()}, expected {expected.stride()}"
    return None


def _unequal(result: torch.Tensor, expected: torch.Tensor) -> str | None:
    differs = result != expected
    if result.is_floating_point():
        differs &= ~(result.isnan() & expected.isnan())
    if not bool(differs.any()):
        return None
    return f"{int(differs.sum())} of {differs.numel()} elements differ, first {_first(differs, result, expected)}"


def _inaccurate(
    result: torch.Tensor, own: torch.Tensor, truth: torch.Tensor, terms: torch.Tensor, factor: float
) -> str | None:
    if result.numel() == 0:
        return None
    wide = result.double()
    finite = truth.isfinite() & own.isfinite()
    # A dtype with a smaller range than f64 may hold an infinity where the truth has a large number: then PyTorch's own
    # result says what is right.
    special = torch.where(truth.isfinite() & ~own.isfinite(), own.double(), truth)
    misplaced = ~finite & ~((wide == special) | (wide.isnan() & special.isnan()))
    misplaced |= finite & ~wide.isfinite()
    if bool(misplaced.any()):
        return f"NaN or infinity misplaced, first {_first(misplaced, result, truth)}"
    if not bool(finite.any()):
        return None

    kind = torch.finfo(result.dtype)
    factor = factor / 2 if kind.bits == 16 else factor
    error = (wide - truth)[finite].abs()
    own_error = (own.double() - truth)[finite].abs()
    size = truth[finite].abs()
    on_the_way = torch.finfo(torch.float32).eps * terms.expand_as(truth)[finite].abs()
    rounding = kind.eps * (torch.maximum(size, _rms(size)) + kind.tiny) + on_the_way
    excess = error - factor * (own_error.max() + rounding)
    if bool((excess > 0).any()):
        worst = int(excess.argmax())
        return (
            f"an error of {float(error[worst]):.3g} where the truth is {float(truth[finite][worst]):.6g}; "
            f"PyTorch's worst is {float(own_error.max()):.3g}, a rounding {float(rounding[worst]):.3g}"
        )
    if error.numel() >= _ENOUGH_ELEMENTS:
        found, limit = _rms(error), factor * _rms(own_error) + 0.25 * _rms(rounding)
        if bool(found > limit):
            return f"a root mean square error of {float(found):.3g}; PyTorch's is {float(_rms(own_error)):.3g}"
    return None


def _rms(values: torch.Tensor) -> torch.Tensor:
    return values.square().mean().sqrt()


def _first(where: torch.Tensor, result: torch.Tensor, expected: torch.Tensor) -> str:
    index = tuple(int(i) for i in where.nonzero()[0])
    return f"at {list(index)}: {result[index].item()}, expected {expected[index].item()}"
