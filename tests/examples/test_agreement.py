"""The yardstick itself: it accepts PyTorch's own results and finds errors of the kinds kernels make."""

from __future__ import annotations

import pytest
import torch

from .agreement import disagreement
from .cases import Arguments, Case, Results, as_tuple
from .cases_memory import ARGMAX, CASES, GRID_SUM_EXACT, LAYERNORM, ROW_SUM, SILU, SOFTMAX_MASK

CPU = torch.device("cpu")
SMALL = 50_000  # elements: the references run on the CPU here


def _arguments(case: Case, label: str) -> Arguments:
    return next(call for call in case.calls if call.label == label).make(CPU)


def _own(case: Case, arguments: Arguments) -> Results:
    return tuple(result.clone() for result in as_tuple(case.reference(*arguments)))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_pytorchs_own_result_is_right(case: Case) -> None:
    for call in case.calls:
        sizes = [a.numel() for a in call.make(torch.device("meta")) if isinstance(a, torch.Tensor)]
        if sum(sizes) <= SMALL:
            arguments = call.make(CPU)
            assert disagreement(case, arguments, _own(case, arguments)) is None, call.label


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_labels_are_unique_and_arguments_repeat(case: Case) -> None:
    labels = [call.label for call in (*case.calls, *case.refused)]
    assert len(set(labels)) == len(labels)
    first, again = case.calls[0].make(CPU), case.calls[0].make(CPU)
    for one, other in zip(first, again, strict=True):
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def test_one_wrong_element_is_found() -> None:
    arguments = _arguments(SILU, "3x1021-f32")
    (result,) = _own(SILU, arguments)
    result[2, 77] *= 1 + 1e-5
    assert "truth is" in str(disagreement(SILU, arguments, (result,)))


def test_an_element_left_unwritten_is_found() -> None:
    arguments = _arguments(SILU, "3x1021-bf16")
    (result,) = _own(SILU, arguments)
    result[2, 1020] = float("nan")
    assert "misplaced" in str(disagreement(SILU, arguments, (result,)))


def test_arithmetic_in_the_narrow_dtype_is_found() -> None:
    arguments = _arguments(LAYERNORM, "3x4096-f16")
    x, weight, bias, eps = arguments
    centred = x - x.mean(-1, keepdim=True)
    narrow = centred * torch.rsqrt((centred * centred).mean(-1, keepdim=True) + eps) * weight + bias
    assert disagreement(LAYERNORM, arguments, (narrow,)) is not None


def test_a_cancelling_variance_is_found() -> None:
    arguments = _arguments(LAYERNORM, "3x4096-f32")
    x, weight, bias, eps = arguments
    mean = x.mean(-1, keepdim=True)
    variance = (x * x).mean(-1, keepdim=True) - mean * mean
    result = (x - mean) * torch.rsqrt(variance + eps) * weight + bias
    assert disagreement(LAYERNORM, arguments, (result,)) is not None


def test_nan_must_stand_where_it_belongs() -> None:
    arguments = _arguments(SOFTMAX_MASK, "all-hidden")
    (result,) = _own(SOFTMAX_MASK, arguments)
    assert disagreement(SOFTMAX_MASK, arguments, (result.nan_to_num(0.0),)) is not None


def test_a_row_forgotten_in_a_sum_is_found() -> None:
    arguments = _arguments(ROW_SUM, "7x1001-f32")
    (result,) = _own(ROW_SUM, arguments)
    result[6] = 0.0
    assert disagreement(ROW_SUM, arguments, (result,)) is not None


def test_one_element_forgotten_in_a_sum_of_integers_is_found() -> None:
    arguments = _arguments(GRID_SUM_EXACT, "4097-f32")
    (result,) = _own(GRID_SUM_EXACT, arguments)
    assert disagreement(GRID_SUM_EXACT, arguments, (result - 1,)) is not None


def test_a_later_index_of_a_tie_is_found() -> None:
    arguments = _arguments(ARGMAX, "5x64-f32-ties")
    values, indices = _own(ARGMAX, arguments)
    (x,) = arguments
    indices[0] = int((x[0] == values[0]).nonzero()[-1])
    assert "result 1" in str(disagreement(ARGMAX, arguments, (values, indices)))


def test_dtype_and_shape_must_be_the_references() -> None:
    arguments = _arguments(SILU, "3x1021-f32")
    (result,) = _own(SILU, arguments)
    assert disagreement(SILU, arguments, (result.double(),)) is not None
    assert disagreement(SILU, arguments, (result.flatten(),)) is not None
    assert disagreement(SILU, arguments, ()) is not None
