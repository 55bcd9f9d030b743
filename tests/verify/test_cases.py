"""The cases: deterministic, inside the task's domain, odd where it may be odd; and the values they hold."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from tests.verify import tasks

from tilewright.records import (
    Case,
    Dimension,
    DType,
    IntegerValues,
    NormalValues,
    SizeFormula,
    Task,
    TaskOutput,
    TensorInput,
    UniformValues,
)
from tilewright.verify.accepted_sizes import accepted_sizes, branch_pair_sizes, branch_sizes
from tilewright.verify.block_trial import further_sizes
from tilewright.verify.case_sizes import inner_dimension
from tilewright.verify.case_work import MOST_WORK, SMALL_WORK, is_small, work_of
from tilewright.verify.cases import drawn_cases, full_size_cases, plan_cases
from tilewright.verify.distributions import NUMBERS, case_task, contents, draw_inputs
from tilewright.verify.float_values import DISTRIBUTIONS, DRAWN_ANYWHERE, INFINITE, NAN_ANYWHERE, NAN_ROWS, SPECIAL


def test_cases_follow_from_the_task_alone() -> None:
    assert plan_cases(tasks.LAYERNORM) == plan_cases(replace(tasks.LAYERNORM))
    cases = plan_cases(tasks.LAYERNORM)
    sizes = [tuple(one.sizes.values()) for one in cases]
    assert (1, 1) in sizes
    assert (65, 129) in sizes
    assert (4, 1024) in sizes
    assert {one.values for one in cases} >= {"task", "offset", "impulse", "wide", "logarithmic", NUMBERS}
    assert all(work_of(tasks.LAYERNORM, one.sizes) <= SMALL_WORK for one in cases)
    assert len({(str(one.sizes), one.values) for one in cases}) == len(cases)
    assert len({one.seed for one in cases}) == len(cases)


def test_multiples_and_fixed_dimensions_are_kept() -> None:
    task = replace(
        tasks.MATMUL,
        dimensions=(Dimension("m", 64, varies=False), Dimension("k", 1024, multiple_of=16), Dimension("n", 96)),
    )
    cases = plan_cases(task)
    assert cases
    assert {one.sizes["m"] for one in cases} == {64}
    assert all(one.sizes["k"] % 16 == 0 for one in cases)
    assert {1, 5}.intersection(one.sizes["n"] for one in cases)


def test_large_fixed_dimensions_are_met_by_small_others() -> None:
    task = replace(
        tasks.MATMUL,
        dimensions=(Dimension("m", 4096), Dimension("k", 8192, varies=False), Dimension("n", 4096)),
    )
    assert all(is_small(task, one.sizes) for one in plan_cases(task))
    assert plan_cases(task)
    fixed = replace(tasks.MATMUL, dimensions=tuple(Dimension(one, 32, varies=False) for one in "mkn"))
    assert plan_cases(fixed) == ()
    assert {one.values for one in full_size_cases(fixed)} == {"task", "impulse", "offset", "wide"}


def test_the_inner_dimension_is_the_one_kernels_specialise_for() -> None:
    assert inner_dimension(tasks.LAYERNORM) == "cols"
    assert inner_dimension(tasks.DOUBLE) == "n"
    assert inner_dimension(tasks.ROWS) == "width"


def test_sizes_are_found_that_a_file_takes() -> None:
    found = accepted_sizes(tasks.LAYERNORM, lambda sizes: sizes["cols"] % 256 == 0 and sizes["rows"] >= 32)
    assert found[0] == {"rows": 32, "cols": 256}
    assert len(found) == 3
    assert accepted_sizes(tasks.LAYERNORM, lambda sizes: sizes["cols"] == 1024)[0] == {"rows": 1, "cols": 1024}
    assert accepted_sizes(tasks.LAYERNORM, lambda sizes: work_of(tasks.LAYERNORM, sizes) > MOST_WORK) == ()


# -- values --


def values(task: Task, case: Case, name: str) -> np.ndarray:
    return np.frombuffer(draw_inputs(task, case)[name], dtype=np.float32)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distributions_are_deterministic_and_different(name: str) -> None:
    case = Case({"rows": 8, "cols": 100}, 3, name)
    first = draw_inputs(tasks.LAYERNORM, case)
    assert first == draw_inputs(tasks.LAYERNORM, case)
    assert first != draw_inputs(tasks.LAYERNORM, replace(case, seed=4))
    same = first["x"] == draw_inputs(tasks.LAYERNORM, replace(case, values="task"))["x"]
    assert same == (name == "normal")
    assert first["weight"] != first["bias"]
    special = name in (SPECIAL, INFINITE, NAN_ROWS, NAN_ANYWHERE)
    assert np.isfinite(values(tasks.LAYERNORM, case, "x")).all() != special
    assert np.isfinite(values(tasks.LAYERNORM, case, "weight")).all() != (name == NAN_ANYWHERE)
    assert (contents(tasks.LAYERNORM, case) is None) is (name not in DRAWN_ANYWHERE)


def test_what_distributions_look_like() -> None:
    def drawn(name: str) -> np.ndarray:
        return values(tasks.SOFTMAX, Case({"rows": 50, "cols": 100}, 3, name), "logits")

    assert abs(drawn("normal").mean()) < 0.05
    assert 9990 < drawn("offset").mean() < 10010
    assert drawn("wide").max() > 95
    impulse = np.abs(drawn("impulse"))
    assert impulse[[0, -1]].min() > 10
    assert 0.03 < (impulse > 10).mean() < 0.1
    logarithmic = np.abs(drawn("logarithmic"))
    assert logarithmic.min() < 0.01
    assert logarithmic.max() > 100


def test_whole_numbers_stay_in_the_domain() -> None:
    case = Case({"entries": 7, "width": 3, "n": 500}, 1, "impulse")
    index = np.frombuffer(draw_inputs(tasks.ROWS, case)["index"], dtype=np.int64)
    assert (index.min(), index.max()) == (0, 6)
    dimensions = (Dimension("n", 1000),)
    task = Task(
        "f",
        "",
        "f",
        (
            TensorInput("flags", DType.BOOL, ("n",)),
            TensorInput("bytes", DType.I8, ("n",), IntegerValues(-3, 4)),
            TensorInput("share", DType.F32, ("n",), UniformValues(2.0, 3.0)),
            TensorInput("plain", DType.F32, ("n",), NormalValues(5.0, 0.1)),
        ),
        (TaskOutput("y", DType.F32, ("n",)),),
        dimensions,
    )
    drawn = draw_inputs(task, Case({"n": 1000}, 1))
    assert set(drawn["flags"]) == {0, 1}
    assert set(np.frombuffer(drawn["bytes"], dtype=np.int8)) == set(range(-3, 4))
    assert 2 <= np.frombuffer(drawn["share"], dtype=np.float32).min() < 2.1
    assert abs(np.frombuffer(drawn["plain"], dtype=np.float32).mean() - 5) < 0.02
    assert draw_inputs(task, Case({"n": 0}, 1))["plain"] == b""


def test_other_numbers() -> None:
    case = Case({"rows": 3, "cols": 37}, 1, NUMBERS)
    changed = case_task(tasks.LAYERNORM, case)
    assert changed.numbers[0].value == pytest.approx(1.5e-2)
    assert case_task(tasks.LAYERNORM, replace(case, values="task")) is tasks.LAYERNORM
    assert draw_inputs(tasks.LAYERNORM, case) == draw_inputs(tasks.LAYERNORM, replace(case, values="task"))


def layers(count: int, width: int = 64) -> Task:
    """A product with one matrix after the other."""
    names = [f"w{number}" for number in range(count)]
    widths = [f"d{number}" for number in range(count + 1)]
    inputs = [TensorInput("x", DType.F32, ("rows", "d0"))]
    inputs += [TensorInput(name, DType.F32, tuple(widths[number : number + 2])) for number, name in enumerate(names)]
    dimensions = (Dimension("rows", 512), *(Dimension(name, width) for name in widths))
    source = f"def f(x, {', '.join(names)}): return x @ {' @ '.join(names)}"
    out = TaskOutput("y", DType.F32, ("rows", widths[-1]))
    return Task("f", source, "f", tuple(inputs), (out,), dimensions)


def test_the_work_of_a_chain_of_layers_is_that_of_its_layers() -> None:
    task = layers(10)
    sizes = {one.name: 4 for one in task.dimensions}
    assert work_of(task, sizes) < 4**5, "not the product of twelve sizes"
    cases = plan_cases(task)
    assert len({tuple(one.sizes.values()) for one in cases}) > 3
    one = layers(1)
    assert work_of(one, one.sizes) == 512 * 64 * 64


def test_sizes_are_found_for_a_file_that_takes_few_of_many_dimensions() -> None:
    task = layers(30)
    found = accepted_sizes(task, lambda sizes: sizes["rows"] % 4 == 0)
    assert len(found) == 3
    assert all(is_small(task, sizes, MOST_WORK) for sizes in found)


def test_the_work_of_a_square_is_that_of_its_elements() -> None:
    square = tasks.task("softmax", {"logits": "f32 batch n n"}, "f32 batch n n", {"batch": 16, "n": 1024})
    assert work_of(square, square.sizes) == 16 * 1024 * 1024
    assert all(work_of(square, one.sizes) <= SMALL_WORK for one in plan_cases(square))


def test_the_work_of_a_convolution_is_that_of_its_loops() -> None:
    sizes = {"batch": 2, "channels": 3, "width": 12, "out": 5, "kernel": 3}
    dimensions = (
        *(Dimension(name, size) for name, size in sizes.items()),
        Dimension("places", 10, formula=SizeFormula.parse("width - kernel + 1")),
    )
    inputs = (
        TensorInput("x", DType.F32, ("batch", "channels", "width")),
        TensorInput("w", DType.F32, ("out", "channels", "kernel")),
    )
    source = "import torch\ndef f(x, w): return torch.nn.functional.conv1d(x, w)"
    task = Task("f", source, "f", inputs, (TaskOutput("y", DType.F32, ("batch", "out", "places")),), dimensions)
    exact = 2 * 3 * 5 * 3 * 10
    assert exact <= work_of(task, task.sizes) <= 2 * exact
    pooled = replace(task, outputs=(TaskOutput("y", DType.F32, ("batch", "out")),), dimensions=dimensions[:-1])
    assert exact <= work_of(pooled, pooled.sizes) <= 2 * exact


def test_no_case_is_below_a_least_size() -> None:
    task = replace(
        tasks.MATMUL, dimensions=(Dimension("m", 64), Dimension("k", 1024, True, 4, at_least=10), Dimension("n", 96))
    )
    cases = plan_cases(task)
    assert min(one.sizes["k"] for one in cases) == 12
    assert min(one.sizes["m"] for one in cases) == 1
    assert min(sizes["k"] for sizes in accepted_sizes(task, lambda sizes: True)) == 12


def test_what_can_shrink_shrinks_though_the_largest_cannot() -> None:
    task = replace(
        tasks.MATMUL, dimensions=(Dimension("m", 4096), Dimension("k", 4096, at_least=3000), Dimension("n", 4096))
    )
    cases = plan_cases(task)
    assert cases
    assert all(one.sizes["k"] >= 3000 for one in cases)
    assert all(is_small(task, one.sizes) for one in cases)


def test_windows_that_do_not_overlap_have_room() -> None:
    sizes = {"rows": Dimension("rows", 64), "cols": Dimension("cols", 512)}
    windows = Dimension("windows", 5, formula=SizeFormula.parse("rows / 11"))
    x = TensorInput("x", DType.F32, ("rows", "cols"))
    out = TaskOutput("y", DType.F32, ("windows", "cols"))
    task = Task("f", "def f(x): ...", "f", (x,), (out,), (*sizes.values(), windows))
    cases = plan_cases(task)
    assert len(cases) > 10
    assert {one.sizes["windows"] for one in cases} >= {1, 3}


CONVOLUTION = Task(
    "filtered",
    "",
    "filtered",
    (TensorInput("x", DType.F32, ("batch", "channels", "width")), TensorInput("w", DType.F32, ("channels", "taps"))),
    (TaskOutput("y", DType.F32, ("batch", "channels", "width")),),
    (Dimension("batch", 8), Dimension("channels", 4096), Dimension("width", 2048), Dimension("taps", 4)),
)


@pytest.mark.parametrize("task", [tasks.MATMUL, tasks.MEAN, CONVOLUTION], ids=lambda task: task.name)
def test_every_dimension_is_once_at_its_own_size_or_above_it(task: Task) -> None:
    sizes = [case.sizes for case in plan_cases(task)]
    for one in task.free:
        assert any(each[one.name] >= one.size for each in sizes), one.name
    inner = inner_dimension(task)
    assert inner is not None
    beyond = [each[inner] for each in sizes if each[inner] > task.sizes[inner]]
    assert any(size % 4 == 2 and size % 5 == 0 for size in beyond)


@pytest.mark.parametrize("task", [tasks.MATMUL, tasks.SOFTMAX, CONVOLUTION], ids=lambda task: task.name)
def test_sizes_between_small_and_full_are_drawn_for_every_file(task: Task) -> None:
    """Each long dimension near its own size, the innermost with both odd remainders, and several large at once."""
    own, inner = task.sizes, inner_dimension(task)
    assert inner is not None
    long = [one.name for one in task.free if one.varies and one.size > 512]
    for number in range(8):
        sizes = [case.sizes for case in drawn_cases(task, f"file {number}")]
        for name in long:
            assert any(own[name] // 2 - 32 <= each[name] < own[name] for each in sizes), name
        assert {1, 3} <= {each[inner] % 4 for each in sizes if each[inner] >= 512}
        assert {each % 8 for each in (one[inner] for one in sizes[:4])} & {5, 7}
        assert any(min(each[name] for name in long[:2]) > 128 for each in sizes)
        assert all(is_small(task, each) for each in sizes)
    assert drawn_cases(task, "a") != drawn_cases(task, "b")
    assert drawn_cases(task, "a") == drawn_cases(task, "a")


def test_products_have_two_tiles_each_way_and_a_filter_keeps_its_taps() -> None:
    sizes = [case.sizes for case in plan_cases(tasks.MATMUL)]
    assert any(each["m"] > 128 and each["n"] > 128 and each["k"] > 32 for each in sizes)
    taps = [case.sizes["taps"] for case in plan_cases(CONVOLUTION)]
    assert taps.count(4) > len(taps) / 2
    assert {1, 2, 3} <= set(taps)


def test_one_long_dimension_is_as_long_as_is_affordable() -> None:
    long = tasks.task("double", {"v": "f32 n"}, "f32 n", {"n": 1 << 26})
    largest = max(case.sizes["n"] for case in plan_cases(long))
    assert 100_000 < largest < SMALL_WORK
    assert largest % 20 == 10


def test_ways_that_two_dimensions_lead_to_together() -> None:
    def way(one: dict[str, int]) -> str:
        return "other" if one["rows"] >= 40 and 100 <= one["cols"] < 300 else "usual"

    assert list(branch_sizes(tasks.SOFTMAX, way)) == []
    (found,) = branch_pair_sizes(tasks.SOFTMAX, way)
    assert (found["rows"], found["cols"]) == (40, 128)
    assert list(branch_pair_sizes(tasks.SOFTMAX, lambda one: one["rows"] >= 40)) == []  # one dimension is enough
    assert list(branch_pair_sizes(tasks.SOFTMAX, lambda one: tuple(one.items()))) == []  # nothing turns


def test_further_sizes_are_in_turn_near_and_of_the_same_code() -> None:
    sizes = {"batch": 64, "channels": 64, "height": 64, "width": 64, "out_channels": 128, "kh": 3, "kw": 3}
    x, w = "f32 batch channels height width", "f32 out_channels channels kh kw"
    convolution = tasks.task("conv", {"x": x, "w": w}, "f32 batch out_channels height width", sizes)
    written_in = lambda one: frozenset((name, one[name]) for name in ("height", "width"))  # noqa: E731
    found = list(itertools.islice(further_sizes(convolution, written_in), 4))
    assert len({tuple(one.items()) for one in found}) == 4
    assert all(one["kh"] == one["kw"] == 3 for one in found)  # filters keep their size
    assert all(one["height"] == one["width"] == 64 for one in found[1::2])
    assert not all(one["height"] == one["width"] == 64 for one in found)
    assert all(work_of(convolution, one) <= 100_000_000 for one in found)
