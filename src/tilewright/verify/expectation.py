"""In the reference's process: what a case's results must be, by running the reference in several arithmetics."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tilewright.records import Precision
from tilewright.reference import ReferenceProblem
from tilewright.verify.arithmetic import NARROW, WIDE, Arithmetic, Roundings, moved_inputs
from tilewright.verify.envelope import Expected

Tensors = dict[str, torch.Tensor]
Call = Callable[[Tensors], tuple[torch.Tensor, ...]]

_MOVES = 4  # times that the truth is computed again with roundings put in
_MOVES_OF_LARGE = 3
_LARGE = 4_000_000  # elements of all inputs


def expectations(call: Call, tensors: Tensors, precision: Precision) -> list[Expected]:
    """Every result of the reference: at its dtype, in f64, and in f64 with honest roundings put in."""
    torch.manual_seed(0)
    own = call(tensors)
    dtype = _working_dtype(tensors, own)
    width, truth = _truth(call, tensors, own)
    roundings = Roundings.of(precision, dtype)
    large = sum(one.numel() for one in tensors.values()) > _LARGE
    moved = [
        _moved(call, tensors, width, roundings, seed) for seed in range(1, (_MOVES_OF_LARGE if large else _MOVES) + 1)
    ]
    return [
        Expected(mine, theirs, tuple(one[position] for one in moved))
        for position, (mine, theirs) in enumerate(zip(own, truth, strict=True))
    ]


def _working_dtype(tensors: Tensors, own: tuple[torch.Tensor, ...]) -> torch.dtype:
    """f64 only where everything is: a kernel of mixed types may work in f32."""
    floats = [one.dtype for one in (*tensors.values(), *own) if one.is_floating_point()]
    return torch.float64 if floats and all(one == torch.float64 for one in floats) else torch.float32


def _truth(
    call: Call, tensors: Tensors, own: tuple[torch.Tensor, ...]
) -> tuple[torch.dtype | None, tuple[torch.Tensor, ...]]:
    """The results in the widest arithmetic the reference bears: f64, else f32, else its own."""
    for width in (WIDE, torch.float32):
        try:
            return width, _in_width(call, _widened(tensors, width), width, None, 0)
        except Exception as error:  # a reference that insists on its dtype
            refused = error
    if isinstance(refused, ReferenceProblem):
        raise refused
    return None, own


def _moved(
    call: Call, tensors: Tensors, width: torch.dtype | None, roundings: Roundings, seed: int
) -> tuple[torch.Tensor, ...]:
    if width is None:
        return _in_width(call, tensors, torch.float32, roundings, seed)
    wide = moved_inputs(_widened(tensors, width), roundings, seed)
    return _in_width(call, wide, width, roundings, seed)


def _in_width(
    call: Call, tensors: Tensors, width: torch.dtype, roundings: Roundings | None, seed: int
) -> tuple[torch.Tensor, ...]:
    usual = torch.get_default_dtype()
    torch.manual_seed(0)
    torch.set_default_dtype(width)
    try:
        with Arithmetic(width, roundings, seed):
            return call(tensors)
    finally:
        torch.set_default_dtype(usual)


def _widened(tensors: Tensors, width: torch.dtype) -> Tensors:
    return {name: one.to(width) if one.dtype in NARROW else one for name, one in tensors.items()}
