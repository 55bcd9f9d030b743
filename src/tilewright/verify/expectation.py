"""In the reference's process: what a case's results must be, by running the reference in several arithmetics.

The ground truth is the reference in f64, where casts to 16 bits that the reference writes out are kept. The tolerance
comes from running it in f64 again with random perturbations of the size of a correct kernel's rounding errors after
every operation: one or two roundings for elementwise operations, and the error of one running f32 sum for reductions.
Well-conditioned elements move little and cancelling ones much, whatever follows. Nothing is run in f32, so nothing
depends on PyTorch's order of summation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from tilewright.records import Precision
from tilewright.reference import ReferenceProblem
from tilewright.verify.arithmetic import (
    NARROW,
    TIES,
    WIDE,
    Arithmetic,
    Casts,
    Results,
    Roundings,
    perturbed_inputs,
)
from tilewright.verify.own_dtypes import OwnDtypes
from tilewright.verify.tolerance import Expected, Order

Tensors = dict[str, torch.Tensor]
Call = Callable[[Tensors], tuple[torch.Tensor, ...]]

_MOVES = 4  # perturbed runs
_MOVES_OF_LARGE = 3
_LARGE = 4_000_000  # elements of all inputs


@dataclass(frozen=True)
class Unperturbed:
    """Every result at its dtype and in f64, or the widest arithmetic the reference accepts. `orders`, `open` and
    `contracted` are as in `Expected`."""

    own: Results
    truth: Results
    width: torch.dtype | None
    orders: tuple[Order | None, ...]
    open: tuple[torch.Tensor | None, ...]
    contracted: bool

    def expected(self, moved: Sequence[Results] = ()) -> list[Expected]:
        """Combine with the results of perturbed runs."""
        return [
            Expected(
                self.own.values[position],
                self.truth.values[position],
                tuple(one.values[position] for one in moved),
                self.orders[position],
                self.contracted,
                self.open[position],
                self._floats(position, moved),
            )
            for position in range(len(self.truth.values))
        ]

    def _floats(self, position: int, moved: Sequence[Results]) -> Expected | None:
        """What a result's integers were cast from, where every run has cast floats of one shape."""
        own, truth, *others = (one.sources[position] for one in (self.own, self.truth, *moved))
        known = tuple(one.floats for one in others if one is not None)
        if own is None or truth is None or len(known) < len(others) or own.floats.shape != truth.floats.shape:
            return None
        return Expected(own.floats, truth.floats, known, contracted=self.contracted, steps=truth.steps)


def unperturbed(call: Call, tensors: Tensors) -> Unperturbed:
    torch.manual_seed(0)
    own = Casts().of(call(tensors))
    width, truth, arithmetic = _truth(call, tensors, own)
    if arithmetic is None:
        nothing = tuple(None for _ in own.values)
        return Unperturbed(own, truth, width, nothing, nothing, True)
    if any(one is not None for one in truth.sources):
        torch.manual_seed(0)
        with Casts() as casts:
            own = casts.of(call(tensors))
    orders = tuple(arithmetic.order_of(one) for one in truth.values)
    open, orders = _depending_on_ties(call, tensors, truth, orders, arithmetic)
    return Unperturbed(own, truth, width, orders, open, arithmetic.contracted)


def _depending_on_ties(
    call: Call, tensors: Tensors, truth: Results, orders: tuple[Order | None, ...], arithmetic: Arithmetic
) -> tuple[tuple[torch.Tensor | None, ...], tuple[Order | None, ...]]:
    """The elements that change with the order of equal numbers in a sort, which nobody promises; None for results
    without any, and for the places of what was sorted, unless that itself changes: then they have no order."""
    width = arithmetic.width
    found: list[torch.Tensor | None] = [None for _ in orders]
    settled = [*orders]
    for choice in TIES if arithmetic.met_ties else ():
        other = Arithmetic(width, ties=choice)
        changed = _in_arithmetic(call, _widened(tensors, width), width, other).values
        for position, (one, two, order) in enumerate(zip(truth.values, changed, orders, strict=True)):
            sorted_now = other.order_of(two)
            if order is not None and sorted_now is not None and torch.equal(order.values, sorted_now.values):
                continue
            if one.shape == two.shape:
                differs, known = (one != two) & ~((one != one) & (two != two)), found[position]
                found[position] = differs if known is None else known | differs
                settled[position] = None if bool(differs.any()) else settled[position]
    return tuple(one if one is not None and bool(one.any()) else None for one in found), tuple(settled)


def expectations(
    call: Call,
    tensors: Tensors,
    precision: Precision,
    *,
    moves: int | None = None,
    first_seed: int = 1,
    wider: float = 1.0,
    known: Unperturbed | None = None,
    own_casts: bool = False,
) -> list[Expected]:
    """Every result of the reference: at its dtype, in f64, and `moves` times in f64 with perturbations, `wider` times
    the usual ones.

    `known` is the unperturbed part where it was computed already. With `own_casts` every second perturbed run casts to
    the dtypes of the inputs where the reference asks them for theirs.
    """
    known = known or unperturbed(call, tensors)
    # f64 only where everything is f64: a kernel of mixed types may work in f32.
    floats = [one.dtype for one in (*tensors.values(), *known.own.values) if one.is_floating_point()]
    dtype = WIDE if floats and all(one == WIDE for one in floats) else torch.float32
    takes_f32 = any(one.dtype == torch.float32 for one in tensors.values())
    roundings = Roundings.of(precision, dtype, takes_f32).wider(wider)
    if moves is None:
        moves = _MOVES_OF_LARGE if sum(one.numel() for one in tensors.values()) > _LARGE else _MOVES
    return known.expected(
        [
            _perturbed_results(call, tensors, known.width, roundings, seed, own_casts and seed % 4 < 2)
            for seed in range(first_seed, first_seed + moves)
        ]
    )


def in_f64(call: Call, tensors: Tensors) -> tuple[torch.Tensor, ...]:
    """The results in f64, or in the widest arithmetic that the reference accepts."""
    return _truth(call, tensors, Results(()))[1].values


def _truth(call: Call, tensors: Tensors, own: Results) -> tuple[torch.dtype | None, Results, Arithmetic | None]:
    """The results in f64, else f32, else the reference's own arithmetic, and the arithmetic, which knows what was
    done."""
    for width in (WIDE, torch.float32):
        arithmetic = Arithmetic(width)
        try:
            return width, _in_arithmetic(call, _widened(tensors, width), width, arithmetic), arithmetic
        except torch.OutOfMemoryError:
            raise  # the caller splits the call or reports it; a narrower truth would be wrong
        except Exception as error:  # a reference that insists on its dtype
            refused = error
    if isinstance(refused, ReferenceProblem):
        raise refused
    return None, own, None


def _perturbed_results(
    call: Call, tensors: Tensors, width: torch.dtype | None, roundings: Roundings, seed: int, own_casts: bool = False
) -> Results:
    if width is None:
        return _in_arithmetic(call, tensors, torch.float32, Arithmetic(torch.float32, roundings, seed))
    wide = perturbed_inputs(_widened(tensors, width), roundings, seed)
    for name, one in tensors.items():
        if one.dtype in (torch.float32, torch.float64):
            # Numbers of few bits are exact in any arithmetic; perturbing halves would break ties.
            wide[name] = torch.where(one == one.bfloat16(), one.to(width), wide[name])
        elif one.dtype in NARROW and one.numel():
            low, high = one.aminmax()
            if bool(low >= 0) and float(high) == 1.0:  # perhaps probabilities, which must not exceed 1
                wide[name].clamp_(max=1.0)
    arithmetic = Arithmetic(width, roundings, seed)
    if not own_casts:
        return _in_arithmetic(call, wide, width, arithmetic)
    with OwnDtypes(wide, {name: one.dtype for name, one in tensors.items()}):
        return _in_arithmetic(call, wide, width, arithmetic)


def _in_arithmetic(call: Call, tensors: Tensors, width: torch.dtype, arithmetic: Arithmetic) -> Results:
    usual = torch.get_default_dtype()
    torch.manual_seed(0)
    torch.set_default_dtype(width)
    try:
        with arithmetic:
            return arithmetic.of(call(tensors))
    finally:
        torch.set_default_dtype(usual)


def _widened(tensors: Tensors, width: torch.dtype) -> Tensors:
    return {name: one.to(width) if one.dtype in NARROW else one for name, one in tensors.items()}
