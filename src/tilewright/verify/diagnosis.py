"""In the reference's process: what is wrong with an output, in one sentence with numbers, and its first wrong elements.

Values are examined before positions: a result that is transposed, scaled or shifted is wrong nearly everywhere, and
saying that would not help to fix it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import torch

from tilewright.records import Pattern, WrongElement, WrongOutput
from tilewright.verify.tolerance import Comparison, Expected

# -- positions of wrong elements --

_NEARLY_ALL = 0.8  # of a row or column: some wrong elements are right by chance
_EVERYWHERE = 0.98


def place_of(wrong: torch.Tensor) -> tuple[Pattern, str]:
    """The pattern of the wrong elements, and its description."""
    flat = wrong.flatten().cpu()
    count, elements = int(flat.sum()), flat.numel()
    if count >= _EVERYWHERE * elements:
        return Pattern.ALL, f"all {elements} elements" if count == elements else f"{count} of {elements} elements"
    if count == 1:
        index = wrong.nonzero()[0].tolist()
        is_last = bool(flat[-1])
        return Pattern.TAIL if is_last else Pattern.SCATTERED, f"{'the last' if is_last else 'one'} element, {index}"
    if wrong.ndim >= 2 and wrong.shape[-1] > 1:
        mask = wrong.reshape(-1, wrong.shape[-1]).cpu()
        found = _columns(mask) or _rows(mask, wrong.shape) or _flat_tail(flat) or _box(mask)
    else:
        found = _flat_tail(flat)
    periodic = _step("element", flat.nonzero().flatten().tolist(), elements)
    return found or periodic or (Pattern.SCATTERED, f"{count} of {elements} elements, scattered")


def _columns(mask: torch.Tensor) -> tuple[Pattern, str] | None:
    """The same columns in every row."""
    rows, width = mask.shape
    share = mask.double().mean(0)
    bad = share >= _NEARLY_ALL
    if not bool(bad.any()) or bool((share[~bad] > 0.02).any()) or rows < 2:
        return None
    columns = bad.nonzero().flatten().tolist()
    first, last = columns[0], columns[-1]
    if len(columns) == last - first + 1:
        if last == width - 1:
            return Pattern.TAIL, f"the last {_many(len(columns), 'element')} of each row (columns {first} to {last})"
        return Pattern.COLUMNS, f"{_span('column', first, last)} of {width}, in every row"
    return _step("column", columns, width) or (Pattern.COLUMNS, f"{_many(len(columns), 'column')}: {_list(columns)}")


def _rows(mask: torch.Tensor, shape: torch.Size) -> tuple[Pattern, str] | None:
    height = mask.shape[0]
    share = mask.double().mean(1)
    bad = share >= _NEARLY_ALL
    if not bool(bad.any()) or bool((share[~bad] > 0.02).any()):
        return None
    rows = bad.nonzero().flatten().tolist()
    first, last = rows[0], rows[-1]
    unit = "row" if len(shape) == 2 else "row of the last dimension"
    if len(rows) == last - first + 1:
        if last == height - 1 and first:
            return Pattern.ROWS, f"the last {_many(len(rows), unit)} of {height} ({_span('row', first, last)})"
        return Pattern.ROWS, f"{_span(unit, first, last)} of {height}"
    return _step("row", rows, height) or (Pattern.ROWS, f"{_many(len(rows), unit)} of {height}: {_list(rows)}")


def _flat_tail(flat: torch.Tensor) -> tuple[Pattern, str] | None:
    first = int(flat.nonzero()[0])
    length = flat.numel() - first
    if first == 0 or float(flat[first:].double().mean()) < _NEARLY_ALL or length < 2:
        return None
    return Pattern.TAIL, f"from flat index {first} on: the last {length} of {flat.numel()} elements"


def _box(mask: torch.Tensor) -> tuple[Pattern, str] | None:
    places = mask.nonzero()
    (top, left), (bottom, right) = places.min(0).values.tolist(), places.max(0).values.tolist()
    area = (bottom - top + 1) * (right - left + 1)
    if area > mask.numel() // 2 or places.shape[0] < 0.6 * area or places.shape[0] < 4:
        return None
    return Pattern.ONE_TILE, f"one block of the output: {_span('row', top, bottom)}, {_span('column', left, right)}"


def _step(unit: str, places: list[int], size: int) -> tuple[Pattern, str] | None:
    """Every k-th, all the way to the end."""
    if len(places) < 3:
        return None
    step = places[1] - places[0]
    regular = all(b - a == step for a, b in itertools.pairwise(places))
    if step < 2 or not regular or places[-1] + step < size or places[0] >= step:
        return None
    return Pattern.PERIODIC, f"every {_ordinal(step)} {unit}, starting at {places[0]}"


# -- wording --


def _many(count: int, unit: str) -> str:
    head, _, rest = unit.partition(" ")
    return f"{count} {head}{'s' if count != 1 else ''}" + (f" {rest}" if rest else "")


def _span(unit: str, first: int, last: int) -> str:
    head, _, rest = unit.partition(" ")
    tail = f" {rest}" if rest else ""
    return f"{head}{tail} {first}" if first == last else f"{head}s{tail} {first} to {last}"


def _list(places: list[int]) -> str:
    shown = ", ".join(map(str, places[:8]))
    return shown + (", ..." if len(places) > 8 else "")


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


# -- the diagnosis --

_SHOWN = 5
_MOST = 0.95  # of the elements that a pattern must explain
_LARGEST_EXPONENT = 88.7
_GROSS = 0.1  # of an element's size: a larger error is not a precision problem

_LOOK_FOR_A_SUM = "look for a sum or a norm that misses or adds elements"
_LEAST_LEANING = 64  # elements: the errors of fewer are biased by chance
_LEAST_ELEMENTS = 8  # elements: fewer fit anything
_UNEXPLAINED = 0.03  # of the squared error at most: in 16 bits, rounding is this much of an error of 1%
_MOST_ROWS = 0.5  # of the non-zero rows must be wrong: some factors are 1 by chance
_SAME_FACTOR = 0.02  # of their distance from 1: factors nearer to each other are one factor

# Relative roundings of types, coarsest first.
_COARSE = ((2.0**-4, "fp8"), (2.0**-9, "bf16"), (2.0**-12, "TF32 or f16"))


def diagnose(
    name: str,
    found: torch.Tensor,
    expected: Expected,
    comparison: Comparison,
    inputs: Mapping[str, torch.Tensor],
) -> WrongOutput:
    """The diagnosis of an output with at least one wrong element."""
    pattern, description = _Diagnosis(found, expected, comparison, inputs).say()
    finite = comparison.error.isfinite()
    settled = torch.where(finite & comparison.wrong, comparison.error, -1.0)
    worst = int(settled.argmax())
    has_worst = float(settled.flatten()[worst]) >= 0
    return WrongOutput(
        output=name,
        wrong=int(comparison.wrong.sum()),
        elements=comparison.wrong.numel(),
        pattern=pattern,
        description=description,
        worst_error=float(comparison.error.flatten()[worst]) if has_worst else None,
        allowed_error=float(comparison.allowed.flatten()[worst]) if has_worst else None,
        reference_error=comparison.own_worst,
        first=_first(found, expected, comparison),
    )


def _first(found: torch.Tensor, expected: Expected, comparison: Comparison) -> tuple[WrongElement, ...]:
    places = [tuple(place) for place in comparison.wrong.nonzero()[:_SHOWN].tolist()]
    values = (expected.truth, found, comparison.allowed)
    return tuple(WrongElement(index, *(float(one[index]) for one in values)) for index in places)


class _Diagnosis:
    def __init__(
        self, found: torch.Tensor, expected: Expected, comparison: Comparison, inputs: Mapping[str, torch.Tensor]
    ) -> None:
        self._found = found
        self._wide = found.double()
        self._truth = expected.truth.double()
        self._wrong = comparison.wrong
        self._error = comparison.error
        self._allowed = comparison.allowed
        self._inputs = inputs
        finite = self._truth[self._truth.isfinite()]
        self._usual = float(finite.square().mean().sqrt()) if finite.numel() else 0.0

    def say(self) -> tuple[Pattern, str]:
        by_value = self._unwritten() or self._not_finite()
        if by_value is not None:
            return by_value
        if self._found.is_floating_point() and self._error.numel() > 1:
            by_value = (
                self._rearranged()
                or _factor_of_rows(self._wide, self._truth, self._wrong, self._allowed)
                or self._precision()
                or self._scaled()
            )
            if by_value is not None:
                return by_value
        pattern, where = place_of(self._wrong)
        return pattern, where + self._held()

    # -- by value --

    def _unwritten(self) -> tuple[Pattern, str] | None:
        """Outputs are poisoned with bytes of 0xFF: NaN in every float type and -1 in every signed integer."""
        raw = self._found.contiguous().flatten().view(torch.uint8).view(self._found.numel(), -1)
        poison = (raw == 0xFF).all(-1).view(self._found.shape) & self._wrong
        count = int(poison.sum())
        if self._found.dtype == torch.bool or count < _MOST * int(self._wrong.sum()):
            return None
        _, where = place_of(poison)
        return Pattern.UNWRITTEN, f"never written, they hold what was there before: {where}"

    def _not_finite(self) -> tuple[Pattern, str] | None:
        if not self._found.is_floating_point():
            return None
        made = self._wrong & ~self._wide.isfinite() & self._truth.isfinite()
        lost = self._wrong & ~self._truth.isfinite()
        count, wrong = int(made.sum()), int(self._wrong.sum())
        if count * 2 >= wrong:
            nans = int((made & self._wide.isnan()).sum())
            kinds = (
                "NaN" if nans == count else "infinity" if nans == 0 else f"NaN ({nans}) and infinity ({count - nans})"
            )
            first = made.nonzero()[0].tolist()
            _, where = place_of(made)
            return Pattern.NOT_FINITE, f"{kinds} where a number belongs, first at {first}: {where}{self._origin()}"
        if int(lost.sum()) * 2 >= wrong:
            first = lost.nonzero()[0].tolist()
            value, held = float(self._truth[tuple(first)]), float(self._wide[tuple(first)])
            kind = "a number" if math.isfinite(held) else "NaN" if math.isnan(held) else f"{held}"
            text = f"{kind} where {value} belongs, in {int(lost.sum())} elements, first at {first}"
            if bool((self._truth.isnan() & ~self._wide.isnan())[self._wrong].all()):
                return Pattern.NAN_DROPPED, f"{text}; all other elements are right"
            return Pattern.NOT_FINITE, text
        return None

    def _origin(self) -> str:
        floats = {name: one for name, one in self._inputs.items() if one.is_floating_point() and one.numel()}
        not_finite = [name for name, one in floats.items() if not bool(one.isfinite().all())]
        if not_finite:
            return f"; the inputs {', '.join(not_finite)} hold NaN or infinity themselves"
        largest = {name: float(one.double().abs().max()) for name, one in floats.items()}
        if not largest:
            return ""
        name = max(largest, key=lambda one: largest[one])
        text = f"; every input is finite, {name} reaches {largest[name]:.4g}: look for "
        if largest[name] > _LARGEST_EXPONENT:
            text += f"an exponential (f32 overflows beyond {_LARGEST_EXPONENT}), "
        return text + "a root or logarithm of a negative number, a division by zero, or a read of unwritten memory"

    def _precision(self) -> tuple[Pattern, str] | None:
        """Errors that are small everywhere, but not small enough."""
        scale = self._truth.abs() + self._usual
        finite = self._truth.isfinite()
        if self._usual == 0 or bool((self._error[finite] > _GROSS * scale[finite]).any()):
            return None
        relative = float(self._error[finite].square().mean().sqrt()) / self._usual
        known = self._found.dtype
        rounding = torch.finfo(known).eps / 2
        share = int(self._wrong.sum()) / self._wrong.numel()
        if share < 0.05:
            return None  # few elements that are slightly off: their positions say more
        times = relative / float(torch.finfo(known).eps / 2 / math.sqrt(3))
        truth, signed = self._truth[finite], (self._wide - self._truth)[finite]
        factor = 1.0 + float((signed * truth).sum() / truth.square().sum())
        if truth.numel() >= _LEAST_LEANING and abs(factor - 1.0) > relative / 2:
            text = f"and they lean one way: the result is about {factor:.4g} times what it should be"
        elif rounding > 2.0**-12:
            text = f"{times:.1f} times one rounding to the result's type: keep sums and intermediate results in f32"
        else:
            near = min(_COARSE, key=lambda one: abs(math.log(relative / one[0]))) if relative > 0 else _COARSE[-1]
            like = f", like work in {near[1]}" if 0.1 < relative / near[0] < 10 else ""
            text = f"{times:.0f} times one rounding of f32{like}"
        text = f"errors are small but everywhere: {relative:.2g} of the result in the mean square, {text}"
        return Pattern.PRECISION, text

    def _agrees(self, candidate: torch.Tensor) -> bool:
        """Whether the result is nearly the candidate, and the truth is not."""
        slack = self._allowed + 1e-3 * self._usual
        close = (self._wide - candidate).abs() <= slack
        differs = (self._truth - candidate).abs() > slack
        return bool(close.double().mean() >= _MOST) and bool(differs.double().mean() >= 0.1)

    def _rearranged(self) -> tuple[Pattern, str] | None:
        truth, shape = self._truth, self._truth.shape
        if truth.ndim >= 2 and min(shape[-2:]) > 1 and self._agrees(truth.transpose(-1, -2).reshape(shape)):
            text = f"the result is transposed in its last two dimensions ({shape[-2]} and {shape[-1]})"
            return Pattern.TRANSPOSED, text
        flat = truth.flatten()
        row = shape[-1] if truth.ndim > 1 else 0
        steps = [step for one in (1, 2, 3, 4, row) if one for step in (one, -one)]
        for step in steps:
            if abs(step) < flat.numel() and self._agrees(flat.roll(step).view(shape)):
                unit = "one row" if abs(step) == row else f"{abs(step)} element{'s' if abs(step) > 1 else ''}"
                way = "late" if step > 0 else "early"
                return Pattern.SHIFTED, f"the result is shifted: every element stands {unit} too {way}"
        for name, one in self._inputs.items():
            if one.shape == shape and self._agrees(given := one.double()):
                rounding = torch.finfo(self._found.dtype).eps * given.abs()  # several inputs may be similar
                if bool(((self._wide - given).abs() <= rounding).double().mean() >= _MOST):
                    return Pattern.ALL, f"the result is the input {name}, unchanged"
        return None

    def _scaled(self) -> tuple[Pattern, str] | None:
        large = self._truth.isfinite() & (self._truth.abs() > 0.1 * self._usual)
        if self._usual == 0 or int(large.sum()) < 2:
            return None
        factor = float((self._wide[large] / self._truth[large]).median())
        if abs(factor) > 1e-6 and self._agrees_within(factor * self._truth, 1e-2):
            text = f"the result is {_ratio(factor)} times what it should be, everywhere"
            one_row = self._truth.ndim > 1 and self._truth.numel() == self._truth.shape[-1]
            return Pattern.SCALED, text + (f" in its only row: {_LOOK_FOR_A_SUM}" if one_row else "")
        added = float((self._wide - self._truth)[self._truth.isfinite()].median())
        if self._agrees_within(self._truth + added, 1e-3) and float(self._truth.std()) > 0.05 * self._usual:
            return Pattern.ALL, f"{added:.4g} is added to every element"
        return None

    def _agrees_within(self, candidate: torch.Tensor, share: float) -> bool:
        slack = self._allowed + share * candidate.abs()
        close = (self._wide - candidate).abs() <= slack
        return bool(close.double().mean() >= _MOST) and float(self._wrong.double().mean()) >= 0.5

    def _held(self) -> str:
        values = self._wide[self._wrong]
        equal = values.numel() > 1 and bool((values == values[0]).all())
        return f"; they all hold {float(values[0]):.6g}" if equal else ""


def _ratio(factor: float) -> str:
    """0.125, 2.5 or 1/37: the shortest that says it."""
    inverse = 1.0 / factor
    if abs(factor) < 1 and abs(inverse - round(inverse)) < 0.01 * abs(inverse) and abs(inverse) > 1.5:
        whole = round(inverse)
        return f"{1 / whole:.4g} (1/{whole})"
    return f"{factor:.4g}"


# -- rows scaled by a factor: a sum or norm that skips an element does that, with errors that look like rounding --


def _factor_of_rows(
    found: torch.Tensor, truth: torch.Tensor, wrong: torch.Tensor, allowed: torch.Tensor
) -> tuple[Pattern, str] | None:
    """Factors or offsets by row, else by column. All tensors are f64 and of one shape."""
    if truth.numel() < _LEAST_ELEMENTS or not bool((found.isfinite() & truth.isfinite()).all()):
        return None
    shape = (-1, truth.shape[-1]) if truth.ndim > 1 else (1, -1)
    table = [one.reshape(shape) for one in (found, truth, wrong, allowed)]
    return _explained("row", *table) or _explained("column", *(one.T for one in table))


def _explained(
    unit: str, found: torch.Tensor, truth: torch.Tensor, wrong: torch.Tensor, allowed: torch.Tensor
) -> tuple[Pattern, str] | None:
    if truth.shape[1] < 2:
        return None
    counted = truth.square().sum(1) > 0
    factors = (found * truth).sum(1)[counted] / truth.square().sum(1)[counted]
    found, truth, wrong, allowed = found[counted], truth[counted], wrong[counted], allowed[counted]
    if not counted.any() or float(wrong.any(1).double().mean()) < _MOST_ROWS:
        return None
    first = int(counted.nonzero()[0])
    if _fits(found - factors[:, None] * truth, found - truth, allowed) and bool((factors.abs() > 1e-3).all()):
        away = float((factors - 1).abs().max())
        if float(factors.max() - factors.min()) <= _SAME_FACTOR * away:
            return _of_all(unit, float(factors.mean()), alone=len(factors) == 1)
        return Pattern.SCALED, (
            f"each {unit} is scaled by a factor of its own ({unit} {first}: {float(factors[0]):.5g}): "
            f"look for a sum or a norm over the {unit} that misses or adds elements"
        )
    added = (found - truth).mean(1)
    if len(added) > 1 and _fits(found - truth - added[:, None], found - truth, allowed):
        if float(added.max() - added.min()) <= _SAME_FACTOR * float(added.abs().max()):
            return None  # one number everywhere
        return Pattern.ALL, (
            f"each {unit} has a number of its own added ({unit} {first}: {float(added[0]):.5g}): "
            f"look for a mean, a maximum or a logarithm of a sum over the {unit} that misses or adds elements"
        )
    return None


def _of_all(unit: str, factor: float, alone: bool) -> tuple[Pattern, str] | None:
    """One factor for the whole result, where it is so close to 1 that it would pass for lost precision."""
    if abs(factor - 1) > 0.1:
        return None
    where = f"everywhere in its only {unit}" if alone else "everywhere"
    return Pattern.SCALED, (
        f"the result is {factor:.5g} times what it should be, {where}: {_LOOK_FOR_A_SUM}, or a count that is off by one"
    )


def _fits(left: torch.Tensor, error: torch.Tensor, allowed: torch.Tensor) -> bool:
    """Whether the remaining error is negligible, in total and in nearly every row."""
    squared, whole = left.square().sum(1), error.square().sum(1)
    by_row = squared <= 2 * _UNEXPLAINED * whole + allowed.square().sum(1)
    return float(squared.sum()) <= _UNEXPLAINED * float(whole.sum()) and float(by_row.double().mean()) >= 0.95
