"""Candidate formulas between input sizes, and the simplest formula that fits a size observed in several calls."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from tilewright.records import SizeFormula, SizeTerm

_LARGEST_FACTOR = 8
_MOST_LABELS = 8  # of more, only the first are tried
_MOST_FOLLOWING = 3  # labels given by one other

Relation = dict[str, SizeFormula]  # by label; those named in the formulas are free
_LARGEST_DIVISOR = 16
_MOST_SOURCES = 3
_MOST_FACTORS = 3

Sample = tuple[Mapping[str, int], int]  # the sizes of a call, and the observed size


# -- between inputs --


def relations(sizes: Mapping[str, int]) -> Iterator[Relation]:
    """All candidate relations that hold at the given sizes; more free labels first, then simpler ones."""
    labels = list(sizes)[:_MOST_LABELS]
    yield from _products(labels, sizes)
    yield from _sums(labels, sizes)
    for count in range(1, min(len(labels) - 1, _MOST_FOLLOWING) + 1):
        for lead, *others in itertools.combinations(labels, count + 1):
            for formulas in itertools.product(*(_pair(lead, other, sizes) for other in others)):
                yield dict(zip(others, formulas, strict=True))


def _products(labels: Sequence[str], sizes: Mapping[str, int]) -> Iterator[Relation]:
    for one, other in itertools.combinations(labels, 2):
        product = sizes[one] * sizes[other]
        for label in labels:
            factor = sizes[label] // product
            if label not in (one, other) and factor * product == sizes[label] and 1 <= factor <= _LARGEST_FACTOR:
                yield {label: SizeFormula.of([SizeTerm(factor, (one, other))])}


def _sums(labels: Sequence[str], sizes: Mapping[str, int]) -> Iterator[Relation]:
    triples = list(itertools.combinations(labels, 3))
    for triple in triples:
        whole = max(triple, key=lambda label: sizes[label])
        one, other = (label for label in triple if label != whole)
        if sizes[one] + sizes[other] == sizes[whole]:
            yield {whole: _linear({one: 1, other: 1}, 0)}
    for triple in triples:
        for label, signs in itertools.product(reversed(triple), ((1, 1), (1, -1), (-1, 1))):
            one, other = (name for name in triple if name != label)
            rest = sizes[label] - signs[0] * sizes[one] - signs[1] * sizes[other]
            yield {label: _linear({one: signs[0], other: signs[1]}, rest)}


def _pair(lead: str, other: str, sizes: Mapping[str, int]) -> list[SizeFormula]:
    """A ratio and a difference; an integer ratio or its inverse comes first."""
    common = math.gcd(sizes[lead], sizes[other])
    above, below = sizes[other] // common, sizes[lead] // common
    ratio = SizeFormula.of([SizeTerm(above, (lead,))], 0, below)
    difference = _linear({lead: 1}, sizes[other] - sizes[lead])
    return [ratio, difference] if min(above, below) == 1 else [difference, ratio]


def _linear(coefficients: Mapping[str, int], constant: int) -> SizeFormula:
    return SizeFormula.of((SizeTerm(count, (label,)) for label, count in coefficients.items()), constant)


# -- fitted to calls --


def fit_formula(start: Sample, steps: Mapping[str, Sequence[Sample]], others: Sequence[Sample]) -> SizeFormula | None:
    """The simplest formula for the observed size, or None.

    It is fitted to `steps`, which has for each label calls that differ from `start` in that label alone, and checked
    against `others`.
    """
    sources = [label for label, samples in steps.items() if any(found != start[1] for _, found in samples)]
    if not 1 <= len(sources) <= _MOST_SOURCES or len(others) < 2:
        return None
    samples = [start, *(sample for label in sources for sample in steps[label])]
    for divisor in range(1, _LARGEST_DIVISOR + 1):
        for formula in _fitted(sources, divisor, start, steps, samples):
            if all(formula.at(sizes) == found for sizes, found in (*samples, *others)):
                return formula
    return None


def _fitted(
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
    """Possible slopes of the undivided size over a label, from the call that is farthest away."""
    sizes, found = max(samples, key=lambda sample: abs(sample[0][label] - start[0][label]))
    way, grown = sizes[label] - start[0][label], found - start[1]
    if way < 0:
        way, grown = -way, -grown
    lowest, highest = (grown - 1) * divisor // way + 1, -((-grown - 1) * divisor // way) - 1
    return (slope for slope in range(lowest, highest + 1) if slope)


def _constant(terms: Sequence[SizeTerm], divisor: int, samples: Sequence[Sample]) -> int | None:
    """The simplest constant for which the rounded quotient fits every sample; None if there is none."""
    formula = SizeFormula.of(terms)
    rests = [divisor * found - formula.at(sizes) for sizes, found in samples]
    possible = range(max(rests), min(rests) + divisor)
    return min(possible, key=lambda one: (one % divisor != 0, abs(one)), default=None)
