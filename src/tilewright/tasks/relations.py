"""Ways in which sizes of inputs may hang together: sums, products, ratios, differences. Which one holds, calls tell."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from tilewright.records import SizeFormula, SizeTerm

_LARGEST_FACTOR = 8
_MOST_LABELS = 8  # beyond, only the first are looked at
_MOST_FOLLOWING = 3  # labels that follow from one other

Relation = dict[str, SizeFormula]  # by label; those named in the formulas are free


def relations(sizes: Mapping[str, int]) -> Iterator[Relation]:
    """Every relation between labels that cannot change alone, those that leave most of them free first.

    Each holds at the given sizes. Among relations that leave the same freedom the simpler come first.
    """
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
    """How one size may follow from another: a ratio, a difference; a ratio of larger numbers comes last."""
    common = math.gcd(sizes[lead], sizes[other])
    above, below = sizes[other] // common, sizes[lead] // common
    ratio = SizeFormula.of([SizeTerm(above, (lead,))], 0, below)
    difference = _linear({lead: 1}, sizes[other] - sizes[lead])
    return [ratio, difference] if min(above, below) == 1 else [difference, ratio]


def _linear(coefficients: Mapping[str, int], constant: int) -> SizeFormula:
    return SizeFormula.of((SizeTerm(count, (label,)) for label, count in coefficients.items()), constant)
