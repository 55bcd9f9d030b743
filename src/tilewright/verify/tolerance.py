"""Whether a result is right: its error against the f64 ground truth, compared with what a correct kernel's error may
be.

No tolerance is chosen by hand. For each element it follows from the reference's own error at its dtype, from how far
the truth moves when a correct kernel's roundings are put in (`expectation`), and from one rounding to the result's
dtype. An element's error must stay within a small multiple of that, which finds a single wrong element. The mean square
error of every tile of neighbouring elements must too, which finds work in too low a precision. In results of 16 bits or
fewer, whose roundings hide much, the errors must not be biased either. Integers and booleans must equal the reference,
or what it returns under those roundings.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from tilewright.verify.distributions import PLAIN, ValueTraits

# -- tiles --

LEAST_TILE = 64  # elements; shorter rows are grouped
_ROW_TILE = 256  # pieces of longer rows
_LONGEST_ROW = 512


def _filled_up(values: torch.Tensor, length: int, empty: float) -> torch.Tensor:
    """Pad the last dimension to a length; not copied where it has it."""
    missing = length - values.shape[-1]
    return torch.nn.functional.pad(values, (0, missing), value=empty) if missing else values


class Tiles:
    """Tiles of neighbouring elements: rows, pieces of long rows, or several short rows."""

    def __init__(self, shape: tuple[int, ...], device: torch.device) -> None:
        self._shape = shape
        elements = math.prod(shape)
        row = shape[-1] if shape else 1
        if len(shape) == 1:
            row = min(row, LEAST_TILE)
        if row > _LONGEST_ROW:
            self._row, self._tile = row, _ROW_TILE
        else:
            taken = max(1, -(-LEAST_TILE // max(row, 1)))
            self._row = self._tile = max(row * taken, 1)
        self._rows = -(-elements // self._row) if elements else 0
        self._pieces = -(-self._row // self._tile)
        starts = torch.arange(self._pieces, device=device) * self._tile
        within = (self._row - starts).clamp(max=self._tile)
        left = elements - torch.arange(self._rows, device=device) * self._row  # the last row may be a part of one
        counts = torch.minimum(within[None, :], (left[:, None] - starts[None, :]).clamp(min=0))
        self.counts = counts.flatten().double()  # elements of each tile

    def cut(self, values: torch.Tensor, empty: float = 0.0) -> torch.Tensor:
        """[tiles, elements of a tile], padded with `empty`. Not copied where all tiles are full."""
        rows = _filled_up(values.reshape(-1), self._rows * self._row, empty).view(self._rows, self._row)
        return _filled_up(rows, self._pieces * self._tile, empty).reshape(-1, self._tile)

    def whole(self, cut: torch.Tensor) -> torch.Tensor:
        """The inverse of `cut`."""
        flat = cut.view(self._rows, self._pieces * self._tile)[:, : self._row].reshape(-1)
        return flat[: math.prod(self._shape)].view(self._shape)

    def mean_square(self, cut: torch.Tensor) -> torch.Tensor:
        """The root mean square of each tile."""
        sizes: torch.Tensor = torch.linalg.vector_norm(cut, dim=-1)
        return sizes / self.counts.clamp(min=1).sqrt()

    def total(self, mean_squares: torch.Tensor) -> float:
        """The root of the sum of all squares, from the tiles' root mean squares."""
        return float((mean_squares.square() * self.counts).sum().sqrt())

    def median(self, cut: torch.Tensor) -> torch.Tensor:
        """The median of each tile's numbers; 0 where there are none."""
        middle = cut.nanmedian(-1).values
        return torch.where(middle.isfinite(), middle, 0.0)

    def spread(self, tiles: torch.Tensor) -> torch.Tensor:
        """Broadcast a value per tile to its elements."""
        return self.whole(tiles.view(-1, 1).expand(-1, self._tile).contiguous())


# Multiples that are allowed; `docs/verification.md` says what they were calibrated on.
ELEMENT_NOISE = 8.0  # of the movement: the worst of a million is five deviations out, and perturbations are few
ELEMENT_OWN = 4.0  # of the reference's own error in the tile
ELEMENT_ROUNDING = 2.0  # of one rounding of the element, and for sums of products of its neighbours
ELEMENT_OF_NARROW = 3.0  # of one rounding of the element alone
ELEMENT_WORK = 8.0  # of an f32 rounding of its neighbours, for cancellation
TILE_NOISE = 7.0  # a row shares the error of its sum, which a tile does not average out
TILE_ROUNDING = 2.0
SMALL_TILE_ROUNDING = 3.0  # of fewer than 64 elements

ONE_SIDED = 2.0  # of the movement where the roundings of a sum may all fall to one side
FEW_MOVES = 1.25  # of the movement where there were only two perturbations, which may both be small
LEANING = 6.0  # standard deviations of the sum of all errors
LEANING_OWN = 4.0  # of the sum of the reference's own errors

GROSS = 8.0  # times what is allowed
FEW_ELEMENTS = 8.0
FEW_ROUNDING = 4.0  # of a tile that fewer than `FEW_ELEMENTS` dominate: each may be rounded twice
MOST_LEEWAY = 0.25  # allowed error over the size of the result: beyond it a comparison proves little

_LEAST_OF_NARROW = 1e-30
_NARROW_ROUNDING = 2.0**-12
_LEAST_LEANING = 256  # elements
_SAMPLE = 50_000
_RARE = 1 / 32  # of all tiles
_ROUNDED_BY_TYPE = 2.0**23  # floats beyond it may be whole because f32 holds no others


@dataclass(frozen=True)
class Order:
    """What was sorted, or reduced by argmax or argmin, in f64.

    PyTorch promises no order of indices of equal numbers in a sort, and the first index for argmax and argmin.
    """

    values: torch.Tensor
    dim: int
    first: bool = False


Step = Callable[[torch.Tensor], torch.Tensor]  # elementwise, and never falls where its operand rises


def stepped(values: torch.Tensor, steps: tuple[Step, ...]) -> torch.Tensor:
    for one in steps:
        values = one(values)
    return values


@dataclass(frozen=True)
class Expected:
    """One result of the reference: at the dtype, in f64, and in f64 with a correct kernel's roundings put in."""

    own: torch.Tensor
    truth: torch.Tensor
    moved: tuple[torch.Tensor, ...]
    order: Order | None = None  # where the result holds indices of sorted numbers
    contracted: bool = False  # whether it contains a GEMM, whose operands a kernel may round
    open: torch.Tensor | None = None  # elements that depend on the order of ties, which are not judged
    floats: Expected | None = None  # what integers were cast from
    steps: tuple[Step, ...] = ()  # of such floats: roundings and bounds before the cast


@dataclass(frozen=True)
class Comparison:
    """One result compared with the truth, by element. `ratio` is the worst error over what is allowed."""

    wrong: torch.Tensor  # bool
    error: torch.Tensor  # f64; infinite where NaN or infinity is misplaced
    allowed: torch.Tensor
    own_worst: float | None  # None for integers
    ratio: float
    leeway: float  # allowed error over the size of the truth, in the mean square

    @property
    def right(self) -> bool:
        return not bool(self.wrong.any())


def compare(
    found: torch.Tensor,
    expected: Expected,
    tolerance: float | None = None,
    traits: ValueTraits = PLAIN,
) -> Comparison:
    """Judge one result of the truth's shape.

    `tolerance` replaces the computed one; it is relative to the element, or to the root mean square if that is larger.
    Of mixed values, what the reference is itself unsure of is not judged: elements that are a number in one arithmetic
    and NaN or infinity in another, and all but gross errors in tiles that are allowed more than `MOST_LEEWAY` of the
    result's size.
    """
    if expected.open is not None:
        found, expected = _settled(found, expected, expected.open)
    return _close(found, expected, tolerance, traits) if found.is_floating_point() else _exact(found, expected)


def _settled(found: torch.Tensor, expected: Expected, open: torch.Tensor) -> tuple[torch.Tensor, Expected]:
    """Both with the truth where nothing is promised."""
    truth = expected.truth
    own, *moved = (torch.where(open, truth.to(one.dtype), one) for one in (expected.own, *expected.moved))
    found = torch.where(open, truth.to(found.dtype), found)
    return found, replace(expected, own=own, moved=tuple(moved), open=None, floats=None)


def _exact(found: torch.Tensor, expected: Expected) -> Comparison:
    wide = found.double()
    differs = torch.ones_like(wide, dtype=torch.bool)
    for one in (expected.own, expected.truth, *expected.moved):
        # f64 cannot represent all integers beyond 2^53.
        differs &= (wide != one.double()) if one.is_floating_point() else (found.long() != one.long())
    if expected.order is not None:
        differs = _by_order(differs, found.long(), expected, expected.order)
    if expected.floats is not None and bool(differs.any()):
        differs &= ~_is_cast_of(found, expected.floats)
    error = torch.where(differs, (wide - expected.truth.double()).abs(), 0.0)
    ratio = math.inf if bool(differs.any()) else 0.0
    return Comparison(differs, error, torch.zeros_like(wide), None, ratio, 0.0)


def _by_order(differs: torch.Tensor, found: torch.Tensor, expected: Expected, order: Order) -> torch.Tensor:
    """Which of the differing indices are wrong, given ties."""
    shape, truth = found.shape, expected.truth.long()
    if found.ndim < order.values.ndim:
        found, truth = found.unsqueeze(order.dim), truth.unsqueeze(order.dim)
    inside = (found >= 0) & (found < order.values.shape[order.dim])
    places = torch.where(inside, found, 0)
    own, wanted = order.values.gather(order.dim, places), order.values.gather(order.dim, truth)
    tied, near = inside & (own == wanted), inside & _alike_in_f32(own, wanted)
    if order.first:
        later = (tied & (found != truth)).view(shape) & (found.view(shape) != expected.own.long())
        return (differs & ~near.view(shape)) | later
    counts = torch.zeros(order.values.shape, dtype=torch.long, device=found.device)
    counts.scatter_add_(order.dim, places, inside.long())
    return (differs & ~(tied | near)) | (inside & (counts.gather(order.dim, places) > 1))


def _alike_in_f32(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Whether numbers that were computed in f64 may be equal, or in the other order, as a kernel computes them in f32:
    probabilities that underflow. Numbers that an f32 holds were given, or are exact in any arithmetic."""
    if not a.is_floating_point():
        return torch.zeros_like(a, dtype=torch.bool)
    least = torch.finfo(torch.float32).tiny
    computed = (a.float().double() != a) | (b.float().double() != b)
    within = ELEMENT_WORK * 2.0**-24 * torch.maximum(a.abs(), b.abs()) + least
    return computed & ((a - b).abs() <= within)


def _is_cast_of(found: torch.Tensor, floats: Expected) -> torch.Tensor:
    """Whether integers are casts of floats that are right, or of floats that have no place among the integers.

    Floats that are whole in every run, as rounding makes them, move by whole steps: there integers that no run has are
    wrong.
    """
    truth, wide = floats.truth.double(), found.double()
    runs = [truth, *(one.double() for one in floats.moved)]
    apart = _Errors.of(floats.own, floats.own, truth)
    movement = _movement(floats, truth, apart.finite, PLAIN)
    allowed = _Yardstick(floats.own.dtype, apart, movement, floats.contracted).allowed()
    is_whole = torch.stack([one == one.round() for one in runs]).all(0) & (truth.abs() < _ROUNDED_BY_TYPE)
    if floats.steps:  # and numbers of few bits, such as halves, are the same in every run
        is_whole |= torch.stack([one == truth for one in runs]).all(0)
    least, most_of_it = (stepped(one, floats.steps).trunc() for one in (truth - allowed, truth + allowed))
    right = ~is_whole & (wide >= least) & (wide <= most_of_it)
    most = 2.0 ** (max(8 * found.dtype.itemsize, 32) - 1)  # narrower ones are cast by way of 32 bits
    return right | ~torch.stack([one.abs() < most for one in (*runs, floats.own.double())]).all(0)


@dataclass(frozen=True)
class _Errors:
    """The errors of a result and of the reference at its dtype, by element."""

    finite: torch.Tensor  # where the truth is finite, and the reference or the result
    misplaced: torch.Tensor  # NaN or infinity that the reference does not have there
    size: torch.Tensor  # of the truth; this and the errors are 0 where not finite
    error: torch.Tensor
    own_error: torch.Tensor

    @classmethod
    def of(cls, found: torch.Tensor, own: torch.Tensor, truth: torch.Tensor) -> _Errors:
        if not are_numbers(found, own, truth):
            return cls._with_others(found.double(), own.double(), truth)
        finite = torch.ones_like(truth, dtype=torch.bool)
        errors = [(_exactly(one) - truth).abs_() for one in (found, own)]
        return cls(finite, torch.zeros_like(finite), truth.abs(), *errors)

    @classmethod
    def _with_others(cls, wide: torch.Tensor, own: torch.Tensor, truth: torch.Tensor) -> _Errors:
        known, own_finite, found_finite = truth.isfinite(), own.isfinite(), wide.isfinite()
        # Where the dtype overflows and f64 does not, both the reference's answer and a number near the truth are right,
        # such as that of a kernel that accumulates in f32.
        finite = known & (own_finite | found_finite)
        special = torch.where(known & ~own_finite, own, truth)
        misplaced = ~finite & ~((wide == special) | (wide.isnan() & special.isnan()))
        misplaced |= finite & ~found_finite
        size = torch.where(finite, truth.abs(), 0.0)
        error = torch.where(finite & found_finite, (wide - truth).abs(), 0.0)
        return cls(finite, misplaced, size, error, torch.where(finite & own_finite, (own - truth).abs(), 0.0))


def are_numbers(*tensors: torch.Tensor) -> bool:
    """Whether every element is finite. Their sum is then finite unless it overflows, and is quicker to test."""
    total = sum((one.sum(dtype=torch.float64) for one in tensors), torch.zeros(()))
    return bool(total.isfinite()) or all(bool(_exactly(one).isfinite().all()) for one in tensors)


def _exactly(values: torch.Tensor) -> torch.Tensor:
    """Values that f64 arithmetic promotes exactly: f32 needs no copy."""
    return values if values.dtype == torch.float32 else values.double()


def _close(found: torch.Tensor, expected: Expected, tolerance: float | None, traits: ValueTraits) -> Comparison:
    truth = expected.truth.double()
    # The reference may return a wider dtype than the result's.
    own = expected.own.to(found.dtype)
    apart = _Errors.of(found, own, truth)
    error, misplaced = apart.error, apart.misplaced
    if tolerance is not None:
        usual = apart.size.square().mean().sqrt() if truth.numel() else apart.size.sum()
        allowed = tolerance * torch.maximum(apart.size, usual)
        wrong, ratio = error > allowed, _worst(error, allowed)
    else:
        yardstick = _Yardstick(
            found.dtype, apart, _movement(expected, truth, apart.finite, traits), expected.contracted
        )
        allowed = yardstick.allowed()
        if traits.mixed:
            error = torch.where(yardstick.unsure(allowed), error / GROSS, error)
            misplaced = misplaced & ~_unsettled(expected, found.dtype)
        if bool(misplaced.any()):
            misplaced = misplaced & ~_overflows(found, truth, allowed)
        wrong, ratio = yardstick.judge(error, allowed)
        if yardstick.is_narrow and traits.even:
            lean = _lean(found.double() - truth, own.double() - truth, truth, apart.finite, yardstick)
            wrong = apart.finite if lean > 1.0 and not bool(wrong.any()) else wrong
            ratio = max(ratio, lean)
    if bool(misplaced.any()):
        error, wrong, ratio = torch.where(misplaced, math.inf, error), wrong | misplaced, math.inf
    usual_size = _mean_square(apart.size)
    leeway = _mean_square(allowed) / usual_size if usual_size > 0 else 0.0
    own_worst = float(apart.own_error.max()) if truth.numel() else 0.0
    return Comparison(wrong, error, allowed, own_worst, ratio, leeway)


def _overflows(found: torch.Tensor, truth: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    """Where infinity is what the dtype makes of the truth, within what is allowed; or NaN, in f32, whose partial sums
    may overflow to both sides where the truth does."""
    kind = torch.finfo(found.dtype)
    beyond = truth.abs() + allowed >= kind.max * (1 + kind.eps / 4)
    is_right = found.double() == truth.sign() * math.inf
    if found.dtype == torch.float32:
        is_right |= found.isnan() & truth.isfinite() & (truth.abs() > kind.max)
    return beyond & is_right


def _lean(error: torch.Tensor, own: torch.Tensor, truth: torch.Tensor, finite: torch.Tensor, by: _Yardstick) -> float:
    """The bias of all errors, constant or proportional to the result, relative to what chance explains. Roundings fall
    to both sides; a factor or an offset that is off by less than one rounding does not."""
    settled = finite if by.movement is None else finite & by.movement.isfinite()
    count = int(settled.sum())
    if count < _LEAST_LEANING or by.usual_share > by.rounding / 8:
        return 0.0
    truth, error, own = (torch.where(settled & one.isfinite(), one, 0.0) for one in (truth, error, own))
    sample = truth[settled][:: max(count // _SAMPLE, 1)]
    # Equal numbers are rounded to the same side, and so are numbers that differ by powers of two.
    repeats = sample.numel() / max(int(torch.unique(sample).numel()), 1)
    rows = max(count // max(truth.shape[-1], 1), 1)
    repeats = max(repeats, 2.0 * by.rounding * count / rows)
    deviation = by.rounding * math.sqrt(2.0 / 3.0) * math.sqrt(repeats)  # of two roundings, relative to the number
    worst = 0.0
    for weight in (torch.ones_like(truth), truth):
        size = float((weight * truth).square().sum().sqrt())
        found, usual = abs(float((weight * error).sum())), abs(float((weight * own).sum()))
        allowed = LEANING * deviation * size + LEANING_OWN * usual + by.least * float(weight.abs().sum())
        worst = max(worst, found / allowed if allowed else 0.0)
    return worst


def _unsettled(expected: Expected, dtype: torch.dtype) -> torch.Tensor:
    """Elements that are finite, infinite or NaN depending on the arithmetic."""
    # 0 for a number, 1 and -1 for the infinities, 2 for NaN
    results = [one.to(dtype) for one in (expected.own, expected.truth, *expected.moved)]
    infinite = [torch.where(one.isinf(), one.sign(), 0.0).double() for one in results]
    kinds = [torch.where(one.isnan(), 2.0, sign) for one, sign in zip(results, infinite, strict=True)]
    return torch.stack([one != kinds[0] for one in kinds]).any(0)


def _movement(
    expected: Expected, truth: torch.Tensor, finite: torch.Tensor, traits: ValueTraits
) -> torch.Tensor | None:
    """The root mean square movement of each element under perturbations; infinite where it may overflow. None without
    perturbations."""
    if not expected.moved:
        return None
    total = torch.zeros_like(truth)
    for moved in expected.moved:
        total += (moved.double() - truth).square_()
    if not (bool(finite.all()) and are_numbers(total)):  # what becomes NaN may be anywhere
        total = torch.where(finite, torch.where(total.isnan(), math.inf, total), 0.0)
    lucky = FEW_MOVES if len(expected.moved) < 3 else 1.0
    return total.div_(len(expected.moved)).sqrt_().mul_(lucky * (ONE_SIDED if traits.one_sided else 1.0))


def _mean_square(values: torch.Tensor) -> float:
    found = float(torch.linalg.vector_norm(values)) / math.sqrt(max(values.numel(), 1))
    if math.isfinite(found):
        return found
    return math.sqrt(float(torch.where(values.isfinite(), values, math.nan).square().nanmean()))


def _worst(error: torch.Tensor, allowed: torch.Tensor) -> float:
    return float((error / allowed.clamp(min=1e-300)).max()) if error.numel() else 0.0


class _Yardstick:
    """What is allowed, by element and by tile. Its tensors are cut into tiles, one per row."""

    def __init__(self, dtype: torch.dtype, apart: _Errors, movement: torch.Tensor | None, contracted: bool) -> None:
        kind = torch.finfo(dtype)
        self._tiles = Tiles(tuple(apart.size.shape), apart.size.device)
        self._size, self._own = self._tiles.cut(apart.size), self._tiles.cut(apart.own_error)
        self.movement = movement
        self.rounding = kind.eps / 2
        # Results below the normal range are judged absolutely. With the range of f32 or more, so are results computed
        # from such numbers: a fraction with an overflowing exponential, a square that underflows.
        self.least = kind.tiny if kind.tiny > _LEAST_OF_NARROW else kind.tiny / torch.finfo(torch.float32).eps
        self.is_narrow = self.rounding >= _NARROW_ROUNDING
        # Without a contraction, an element of a narrow type has rounding errors of its own size only.
        self._by_itself = self.is_narrow and not contracted
        # Rounding the terms of a sum, such as attention weights, moves a whole row.
        self._rows_move = self.is_narrow and contracted
        self._tile_size = self._tiles.mean_square(self._size)
        # The reference may be accurate in one tile by chance; its error elsewhere counts there too.
        tile_own = self._tiles.mean_square(self._own)
        total = self._tiles.total(self._tile_size)
        relative = self._tiles.total(tile_own) / total if total else 0.0
        self._tile_own = torch.maximum(tile_own, relative * self._tile_size)
        self.usual_share = 0.0
        if movement is not None:
            self._take_movement(self._tiles.cut(movement))

    def _take_movement(self, movement: torch.Tensor) -> None:
        """A few perturbations can all be small for one element or row by chance. So the median relative movement counts
        too: of the element's tile and of all tiles for an element, of all tiles for a tile."""
        self._moves = movement
        self._settled = None if are_numbers(movement) else movement.isfinite()
        numbers = movement if self._settled is None else torch.where(self._settled, movement, 0.0)
        moved = self._tiles.mean_square(numbers)
        self._tile_movement = torch.maximum(moved, _middle(moved / self._tile_size) * self._tile_size)
        share = self._tiles.median(torch.where(self._size > 0, movement / self._size, math.nan))
        self.usual_share = _middle(share)
        self._tile_share = share.clamp(min=self.usual_share)

    def allowed(self) -> torch.Tensor:
        """The allowed error of every element, in the shape of the result."""
        if self._by_itself:
            excess = self._tiles.mean_square((self._own - self.rounding * self._size).clamp_(min=0.0))
            of_tile = ELEMENT_WORK * 2.0**-24 * self._tile_size + self.least
            of_own, of_size = ELEMENT_OWN * excess, ELEMENT_OF_NARROW * self.rounding
        else:
            of_tile = ELEMENT_ROUNDING * self.rounding * self._tile_size + self.least
            of_own, of_size = ELEMENT_OWN * self._tile_own, ELEMENT_ROUNDING * self.rounding
        allowed = (ELEMENT_ROUNDING * self._own).clamp_(min=of_own[:, None])
        allowed.add_(self._size, alpha=of_size).add_(of_tile[:, None])
        if self.movement is not None:
            movement = torch.maximum(self._moves, self._tile_movement[:, None])
            movement = torch.maximum(movement, self._tile_share[:, None] * self._size, out=movement)
            allowed.add_(movement, alpha=ELEMENT_NOISE)
        return self._tiles.whole(allowed)

    def unsure(self, allowed: torch.Tensor) -> torch.Tensor:
        """The elements of tiles where so much is allowed that a comparison proves little."""
        numbers = self._tiles.cut(torch.where(allowed.isfinite(), allowed, 0.0))
        return self._tiles.spread(self._tiles.mean_square(numbers) > MOST_LEEWAY * self._tile_size + 4 * self.least)

    def judge(self, error: torch.Tensor, allowed: torch.Tensor) -> tuple[torch.Tensor, float]:
        """Which elements are wrong, and the worst error over what is allowed, of an element or a tile.

        A tile is blamed as a whole only where none of its elements is.
        """
        wrong = error > allowed
        tiles_wrong, tiles_ratio = self._judge_tiles(self._tiles.cut(error))
        if bool(tiles_wrong.any()):
            wrong |= self._tiles.spread(tiles_wrong & ~self._tiles.cut(wrong).any(-1))
        return wrong, max(_worst(error, allowed), tiles_ratio)

    def _judge_tiles(self, error: torch.Tensor) -> tuple[torch.Tensor, float]:
        moves = self.movement is not None
        settled = error if not moves or self._settled is None else torch.where(self._settled, error, 0.0)
        found = self._tiles.mean_square(settled)
        usual = torch.maximum(self._tile_own, self.rounding / math.sqrt(3.0) * self._tile_size)
        factor = torch.where(self._tiles.counts < LEAST_TILE, SMALL_TILE_ROUNDING, TILE_ROUNDING)
        # The effective number of elements that dominate a tile: all where they are alike, one where one is far larger.
        largest = self._tile_size.clamp(min=1e-300)[:, None]
        fourth = self._tiles.mean_square((self._size / largest).square_()).square()
        dominating = self._tiles.counts / fourth.clamp(min=1e-300)
        factor = torch.where(dominating < FEW_ELEMENTS, FEW_ROUNDING, factor)
        limit = factor * usual
        if moves:
            limit = (limit.square() + (TILE_NOISE * self._tile_movement).square()).sqrt()
        limit = limit + self.least
        too_large = found > limit
        if self._rows_move and int(too_large.sum()) <= _RARE * too_large.numel():
            limit = limit * (FEW_ROUNDING / TILE_ROUNDING)
            too_large = found > limit
        return too_large, _worst(found, limit)


def _middle(values: torch.Tensor) -> float:
    found = values.nanmedian() if values.numel() else values.sum()
    return float(found) if bool(found.isfinite()) else 0.0
