"""What counts as right: the reference's own error is the yardstick, cancellation is allowed for, mistakes are not."""

from __future__ import annotations

import pytest
import torch

from tilewright.frontends.check_agreement import Expected, agreement


def expected_sum(x: torch.Tensor) -> Expected:
    wide = x.double()
    nearby = wide * (1 + torch.finfo(torch.float32).eps * torch.randint(0, 2, x.shape).mul(2).sub(1))
    return Expected("y", x.sum(-1), wide.sum(-1), nearby.sum(-1))


def expected_exactly(own: torch.Tensor) -> Expected:
    return Expected("y", own, own.double(), own.double())


def test_another_order_of_a_cancelling_sum_is_right() -> None:
    torch.manual_seed(0)
    x = torch.randn(16, 4096) * 100
    found = torch.zeros(16)
    for column in x.T:  # one after another: the worst usual order
        found += column
    verdict = agreement(found, expected_sum(x), None)
    assert verdict.agrees, verdict.message
    assert verdict.worst_error is not None
    assert verdict.worst_error > 0


def test_one_forgotten_element_is_wrong() -> None:
    torch.manual_seed(0)
    x = torch.randn(16, 4096)
    x[3, 17] = 1e-2  # an unremarkable element
    found = x.sum(-1)
    found[3] -= x[3, 17]
    verdict = agreement(found, expected_sum(x), None)
    assert not verdict.agrees
    assert "1 of 16 elements are off, worst at [3]" in verdict.message


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_one_more_rounding_of_a_narrow_type_is_right_and_eight_are_not(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    truth = torch.randn(1000, dtype=torch.float64)
    own = truth.to(dtype)
    expected = Expected("y", own, truth, truth)
    eps = torch.finfo(dtype).eps
    assert agreement((truth * (1 + eps)).to(dtype), expected, None).agrees
    assert not agreement((truth * (1 + 20 * eps)).to(dtype), expected, None).agrees


def test_tolerance_replaces_the_envelope() -> None:
    own = torch.linspace(1, 2, 100)
    found = own * 1.001
    assert not agreement(found, expected_exactly(own), None).agrees
    assert agreement(found, expected_exactly(own), 0.002).agrees
    assert not agreement(found, expected_exactly(own), 0.0005).agrees


def test_nan_and_infinity_stand_where_the_reference_has_them() -> None:
    own = torch.tensor([1.0, float("nan"), float("inf"), -float("inf")])
    assert agreement(own.clone(), expected_exactly(own), None).agrees
    for position, value in ((0, float("nan")), (1, 0.0), (2, -float("inf")), (3, 1.0)):
        found = own.clone()
        found[position] = value
        verdict = agreement(found, expected_exactly(own), None)
        assert not verdict.agrees
        assert f"first at [{position}]" in verdict.message


def test_overflow_of_the_dtype_is_no_fault() -> None:
    truth = torch.tensor([1.0, 70000.0], dtype=torch.float64)
    own = truth.half()
    assert own[1].isinf()
    assert agreement(own.clone(), Expected("y", own, truth, truth), None).agrees


def test_integers_are_equal_or_wrong() -> None:
    own = torch.arange(10)
    assert agreement(own.clone(), expected_exactly(own), None).agrees
    found = own.clone()
    found[4] = 5
    verdict = agreement(found, expected_exactly(own), None)
    assert not verdict.agrees
    assert "1 of 10 elements differ, first at [4]: 5, expected 4" in verdict.message


def test_shape_and_emptiness() -> None:
    own = torch.zeros(3, 4)
    verdict = agreement(torch.zeros(4, 3), expected_exactly(own), None)
    assert not verdict.agrees
    assert "[4, 3]" in verdict.message
    assert agreement(torch.zeros(0, 3), expected_exactly(torch.zeros(0, 3)), None).agrees
