"""Results of which several are right: casts of rounded numbers, overflow, and what follows from the order of ties."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from tilewright.records import Precision
from tilewright.verify.expectation import expectations
from tilewright.verify.tolerance import compare

Tensors = dict[str, torch.Tensor]


def is_right(reference: Callable[..., torch.Tensor], inputs: Tensors, found: torch.Tensor) -> bool:
    (expected,) = expectations(lambda given: (reference(**given),), inputs, Precision.DTYPE)
    return compare(found, expected).right


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(5)


def _scaled(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (F.linear(x, w) * 10).to(torch.int32)


@pytest.mark.parametrize("size", [1.0, 300.0])
def test_a_product_may_be_rounded_before_it_is_cast_or_not(size: float) -> None:
    given = {"x": (torch.randn(16, 128) * size).bfloat16(), "w": (torch.randn(24, 128) * size).bfloat16()}
    x, w = (one.float() for one in given.values())
    in_f32 = x @ w.T * 10
    assert is_right(_scaled, given, in_f32.int())
    assert is_right(_scaled, given, _scaled(**given))
    assert not is_right(_scaled, given, (in_f32 * 1.05).int())
    dropped = in_f32.clone()
    dropped[3, 7] = 0
    assert not is_right(_scaled, given, dropped.int())


def _floored(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.floor(F.linear(x, w)).clamp(min=-3e6).to(torch.int32)


def test_a_product_may_be_on_the_other_side_of_a_whole_number() -> None:
    given = {"x": (torch.randn(16, 128) * 300).bfloat16(), "w": (torch.randn(24, 128) * 30).bfloat16()}
    x, w = (one.float() for one in given.values())
    assert is_right(_floored, given, _floored(x, w))
    assert is_right(_floored, given, torch.floor(x @ w.T * (1 - 2.0**-22)).int())
    assert not is_right(_floored, given, torch.floor(x @ w.T * 1.05).int())


def test_floats_without_a_place_among_integers_are_cast_as_one_likes() -> None:
    def reference(x: torch.Tensor) -> torch.Tensor:
        return (x.half() * 10).to(torch.int32)

    x = torch.randn(8, 64)
    x[2, 5], x[3, 6] = 1e8, -1e8
    found = (x.half().float() * 10).int()
    found[2, 5], found[3, 6] = 2**31 - 1, 0
    assert is_right(reference, {"x": x}, found)
    found[4, 4] += 1
    assert not is_right(reference, {"x": x}, found)


@pytest.mark.parametrize("off", [0, 1])
def test_whole_numbers_are_not_off_by_one(off: int) -> None:
    """What is rounded in the reference, and small integers, must be as they are."""
    x = torch.randn(8, 64) * 20
    x[x.frac().abs().sub(0.5).abs() < 0.01] = 3.0
    assert is_right(lambda x: torch.round(x).clamp(-128, 127).to(torch.int8), {"x": x}, x.round().char() + off) != off
    assert is_right(lambda x: x.to(torch.int64), {"x": x}, x.long() + off) != off


def test_infinity_is_right_where_the_truth_overflows_the_type() -> None:
    """f64 says 65536, which is infinite in f16, and PyTorch's own rounding on the way gives a number."""

    def reference(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x + y) * 15.9921875

    given = {"x": torch.full((4, 64), 4096.0).half(), "y": torch.full((4, 64), 2.0).half()}
    given["x"][1] = 3000.0
    own, found = reference(**given), reference(*(one.float() for one in given.values())).half()
    assert float(own[0, 0]) == 65504
    assert bool(found[0].isinf().all())
    assert is_right(reference, given, own)
    assert is_right(reference, given, found)
    for at, wrong in ((1, torch.inf), (0, -torch.inf)):
        off = found.clone()
        off[at, 3] = wrong
        assert not is_right(reference, given, off)


def _thirds(x: torch.Tensor) -> torch.Tensor:
    return torch.topk(x, 3, -1).indices // 3


def _places_as_floats(x: torch.Tensor) -> torch.Tensor:
    return x.sort(-1, descending=True).indices.float() * 0.5


@pytest.mark.parametrize("reference", [_thirds, _places_as_floats])
def test_what_follows_from_the_order_of_ties_is_not_judged(reference: Callable[..., torch.Tensor]) -> None:
    x = torch.randn(6, 40)
    x[1] = 2.0  # all equal
    x[2, 10], x[2, 31] = 9.0, 9.0  # two equal ones on top
    other = x.flip(-1)
    places = 39 - (other.topk(3, -1).indices if reference is _thirds else other.sort(-1, descending=True).indices)
    found = places // 3 if reference is _thirds else places.float() * 0.5
    assert not torch.equal(found, reference(x))
    assert is_right(reference, {"x": x}, found)
    for row in (0, 2):
        off = found.clone()
        off[row, 2] += 1
        assert not is_right(reference, {"x": x}, off)


@pytest.mark.parametrize(
    "reference",
    [
        lambda x: x.argsort(-1) % 5,
        lambda x: x.argsort(-1).argsort(-1),
        lambda x: torch.zeros_like(x).scatter(-1, torch.topk(x, 4, -1).indices, 1.0),
    ],
    ids=["places", "ranks", "mask"],
)
def test_of_equal_numbers_any_may_come_next(reference: Callable[..., torch.Tensor]) -> None:
    x = torch.randint(0, 6, (8, 24)).float()
    drawn = torch.rand(8, 24).argsort(-1)  # another order of all, in which ties come otherwise
    found = torch.empty_like(reference(x))
    shuffled = x.gather(-1, drawn)
    if found.is_floating_point():
        found.scatter_(-1, drawn, reference(shuffled))
    else:
        order = drawn.gather(-1, shuffled.argsort(dim=-1, stable=True))
        ranks = torch.zeros_like(order).scatter(-1, order, torch.arange(24).expand(8, 24))
        found = order % 5 if bool((reference(x) < 5).all()) else ranks
    assert is_right(reference, {"x": x}, found)
    x = torch.randn(8, 24)
    found = reference(x)
    assert is_right(reference, {"x": x}, found)
    found[3, 5] += 1
    assert not is_right(reference, {"x": x}, found)


def test_places_of_ties_themselves_are_judged() -> None:
    """Any order of equal numbers, but each place once and none of another number."""
    x = torch.randn(4, 12)
    x[1] = 1.0
    right = torch.topk(x, 3, -1).indices
    for row, place in ((1, int(right[1, 1])), (0, int(x[0].argmin()))):
        found = right.clone()
        found[row, 0] = place
        assert not is_right(lambda x: torch.topk(x, 3, -1).indices, {"x": x}, found)
