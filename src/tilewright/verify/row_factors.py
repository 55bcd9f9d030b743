"""Whether every row, or every column, of a result is off by one factor or one number of its own.

A sum or a norm that leaves an element out does that, and the errors are small enough to look like rounding.
"""

from __future__ import annotations

import torch

from tilewright.records import Pattern

LOOK_FOR_A_SUM = "look for a sum or a norm that misses or adds elements"
_LEAST = 8  # elements: fewer fit anything
_UNEXPLAINED = 0.03  # of the squared error, at most: an error of 1% in 16 bits has this much of rounding in it
_MOST = 0.5  # of the rows that tell anything must be wrong: some factors are 1 by chance
_SAME = 0.02  # of their distance from 1: factors nearer to each other are one factor


def factor_of_rows(
    found: torch.Tensor, truth: torch.Tensor, wrong: torch.Tensor, allowed: torch.Tensor
) -> tuple[Pattern, str] | None:
    """Factors or numbers by row, else by column, in a sentence. Everything is in f64 and of one shape."""
    if truth.numel() < _LEAST or not bool((found.isfinite() & truth.isfinite()).all()):
        return None
    shape = (-1, truth.shape[-1]) if truth.ndim > 1 else (1, -1)
    table = [one.reshape(shape) for one in (found, truth, wrong, allowed)]
    return _explained("row", *table) or _explained("column", *(one.T for one in table))


def _explained(
    unit: str, found: torch.Tensor, truth: torch.Tensor, wrong: torch.Tensor, allowed: torch.Tensor
) -> tuple[Pattern, str] | None:
    if truth.shape[1] < 2:
        return None
    told = truth.square().sum(1) > 0
    factors = (found * truth).sum(1)[told] / truth.square().sum(1)[told]
    found, truth, wrong, allowed = found[told], truth[told], wrong[told], allowed[told]
    if not told.any() or float(wrong.any(1).double().mean()) < _MOST:
        return None
    first = int(told.nonzero()[0])
    if _fits(found - factors[:, None] * truth, found - truth, allowed) and bool((factors.abs() > 1e-3).all()):
        away = float((factors - 1).abs().max())
        if float(factors.max() - factors.min()) <= _SAME * away:
            return _of_all(unit, float(factors.mean()), alone=len(factors) == 1)
        return Pattern.SCALED, (
            f"each {unit} is scaled by a factor of its own ({unit} {first}: {float(factors[0]):.5g}): "
            f"look for a sum or a norm over the {unit} that misses or adds elements"
        )
    added = (found - truth).mean(1)
    if len(added) > 1 and _fits(found - truth - added[:, None], found - truth, allowed):
        if float(added.max() - added.min()) <= _SAME * float(added.abs().max()):
            return None  # one number everywhere
        return Pattern.ALL, (
            f"each {unit} has a number of its own added ({unit} {first}: {float(added[0]):.5g}): "
            f"look for a mean, a maximum or a logarithm of a sum over the {unit} that misses or adds elements"
        )
    return None


def _of_all(unit: str, factor: float, alone: bool) -> tuple[Pattern, str] | None:
    """One factor for the whole result: told here where it is so near to 1 that it would pass for lost precision."""
    if abs(factor - 1) > 0.1:
        return None
    where = f"everywhere in its only {unit}" if alone else "everywhere"
    return Pattern.SCALED, (
        f"the result is {factor:.5g} times what it should be, {where}: {LOOK_FOR_A_SUM}, or a count that is off by one"
    )


def _fits(left: torch.Tensor, error: torch.Tensor, allowed: torch.Tensor) -> bool:
    """Whether what is left of the error is next to nothing, in all and in nearly every row."""
    squared, whole = left.square().sum(1), error.square().sum(1)
    by_row = squared <= 2 * _UNEXPLAINED * whole + allowed.square().sum(1)
    return float(squared.sum()) <= _UNEXPLAINED * float(whole.sum()) and float(by_row.double().mean()) >= 0.95
