"""A formula for a size that was seen in several calls: of one, two or three sizes, the simplest that fits them all."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from tilewright.records import SizeFormula, SizeTerm

_LARGEST_DIVISOR = 16
_MOST_SOURCES = 3
_MOST_FACTORS = 3

Sample = tuple[Mapping[str, int], int]  # the sizes of a call, and the size that came back


def fit_formula(start: Sample, steps: Mapping[str, Sequence[Sample]], others: Sequence[Sample]) -> SizeFormula | None:
    """The simplest formula for what came back, or None.

    `steps` holds for each label calls that differ from `start` in that label alone; a formula is made from these. It
    must fit `others` too, of which it has not seen any.
    """
    sources = [label for label, samples in steps.items() if any(found != start[1] for _, found in samples)]
    if not 1 <= len(sources) <= _MOST_SOURCES or len(others) < 2:
        return None
    samples = [start, *(sample for label in sources for sample in steps[label])]
    for divisor in range(1, _LARGEST_DIVISOR + 1):
        for formula in _candidates(sources, divisor, start, steps, samples):
            if all(formula.at(sizes) == found for sizes, found in (*samples, *others)):
                return formula
    return None


def _candidates(
    sources: Sequence[str],
    divisor: int,
    start: Sample,
    steps: Mapping[str, Sequence[Sample]],
    samples: Sequence[Sample],
) -> Iterator[SizeFormula]:
    slopes = [_slopes(label, divisor, start, steps[label]) for label in sources]
    for chosen in itertools.product(*slopes):
        terms = [SizeTerm(slope, (label,)) for slope, label in zip(chosen, sources, strict=True)]
        constant = _constant(terms, divisor, samples)
        if constant is not None:
            yield SizeFormula.of(terms, constant, divisor)
    for count in range(max(len(sources), 2), _MOST_FACTORS + 1):
        for names in itertools.combinations_with_replacement(sources, count):
            product = math.prod(start[0][name] for name in names)
            factor = -(-start[1] * divisor // product) if product else 0
            if factor and {*names} == {*sources}:
                yield SizeFormula.of([SizeTerm(factor, names)], 0, divisor)


def _slopes(label: str, divisor: int, start: Sample, samples: Sequence[Sample]) -> Iterator[int]:
    """Whole numbers by which the undivided size may grow with a label, from the call that is farthest away."""
    sizes, found = max(samples, key=lambda sample: abs(sample[0][label] - start[0][label]))
    way, grown = sizes[label] - start[0][label], found - start[1]
    if way < 0:
        way, grown = -way, -grown
    lowest, highest = (grown - 1) * divisor // way + 1, -((-grown - 1) * divisor // way) - 1
    return (slope for slope in range(lowest, highest + 1) if slope)


def _constant(terms: Sequence[SizeTerm], divisor: int, samples: Sequence[Sample]) -> int | None:
    """The simplest constant with which rounding down gives what was seen everywhere; None where there is none."""
    formula = SizeFormula.of(terms)
    rests = [divisor * found - formula.at(sizes) for sizes, found in samples]
    possible = range(max(rests), min(rests) + divisor)
    return min(possible, key=lambda one: (one % divisor != 0, abs(one)), default=None)
