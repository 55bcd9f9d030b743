"""Values that hide nothing: what is drawn beyond the task's own, what the reference is found to take, how it counts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.verify import kernels, tasks

from tilewright.records import (
    Case,
    Dimension,
    DType,
    IndexValues,
    IntegerValues,
    NumberInput,
    Passed,
    Precision,
    Rejected,
    ScalarType,
    SizeFormula,
    SizeTerm,
    Task,
    TaskOutput,
    TensorInput,
    UniformValues,
    WrongValues,
)
from tilewright.verify import Referee
from tilewright.verify.cases import plan_cases, value_cases
from tilewright.verify.distributions import (
    FLAGS,
    NUMBERS,
    WHOLE,
    ValueTraits,
    case_task,
    draw_inputs,
    thresholds,
    values_with,
)
from tilewright.verify.expectation import expectations
from tilewright.verify.float_values import OUTLIERS, PATTERNED, TAILS
from tilewright.verify.integer_values import IGNORED
from tilewright.verify.judging_records import SurveyRequest
from tilewright.verify.tolerance import Expected, compare
from tilewright.verify.value_survey import survey_values

Make = Callable[[Task], Referee]


def one_tensor(dtype: DType, values: Any = None, *more: TensorInput | NumberInput, source: str = "") -> Task:
    given = TensorInput("x", dtype, ("rows", "cols"), values) if values else TensorInput("x", dtype, ("rows", "cols"))
    return Task(
        "f",
        source,
        "f",
        (given, *more),
        (TaskOutput("y", DType.F32, ("rows", "cols")),),
        (Dimension("rows", 64), Dimension("cols", 512)),
    )


def drawn(task: Task, kind: str, dtype: Any, name: str = "x", rows: int = 10, cols: int = 200) -> np.ndarray:
    case = Case({"rows": rows, "cols": cols}, 5, kind)
    return np.frombuffer(draw_inputs(task, case)[name], dtype=dtype).reshape(rows, -1)


# -- what is drawn --


@pytest.mark.parametrize(
    ("dtype", "kind"), [(DType.U8, np.uint8), (DType.I8, np.int8), (DType.I32, np.int32), (DType.I64, np.int64)]
)
def test_whole_numbers_reach_the_ends_of_their_type(dtype: DType, kind: Any) -> None:
    found = drawn(one_tensor(dtype, IntegerValues(0, 100)), values_with(WHOLE, {"x": "full"}), kind)
    limits = np.iinfo(kind)
    assert (found.min(), found.max()) == (limits.min, limits.max)
    assert {0, 1} <= set(found.flatten().tolist())
    if dtype is DType.U8:
        assert set((found >> 4).flatten().tolist()) == set(range(16))


def test_indices_keep_to_what_they_index() -> None:
    task = one_tensor(DType.I64, IndexValues("cols"))
    signed = drawn(task, values_with(WHOLE, {"x": "signed"}), np.int64)
    assert (signed.min(), signed.max()) == (-200, 199)
    own = drawn(task, values_with(WHOLE, {"x": "own"}), np.int64)
    assert (own.min(), own.max()) == (0, 199)
    assert (own == 199).mean() > 0.3, "the same index many times over"
    divisors = drawn(one_tensor(DType.I32, IntegerValues(0, 9)), values_with(WHOLE, {"x": "large"}), np.int32)
    assert np.abs(divisors).min() > 2
    assert divisors.min() < -(2**24)


def test_an_index_that_losses_leave_out_is_among_the_classes() -> None:
    task = one_tensor(DType.I64, IndexValues("cols"))
    found = drawn(task, values_with(WHOLE, {"x": IGNORED}), np.int64)
    assert 0.05 < (found == -100).mean() < 0.25
    assert (np.unique(found)[1], found.max()) == (0, 199)


def test_the_ends_of_rows_are_peaks() -> None:
    found = drawn(one_tensor(DType.F32), TAILS, np.float32)
    assert ((found > 9).sum(1) == 1).all()
    assert (found.argmax(1) >= 192).all()


def test_flags_are_few_none_in_runs_all_and_many() -> None:
    share = drawn(one_tensor(DType.BOOL), FLAGS, np.uint8).mean(1)
    assert 0 < share[0] < 0.05
    assert share[1] == 0
    assert share[3] == 1
    assert 0.9 < share[4] < 1
    runs = np.diff(drawn(one_tensor(DType.BOOL), FLAGS, np.uint8)[2].astype(int))
    assert 0 < np.count_nonzero(runs) < 5
    assert not np.array_equal(share, drawn(one_tensor(DType.BOOL), "task", np.uint8).mean(1))


def test_rows_of_every_pattern() -> None:
    found = drawn(tasks.SOFTMAX, PATTERNED, np.float32, "logits", rows=9)
    assert len(set(found[0].tolist())) == 4
    assert len(set(found[1].tolist())) == 1
    assert not found[2].any()
    assert 0 < np.signbit(found[2]).sum() < 200
    assert (np.diff(found[4]) >= 0).all()
    assert (found[5] < 0).all()
    assert 0 < (np.abs(found[6]) < np.finfo(np.float32).tiny).sum() < 200
    assert (np.diff(found[7]) <= 0).all()
    share = drawn(one_tensor(DType.F32, UniformValues(0.25, 0.75)), PATTERNED, np.float32)
    assert (share.min(), share.max()) == (0.25, 0.75)


def test_thresholds_are_read_off_the_reference() -> None:
    source = "import torch.nn.functional as F\ndef f(x):\n    return F.softplus(x).clamp(-7, 11) * (x > 0.375)"
    found = thresholds(one_tensor(DType.F32, source=source))
    assert {20.0, -7.0, 7.0, 11.0, 0.375, 0.0} <= set(found)
    row = drawn(one_tensor(DType.F32, source=source), PATTERNED, np.float32)[3]
    assert {11.0, float(np.nextafter(np.float32(11), np.float32(99)))} <= set(row.tolist())
    scaled = one_tensor(DType.F32, None, NumberInput("scale", ScalarType.FLOAT, 0.05))
    assert 1.5 * 0.05 in thresholds(scaled), "a tie, where something is rounded to multiples of it"


def test_outliers_meet_zeros() -> None:
    case = Case({"m": 20, "k": 30, "n": 8}, 5, OUTLIERS)
    given = draw_inputs(tasks.MATMUL, case)
    a = np.frombuffer(given["a"], dtype=np.float32).reshape(20, 30)
    b = np.frombuffer(given["b"], dtype=np.float32).reshape(30, 8)
    large = np.abs(a) > 1e7
    assert set(large.sum(1)) == {1, 2}
    assert not b[large.any(0)].any()
    cancelled = large.sum(1) == 2
    assert (np.where(large, a, 0)[cancelled].sum(1) == 0).all()
    assert np.abs(a[~large]).max() < 10


def test_every_scalar_varies_in_its_own_way() -> None:
    numbers = [NumberInput(name, ScalarType.FLOAT, 2.0) for name in ("one", "two")]
    numbers += [NumberInput("shift", ScalarType.INT, 3), NumberInput("flag", ScalarType.BOOL, True)]
    task = one_tensor(DType.F32, None, *numbers)
    one, two, shift, flag = (number.value for number in case_task(task, Case({}, 1, NUMBERS)).numbers)
    assert len({one, two, 2.0}) == 3
    assert (shift, flag) == (3, True)
    said = case_task(task, Case({}, 1, values_with(NUMBERS, {"shift": 4, "flag": 0}))).numbers
    assert [number.value for number in said[2:]] == [4, False]


# -- what the reference takes --


def surveyed(function: Callable[..., Any], task: Task, *, whole: bool = False) -> tuple[str, ...]:
    return survey_values(function, SurveyRequest(task, {"rows": 10, "cols": 70}, whole)).kinds


def test_special_values_are_used_where_they_are_a_promise() -> None:
    floats = one_tensor(DType.F32)
    assert surveyed(lambda x: torch.softmax(x, -1), floats) == ("special",)
    assert surveyed(lambda x: torch.relu(x), floats) == ("NaN",)
    assert surveyed(lambda x: x.sort(-1).values, floats) == ("infinite",), "NaN has no order"
    assert surveyed(lambda x: (1 - x) * x, floats) == ("NaN",), "equal formulas differ at infinities"
    assert surveyed(lambda x: x.clamp(min=0) + 1, floats) == (), "fmaxf inside a formula leaves NaN out"
    assert surveyed(lambda x: x / x.norm(dim=-1, keepdim=True).clamp(min=1), floats) == ()
    assert surveyed(lambda x: x @ torch.ones(70, 70), floats) == ("NaN",)
    attention = torch.nn.functional.scaled_dot_product_attention
    assert surveyed(lambda x: attention(x[None, None], x[None, None], x[None, None]), floats) == ()
    assert surveyed(lambda x: torch.diag(torch.ones(x.shape[0])) @ x, floats) == (), "zeros of a matrix may be left out"
    assert surveyed(lambda x: torch.conv1d(x[:, None], torch.ones(1, 1, 1))[:, 0], floats) == ()
    assert surveyed(lambda x: x.to(torch.int8).float(), floats) == ()


def test_whole_numbers_are_as_wide_as_the_reference_takes_them() -> None:
    def of(function: Callable[..., Any], values: Any = None) -> tuple[str, ...]:
        return surveyed(function, one_tensor(DType.I64, values or IntegerValues(0, 50)), whole=True)

    table = torch.arange(50.0)
    assert of(lambda x: (x // 7).float()) == ("whole numbers: x=full",)
    assert of(lambda x: (100 // x).float(), IntegerValues(1, 50)) == ("whole numbers: x=large",)
    assert of(lambda x: table[x]) == ("whole numbers: x=signed",)
    assert of(lambda x: torch.nn.functional.embedding(x, table[:, None])[..., 0]) == ("whole numbers: x=own",)
    assert of(lambda x: (1 << x).float()) == ("whole numbers: x=own",)
    scores, loss = torch.ones(700, 50), torch.nn.functional.cross_entropy
    losses = lambda x: loss(scores, x.reshape(-1), reduction="none").view(x.shape)  # noqa: E731
    assert of(losses) == ("whole numbers: x=ignored",)


def test_scalars_take_signs_nothing_one_and_more() -> None:
    task = one_tensor(DType.F32, None, NumberInput("shift", ScalarType.INT, 3), NumberInput("a", ScalarType.FLOAT, 0.5))
    kinds = surveyed(lambda x, shift, a: x.roll(shift, -1) * a, task)
    told = {
        name: {one.value for kind in kinds for one in case_task(task, Case({}, 1, kind)).numbers if one.name == name}
        for name in ("shift", "a")
    }
    assert {4, -3, 0, 1, 33} <= told["shift"]
    assert {-0.5, 20.0, 0.0, 1.0, -20.0} <= told["a"]
    small = one_tensor(DType.F32, None, NumberInput("eps", ScalarType.FLOAT, 1e-6))
    kinds = surveyed(lambda x, eps: x / (x.abs() + eps).sqrt(), small)
    assert values_with(NUMBERS, {"eps": 1.0}) in kinds
    assert not any("eps=-" in one for one in kinds)


def test_numbers_below_0_that_are_taken_for_0_are_no_promise() -> None:
    task = one_tensor(DType.F32, None, NumberInput("share", ScalarType.FLOAT, 0.1))
    kinds = surveyed(lambda x, share: x * (1 - max(share, 0.0)), task)
    assert values_with(NUMBERS, {"share": 4.0}) in kinds
    assert not any("share=-" in one for one in kinds)


def test_scalars_that_do_not_go_together_are_changed_one_by_one() -> None:
    task = one_tensor(
        DType.F32, None, NumberInput("low", ScalarType.FLOAT, 0.5), NumberInput("a", ScalarType.FLOAT, 0.5)
    )

    def function(x: torch.Tensor, low: float, a: float) -> torch.Tensor:
        if low < 0 < a:
            raise ValueError("signs")
        return x * low + a

    kinds = surveyed(function, task)
    assert values_with(NUMBERS, {"a": 20.0}) in kinds
    assert not any("low=-0.5" in one for one in kinds)
    assert values_with(NUMBERS, {"low": 20.0, "a": 0.0}) in kinds


def test_scalars_that_change_the_shapes_are_judged_with_the_shapes_that_follow() -> None:
    window = NumberInput("window", ScalarType.INT, 4)
    task = one_tensor(DType.F32, None, window)
    dimensions = (*task.dimensions, Dimension("width", 509, formula=SizeFormula((SizeTerm(1, ("cols",)),), -3)))
    task = replace(task, dimensions=dimensions, outputs=(TaskOutput("y", DType.F32, ("rows", "width")),))
    sizes = task.complete({"rows": 4, "cols": 20})
    pool = lambda x, window=4: torch.nn.functional.avg_pool1d(x, window, stride=1)  # noqa: E731
    said = values_with(NUMBERS, {"window": 5, "y": "4x16"})
    kinds = survey_values(pool, SurveyRequest(task, sizes, whole=False)).kinds
    assert said in kinds
    assert not any("window=-" in one for one in kinds)
    changed = case_task(task, Case(sizes, 1, said))
    assert (changed.numbers[0].value, changed.output_specs(sizes)["y"].shape) == (5, (4, 16))


def test_floats_are_one_where_ties_must_be_ties() -> None:
    scale, eps = NumberInput("scale", ScalarType.FLOAT, 0.05), NumberInput("eps", ScalarType.FLOAT, 1e-6)
    task = one_tensor(DType.F32, None, scale, eps)
    said = values_with(PATTERNED, {"scale": 1.0, "eps": 1.0})
    assert said in surveyed(lambda x, scale=0.05, eps=1e-6: torch.round(x / scale) + eps, task)
    changed = case_task(task, Case({"rows": 4, "cols": 20}, 1, said))
    assert [one.value for one in changed.numbers] == [1.0, 1.0]
    assert np.array_equal(drawn(task, said, np.float32), drawn(task, PATTERNED, np.float32))


def test_values_that_a_need_declines_are_judged_at_sizes_that_it_takes() -> None:
    further = ("special",)
    usual = value_cases(tasks.LAYERNORM, further, lambda _: True, plan_cases(tasks.LAYERNORM))
    assert {one.values for one in usual} == {PATTERNED, OUTLIERS, "negative offset", "special"}
    eights = value_cases(tasks.LAYERNORM, further, lambda sizes: sizes["rows"] % 8 == 0, ())
    assert {"task", "offset", "wide", "impulse", "small", "logarithmic", NUMBERS, PATTERNED, "special"} <= {
        one.values for one in eights
    }
    assert all(one.sizes["rows"] % 8 == 0 for one in eights)
    assert len({one.seed for one in eights}) == len(eights)
    assert value_cases(tasks.LAYERNORM, further, lambda _: False, ()) == ()


# -- what is right --


def test_places_of_equal_numbers_may_stand_in_any_order() -> None:
    x = torch.tensor([[3.0, 5.0, 5.0, 1.0], [2.0, 2.0, 2.0, 9.0]])
    (expected,) = expectations(lambda given: (given["x"].topk(3, -1).indices,), {"x": x}, Precision.DTYPE)
    assert compare(torch.tensor([[2, 1, 0], [3, 2, 0]]), expected).right
    assert compare(torch.tensor([[1, 2, 0], [3, 0, 1]]), expected).right
    assert not compare(torch.tensor([[1, 1, 0], [3, 0, 1]]), expected).right, "one place twice"
    assert not compare(torch.tensor([[1, 2, 3], [3, 0, 1]]), expected).right
    assert not compare(torch.tensor([[1, 2, 0], [3, 0, 7]]), expected).right
    (first,) = expectations(lambda given: (given["x"].argmax(-1),), {"x": x * 0.7371}, Precision.DTYPE)
    assert compare(torch.tensor([1, 3]), first).right
    assert not compare(torch.tensor([2, 3]), first).right, "PyTorch promises the first"
    (least,) = expectations(lambda given: (given["x"].min(0).indices.int(),), {"x": x[:, 1:3]}, Precision.DTYPE)
    assert compare(torch.tensor([1, 1], dtype=torch.int32), least).right


def test_halves_are_rounded_to_even() -> None:
    x = torch.tensor([0.5, 1.5, 2.5, -0.5, 0.3])
    (expected,) = expectations(lambda given: (given["x"].round().int(),), {"x": x}, Precision.DTYPE)
    assert compare(x.round().int(), expected).right
    assert not compare((x + 0.5).floor().int(), expected).right


def test_large_whole_numbers_are_told_apart() -> None:
    own = torch.tensor([2**62 + 1, 5])
    assert compare(own.clone(), Expected(own, own, ())).right
    assert not compare(own + torch.tensor([1, 0]), Expected(own, own, ())).right


def test_what_vanishes_may_be_zero() -> None:
    truth = torch.full((4, 300), -2.3e-37, dtype=torch.float64)
    expected = Expected(truth.float(), truth, (truth,))
    assert compare(torch.zeros(4, 300), expected).right
    small = Expected((truth * 1e15).float(), truth * 1e15, (truth * 1e15,))
    assert not compare(torch.zeros(4, 300), small).right


def test_of_mixed_values_only_what_is_settled_counts() -> None:
    truth = torch.full((3, 100), 1.0, dtype=torch.float64)
    own = truth.float()
    own[0, 0], truth[1, 1], own[1, 1] = math.nan, math.inf, math.inf
    expected = Expected(own, truth, (truth,))
    good = torch.where(own.isnan(), 1.0, own)
    assert compare(good, expected, traits=ValueTraits(mixed=True)).right
    for value in (math.nan, 1.0):
        found = good.clone()
        found[1, 1] = value
        assert compare(found, expected, traits=ValueTraits(mixed=True)).wrong.nonzero().tolist() == [[1, 1]]
    unsure = truth.clone()
    unsure[2] += 0.2 * torch.randn(100, dtype=torch.float64)
    loose = Expected(own, truth, (unsure,))
    off = good.clone()
    off[2] += 2.5
    assert not compare(off, loose).right
    assert compare(off, loose, traits=ValueTraits(mixed=True)).right
    off[2] = math.nan
    assert not compare(off, loose, traits=ValueTraits(mixed=True)).right


# -- the whole --


def test_a_maximum_that_starts_at_zero_is_seen(referee: Make) -> None:
    text = kernels.SOFTMAX_SHARED
    assert "-INFINITY" in text
    assert isinstance(referee(tasks.SOFTMAX).judge(text), Passed)
    verdict = referee(tasks.SOFTMAX).judge(text.replace("-INFINITY", "0.0f"))
    assert isinstance(verdict, Rejected)
    assert isinstance(verdict.evidence, WrongValues)
    assert verdict.evidence.case.values == "negative offset"


def test_a_need_hides_no_values(referee: Make) -> None:
    text = kernels.SOFTMAX_SHARED.replace("-INFINITY", "0.0f").replace(
        "//! out", "//! need    rows % 8 == 0\n//! out", 1
    )
    verdict = referee(tasks.SOFTMAX).judge(text)
    assert isinstance(verdict, Rejected)
    assert isinstance(verdict.evidence, WrongValues)
    assert verdict.evidence.case.sizes["rows"] % 8 == 0
