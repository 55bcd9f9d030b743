"""In the reference's process: compare results with what is expected, with a second and third look at few wrong
elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from tilewright.records import Precision
from tilewright.verify.distributions import ValueTraits
from tilewright.verify.expectation import Call, Tensors, expectations, unperturbed
from tilewright.verify.tolerance import GROSS, Comparison, Expected, compare

_MOVES_AGAIN, _WIDER_AGAIN = 12, 4.0
_MOVES_AT_LAST = 36
_FEW, _VERY_FEW = 1e-3, 1e-5  # fractions of all elements


@dataclass(frozen=True)
class Recheck:
    """Expectations from more perturbations, which allow few elements among many a larger error.

    Among very many elements a few move little under the first perturbations by chance, such as a softmax whose two
    largest terms are nearly equal, or a value cut off at zero. The second look perturbs everything more often and
    further; if one in a hundred thousand is still wrong, the third perturbs those three times as often. Elements that
    share one rounding, such as means of a convolution, move little together: many that are wrong, but not grossly, are
    rechecked with more perturbations of the usual size. Half of these runs repeat casts to the inputs' own dtypes.
    """

    call: Call
    tensors: Tensors
    precision: Precision
    first_seed: int

    def second(self, wider: float = _WIDER_AGAIN) -> list[Expected]:
        given = (self.call, self.tensors, self.precision)
        return expectations(*given, moves=_MOVES_AGAIN, first_seed=self.first_seed, wider=wider, own_casts=True)

    def third(self, expected: list[Expected], wrong: Sequence[torch.Tensor]) -> list[Expected]:
        """What `second` expects, with the wrong elements at the furthest of many perturbations."""
        places = [one.flatten().nonzero().squeeze(1) for one in wrong]
        found: list[list[torch.Tensor]] = [[] for _ in places]
        known = unperturbed(self.call, self.tensors)
        for number in range(_MOVES_AT_LAST):
            given, seed = (self.call, self.tensors, self.precision), self.first_seed + _MOVES_AGAIN + number
            moved = expectations(*given, moves=1, first_seed=seed, wider=_WIDER_AGAIN, known=known)
            for some, one, at in zip(found, moved, places, strict=True):
                some.append(one.moved[0].flatten()[at])
        return [_moved_at(*one) for one in zip(expected, places, found, strict=True)]


def _moved_at(expected: Expected, places: torch.Tensor, found: list[torch.Tensor]) -> Expected:
    if not len(places) or not expected.truth.is_floating_point():
        return expected
    drawn = torch.stack(found)
    distance = (drawn.double() - expected.truth.double().flatten()[places]).abs()
    farthest = drawn.gather(0, distance.nan_to_num(math.inf).argsort(0, descending=True))
    moved = tuple(one.contiguous() for one in expected.moved)  # large, so changed in place
    for one, values in zip(moved, farthest, strict=False):
        one.view(-1)[places] = values
    return replace(expected, moved=moved)


def compare_all(
    found: Sequence[torch.Tensor], expected: list[Expected], traits: ValueTraits, looks: Recheck
) -> tuple[list[Expected], list[Comparison]]:
    """Compare every result with what is expected, rechecking where few elements are wrong."""

    def compared() -> tuple[list[Comparison], int]:
        each = [compare(one, wanted, traits=traits) for one, wanted in zip(found, expected, strict=True)]
        return each, sum(int(one.wrong.sum()) for one in each)

    elements = sum(one.numel() for one in found)
    comparisons, wrong = compared()
    if 0 < wrong <= _FEW * elements:
        expected = looks.second()
        comparisons, wrong = compared()
        if 0 < wrong <= _VERY_FEW * elements:
            expected = looks.third(expected, [one.wrong for one in comparisons])
            comparisons, wrong = compared()
    elif wrong and max(one.ratio for one in comparisons) <= GROSS:
        expected = looks.second(wider=1.0)
        comparisons, wrong = compared()
    return expected, comparisons
