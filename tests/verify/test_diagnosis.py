"""A diagnosis says in one sentence what is wrong: each pattern on tensors that were spoilt in exactly that way."""

from __future__ import annotations

import math

import pytest
import torch

from tilewright.prompts.verdict_text import verdict_words
from tilewright.records import Case, Pattern, Precision, Rejected, WrongOutput, WrongValues
from tilewright.verify.diagnosis import diagnose, place_of
from tilewright.verify.expectation import expectations
from tilewright.verify.tolerance import compare

POISON = torch.tensor([-1], dtype=torch.int32).view(torch.float32)


def spoilt(truth: torch.Tensor, found: torch.Tensor, x: torch.Tensor | None = None) -> WrongOutput:
    x = truth if x is None else x
    (expected,) = expectations(lambda given: (given["t"] * 1.0,), {"t": truth}, Precision.DTYPE)
    comparison = compare(found, expected)
    assert not comparison.right
    return diagnose("y", found, expected, comparison, {"x": x})


@pytest.fixture
def truth() -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(24, 50)


def changed(truth: torch.Tensor, *where: slice | int) -> torch.Tensor:
    found = truth.clone()
    found[where] += 1.0 + found[where].abs()
    return found


PLACES = {
    "the last 3 elements of each row (columns 47 to 49)": ((slice(None), slice(47, None)), Pattern.TAIL),
    "columns 10 to 19 of 50, in every row": ((slice(None), slice(10, 20)), Pattern.COLUMNS),
    "every 5th column, starting at 2": ((slice(None), slice(2, None, 5)), Pattern.PERIODIC),
    "the last 4 rows of 24 (rows 20 to 23)": ((slice(20, None),), Pattern.ROWS),
    "row 7 of 24": ((7,), Pattern.ROWS),
    "every 4th row, starting at 1": ((slice(1, None, 4),), Pattern.PERIODIC),
    "one block of the output: rows 8 to 15, columns 16 to 31": ((slice(8, 16), slice(16, 32)), Pattern.ONE_TILE),
    "one element, [3, 4]": ((3, 4), Pattern.SCATTERED),
    "the last element, [23, 49]": ((23, 49), Pattern.TAIL),
}


@pytest.mark.parametrize("sentence", PLACES)
def test_places(sentence: str, truth: torch.Tensor) -> None:
    where, pattern = PLACES[sentence]
    found = spoilt(truth, changed(truth, *where))
    assert (found.pattern, found.description) == (pattern, sentence)
    assert found.elements == 1200
    assert 0 < found.wrong < 1200


def test_flat_tail_and_period() -> None:
    mask = torch.zeros(24, 50, dtype=torch.bool)
    mask.view(-1)[1024:] = True
    assert place_of(mask) == (Pattern.TAIL, "from flat index 1024 on: the last 176 of 1200 elements")
    mask = torch.zeros(1200, dtype=torch.bool)
    mask[3::7] = True
    assert place_of(mask) == (Pattern.PERIODIC, "every 7th element, starting at 3")


@pytest.mark.parametrize(
    ("places", "columns", "pattern"),
    [
        ((3, 7, 11), 15, Pattern.PERIODIC),  # the last it may begin at: from 4 on one is missing before
        ((4, 8, 12), 15, Pattern.COLUMNS),
        ((2, 6, 10), 14, Pattern.PERIODIC),  # the next would lie outside
        ((2, 6, 10), 15, Pattern.COLUMNS),
        ((0, 2, 4), 6, Pattern.PERIODIC),  # every other is the nearest
        ((1, 5), 8, Pattern.COLUMNS),  # two are no series
        ((1, 5, 10), 14, Pattern.COLUMNS),
    ],
)
def test_a_series_is_of_one_step_from_the_first_place_to_the_last(
    places: tuple[int, ...], columns: int, pattern: Pattern
) -> None:
    mask = torch.zeros(6, columns, dtype=torch.bool)
    mask[:, list(places)] = True
    assert place_of(mask)[0] is pattern
    mask = torch.rand(1200, generator=torch.Generator().manual_seed(1)) < 0.1
    assert place_of(mask)[0] is Pattern.SCATTERED


def test_rows_that_are_right_here_and_there_by_chance_are_rows(truth: torch.Tensor) -> None:
    found = changed(truth, slice(20, None))
    found[21, 3] = truth[21, 3]
    assert spoilt(truth, found).pattern is Pattern.ROWS


def test_three_dimensions_name_rows_of_the_last() -> None:
    mask = torch.zeros(4, 6, 10, dtype=torch.bool)
    mask[1, 2] = True
    assert place_of(mask) == (Pattern.ROWS, "row of the last dimension 8 of 24")


def test_values_come_before_places(truth: torch.Tensor) -> None:
    square = truth[:, :24].contiguous()
    assert spoilt(square, square.T.contiguous()).pattern is Pattern.TRANSPOSED
    found = spoilt(truth, truth.T.contiguous().view(24, 50))
    assert found.pattern is Pattern.TRANSPOSED
    assert "(24 and 50)" in found.description
    found = spoilt(truth, truth * 0.125)
    assert (found.pattern, found.description) == (
        Pattern.SCALED,
        "the result is 0.125 (1/8) times what it should be, everywhere",
    )
    assert "-1 times" in spoilt(truth, -truth).description
    assert "2.5 times" in spoilt(truth, truth * 2.5).description
    found = spoilt(truth, truth.flatten().roll(1).view(24, 50))
    assert (found.pattern, found.description) == (
        Pattern.SHIFTED,
        "the result is shifted: every element stands 1 element too late",
    )
    assert "one row too early" in spoilt(truth, truth.roll(-1, 0)).description
    assert "0.5 is added to every element" in spoilt(truth, truth + 0.5).description
    other = torch.linspace(-1, 1, 1200).view(24, 50)
    assert "the result is the input x, unchanged" in spoilt(truth, other.clone(), other).description
    assert "they all hold 0" in spoilt(truth, torch.zeros(24, 50)).description


def test_an_input_near_the_result_is_not_the_result() -> None:
    """Of two inputs about 10000 with a truth of a million, only the one that was returned is named."""
    truth, x, y = (torch.tensor([[value], [value + 300]]) for value in (1e6, 10004.0, 9998.0))
    assert "unchanged" not in spoilt(truth, y.clone(), x).description
    assert "the result is the input x, unchanged" in spoilt(truth, y.clone(), y).description


def test_precision(truth: torch.Tensor) -> None:
    found = spoilt(truth, truth.bfloat16().float())
    assert found.pattern is Pattern.PRECISION
    assert "like work in bf16" in found.description
    assert "like work in TF32 or f16" in spoilt(truth, truth.half().float()).description
    narrow = truth.bfloat16()
    noisy = (narrow.float() * (1 + 0.015 * torch.randn(24, 50))).bfloat16()
    found = spoilt(narrow, noisy)
    assert found.pattern is Pattern.PRECISION
    assert "keep sums and intermediate results in f32" in found.description


def test_rows_with_a_factor_of_their_own_are_no_matter_of_precision(truth: torch.Tensor) -> None:
    """What a sum over the row that leaves its last element out does to a norm, and to a softmax in logarithms."""

    def norm(x: torch.Tensor, cols: int) -> torch.Tensor:
        return x / x[:, :cols].square().mean(-1, keepdim=True).sqrt()

    x = truth + 2.0
    right, wrong = norm(x, 50), norm(x, 49)
    found = spoilt(right, wrong, x)
    factor = float(wrong[0, 0] / right[0, 0])
    assert 0.9 < factor < 1.1
    assert (found.pattern, found.description) == (
        Pattern.SCALED,
        f"each row is scaled by a factor of its own (row 0: {factor:.5g}): "
        "look for a sum or a norm over the row that misses or adds elements",
    )
    assert "each row is scaled by" in spoilt(right.bfloat16(), norm(x, 45).bfloat16(), x).description
    assert "each column is scaled by" in spoilt(right.T.contiguous(), wrong.T.contiguous(), x).description
    found = spoilt(right[:1], wrong[:1], x)
    assert (
        f"the result is {factor:.5g} times what it should be, everywhere in its only row: look for" in found.description
    )
    tiny = spoilt(right[:1, :2], right[:1, :2] * 1.7, x)
    assert tiny.description.startswith(
        "the result is 1.7 times what it should be, everywhere in its only row: look for"
    )
    assert "the result is 1.02 times what it should be, everywhere" in spoilt(right, right * 1.02, x).description
    logs = torch.log_softmax(x, -1)
    missing = x - torch.logsumexp(x[:, :48], -1, keepdim=True)
    assert "each row has a number of its own added (row 0: " in spoilt(logs, missing, x).description


def test_poison_and_not_finite(truth: torch.Tensor) -> None:
    found = truth.clone()
    found[:, 48:] = POISON
    result = spoilt(truth, found)
    assert result.pattern is Pattern.UNWRITTEN
    assert "the last 2 elements of each row" in result.description
    found = truth.clone()
    found[3] = math.nan
    result = spoilt(truth, found, torch.full((24, 50), 95.0))
    assert result.pattern is Pattern.NOT_FINITE
    assert result.description.startswith(
        "NaN where a number belongs, first at [3, 0]: row 3 of 24; every input is finite"
    )
    assert "x reaches 95: look for an exponential (f32 overflows beyond 88.7)" in result.description
    assert result.worst_error is None
    poisoned = truth.clone()
    poisoned[0, 0] = math.nan
    assert "the inputs x hold NaN or infinity themselves" in spoilt(truth, found, poisoned).description
    masked = truth.clone()
    masked[5, 5] = -math.inf
    lost = masked.clone()
    lost[5, 5] = 0.0
    assert "a number where -inf belongs, in 1 elements, first at [5, 5]" in spoilt(masked, lost).description


def test_a_nan_that_is_dropped_is_told_from_wrong_numbers(truth: torch.Tensor) -> None:
    expected = truth.clone()
    expected[5, 5] = expected[7, 2] = math.nan
    found = expected.nan_to_num()
    result = spoilt(expected, found)
    assert (result.pattern, result.wrong) == (Pattern.NAN_DROPPED, 2)
    assert (
        result.description == "a number where nan belongs, in 2 elements, first at [5, 5]; all other elements are right"
    )
    dropped = Rejected(WrongValues(Case({"n": 50}, 1), (result,), (Case({"n": 7}, 0),)))
    assert dropped.reason == "drops NaN"
    assert verdict_words(dropped) == "drops NaN: numbers are right in 1 case"
    found[0, 0] += 1.0
    assert spoilt(expected, found).pattern is Pattern.NOT_FINITE


def test_numbers_of_a_diagnosis(truth: torch.Tensor) -> None:
    result = spoilt(truth, changed(truth, slice(None), slice(47, None)))
    assert (result.wrong, result.elements) == (72, 1200)
    assert [one.index for one in result.first] == [(0, 47), (0, 48), (0, 49), (1, 47), (1, 48)]
    first = result.first[0]
    assert first.expected == pytest.approx(float(truth[0, 47]))
    assert first.got == pytest.approx(first.expected + 1 + abs(first.expected))
    assert 0 < first.allowed < 1e-5
    assert result.worst_error is not None
    assert result.worst_error > 1
    assert result.allowed_error is not None
    assert result.allowed_error < 1e-5


def test_integers() -> None:
    torch.manual_seed(0)
    truth = torch.randint(0, 100, (64,))
    found = truth.clone()
    found[60:] += 1
    (expected,) = expectations(lambda given: (given["t"] + 0,), {"t": truth}, Precision.DTYPE)
    comparison = compare(found, expected)
    result = diagnose("y", found, expected, comparison, {})
    assert result.pattern is Pattern.TAIL
    assert result.wrong == 4
