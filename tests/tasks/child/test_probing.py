"""What calling a function at other sizes tells: links, varying dimensions, outputs, values, in-place tensors."""

from __future__ import annotations

import pytest
from tests.tasks.functions import SOURCE
from tests.tasks.in_process import probed

from tilewright.records import DType, IndexValues, IntegerValues, Kind, NormalValues, Task, UniformValues
from tilewright.reference import ReferenceProblem
from tilewright.tasks import TaskError, task_op_line


def made(function: str, shapes: dict[str, str], **options: object) -> Task:
    return probed(SOURCE, function, shapes, **options)[0]  # type: ignore[arg-type]


def axes(task: Task) -> dict[str, tuple[str, ...]]:
    return {one.name: one.dimensions for one in task.tensors}


def varying(task: Task) -> set[str]:
    return {one.name for one in task.dimensions if one.varies}


def outputs(task: Task) -> list[tuple[str, DType, tuple[str | int, ...]]]:
    return [(one.name, one.dtype, one.shape) for one in task.outputs]


def test_a_normalisation() -> None:
    task = made("layernorm_gelu", {"x": "64x48:bf16", "weight": "48:bf16", "bias": "48:bf16"})
    assert axes(task) == {"x": ("rows", "cols"), "weight": ("cols",), "bias": ("cols",)}
    assert task.sizes == {"rows": 64, "cols": 48}
    assert varying(task) == {"rows", "cols"}
    assert outputs(task) == [("y", DType.BF16, ("rows", "cols"))]
    assert task.kind is Kind.NORMALISATION
    assert task_op_line(task) == "layernorm_gelu(x, weight, bias, eps: float = 1e-05) -> y"


def test_equal_sizes_that_mean_different_things_are_parted() -> None:
    task = made("matmul_bias", {"a": "64x64:f16", "b": "64x64:f16", "bias": "64:f16"})
    assert axes(task) == {"a": ("m", "k"), "b": ("k", "n"), "bias": ("n",)}
    assert outputs(task) == [("y", DType.F16, ("m", "n"))]
    assert varying(task) == {"m", "k", "n"}
    both = made("add", {"x": "32x32", "y": "32x32"})
    assert axes(both) == {"x": ("rows", "cols"), "y": ("rows", "cols")}
    assert outputs(both)[0][0] == "out"
    attention = made("attention", {"q": "2x2x32x32", "k": "2x2x32x32", "v": "2x2x32x32"})
    q, k, v = axes(attention).values()
    assert q[:2] == k[:2] == v[:2]
    assert q[3] == k[3]
    assert k[2] == v[2]
    assert len({q[2], q[3], k[2], v[3]}) == 4
    assert outputs(attention)[0][2] == (*q[:3], v[3])
    assert attention.kind is Kind.ATTENTION


def follows(task: Task) -> dict[str, str]:
    return {one.name: str(one.formula) for one in task.dimensions if one.formula is not None}


@pytest.mark.parametrize(
    ("function", "shapes", "found"),
    [
        ("rope", {"x": "4x32x16", "cos": "32x8", "sin": "32x8"}, {"half_cols": "cols / 2"}),
        ("own_heads", {"x": "10x64", "w": "4x16"}, {"x_cols": "w_rows * cols"}),
        ("cat_matmul", {"x": "9x32", "y": "9x16", "w": "48x20"}, {"w_rows": "cols + y_cols"}),
        ("glu_matmul", {"x": "32x128", "w": "64x64"}, {"half_cols": "cols / 2"}),
        ("filter_times", {"x": "2x5x64", "g": "2x7x62", "w": "7x5x3"}, {"g_width": "width - kernel_width + 1"}),
        ("steps", {"x": "100", "offsets": "101"}, {"offsets_n": "n + 1"}),
        (
            "halves_and_quarters",
            {"x": "10x64", "a": "32", "b": "16"},
            {"half_cols": "cols / 2", "quarter_cols": "cols / 4"},
        ),
    ],
)
def test_sizes_of_inputs_that_follow_from_others(function: str, shapes: dict[str, str], found: dict[str, str]) -> None:
    task = made(function, shapes)
    assert follows(task) == found
    assert all(one.varies for one in task.dimensions)
    assert task.assumptions == ()


def test_sizes_that_must_be_the_same_share_a_name() -> None:
    task = made("depthwise", {"x": "4x8x32", "w": "8x1x3"})
    assert axes(task) == {"x": ("batch", "channels", "width"), "w": ("channels", "one", "kernel_width")}
    attention = made("sdpa", {"q": "2x4x128x64", "k": "2x4x128x64", "v": "2x4x128x64"})
    q, k, v = axes(attention).values()
    assert (k[2], k[3]) == (v[2], q[3])
    assert varying(attention) == {*q, *k, *v}
    assert len({*q, *k, *v}) == 6


def test_a_source_is_as_many_times_as_its_parts_need() -> None:
    task = made("halves_and_quarters", {"x": "10x64", "a": "32", "b": "16"})
    assert {one.name: one.multiple_of for one in task.free} == {"rows": 1, "cols": 4}


def test_sizes_that_hang_together_by_no_formula_are_fixed() -> None:
    assert varying(made("heads", {"x": "5x64"})) == {"rows"}
    assert varying(made("prefix", {"x": "40x8", "table": "40x8"})) == {"rows", "cols"}


@pytest.mark.parametrize(
    ("function", "shapes", "found", "shape"),
    [
        ("halves", {"x": "8x12"}, {"half_cols": "cols / 2"}, ("rows", "half_cols")),
        ("windows", {"x": "8x16000"}, {"y_rows": "(cols - 48) / 16"}, ("rows", "y_rows", 64)),
        (
            "wide_filter",
            {"x": "4x3x112x112", "w": "6x3x11x11"},
            {"y_height": "(height - kernel_height + 2) / 2", "y_width": "width - 2 * kernel_width + 2"},
            ("batch", "out_channels", "y_height", "y_width"),
        ),
    ],
)
def test_sizes_of_outputs_that_follow_from_inputs(
    function: str, shapes: dict[str, str], found: dict[str, str], shape: tuple[str | int, ...]
) -> None:
    task = made(function, shapes)
    assert follows(task) == found
    assert all(one.varies for one in task.dimensions)
    assert task.outputs[0].shape == shape


def test_an_output_of_twice_the_size() -> None:
    task = made("twice", {"x": "8x12"})
    assert follows(task) == {"twice_cols": "2 * cols"}
    assert outputs(task) == [("y0", DType.F32, ("rows", "twice_cols")), ("y1", DType.F32, ("cols",))]


def test_an_output_size_without_a_formula_holds_its_dimension() -> None:
    task = made("pairs", {"x": "12"})
    assert varying(task) == set()
    assert outputs(task) == [("y", DType.F32, (66,))]
    assert any("n is fixed because the size of an output" in note for note in task.assumptions)


def test_multiples_are_found() -> None:
    task = made("group_norm", {"x": "4x32x10"})
    assert {one.name: (one.varies, one.multiple_of) for one in task.dimensions} == {
        "batch": (True, 1),
        "rows": (True, 4),
        "cols": (True, 1),
    }


def test_two_outputs_take_their_names_from_the_return_statement() -> None:
    assert outputs(made("top1", {"x": "32x32:f16"})) == [
        ("value", DType.F16, ("rows",)),
        ("index", DType.I64, ("rows",)),
    ]


def test_tensors_changed_in_place() -> None:
    task = made("add_rmsnorm", {"x": "8x32:f16", "residual": "8x32:f16", "weight": "32:f16"})
    assert [one.name for one in task.tensors if one.in_place] == ["residual"]
    assert outputs(task) == [("y", DType.F16, ("rows", "cols"))]
    only = probed(SOURCE, "scale_", {"x": "40"}, {"factor": "3"})[0]
    assert only.outputs == ()
    assert only.tensors[0].in_place
    assert task_op_line(only) == "scale_(x!, factor: float)"


def test_whole_numbers_that_index() -> None:
    task = made("lookup", {"table": "100x16", "ids": "4x10:i64"})
    assert task.tensors[1].values == IndexValues(task.tensors[0].dimensions[0])
    assert task.kind is Kind.GATHER
    assert made("loss", {"logits": "32x10", "target": "32:i64"}).tensors[1].values == IndexValues("cols")
    assert made("add", {"x": "8:i32", "y": "8:i32"}).tensors[1].values == IntegerValues(0, 100)
    given = probed(SOURCE, "lookup", {"table": "100x16", "ids": "9:i64"}, values={"ids": "integers 0 100"})[0]
    assert given.tensors[1].values == IndexValues("rows")
    part = probed(SOURCE, "lookup", {"table": "100x16", "ids": "9:i64"}, values={"ids": "integers 0 50"})[0]
    assert part.tensors[1].values == IntegerValues(0, 50)
    assert "rows" not in varying(part), "a smaller table would not hold what the ids name"


def test_whole_numbers_that_index_what_follows() -> None:
    task = made("picked", {"x": "40", "table": "80", "ids": "7:i64"})
    assert follows(task) == {"twice_n": "2 * n"}
    assert task.tensors[2].values == IndexValues("twice_n")


def test_values_that_a_function_refuses_are_not_drawn() -> None:
    assert made("logarithm", {"x": "8x8"}).tensors[0].values == UniformValues(0.01, 0.99)
    task = made("bce", {"p": "16", "target": "16"})
    assert {one.values for one in task.tensors} == {UniformValues(0.01, 0.99)}
    assert "between 0 and 1" in task.assumptions[0]
    assert made("add", {"x": "8", "y": "8"}).tensors[0].values == NormalValues()


INFINITE = """
import torch

def entropy(p):
    return torch.special.entr(p).sum(-1)

def kept(x):
    return torch.where(x > 0, x, -torch.inf)

def masked(x):
    return x.masked_fill(torch.ones_like(x).tril().bool(), -torch.inf)
"""


def test_values_that_give_nothing_but_infinities_are_not_drawn() -> None:
    task = probed(INFINITE, "entropy", {"p": "64x512"})[0]
    assert task.tensors[0].values == UniformValues(0.01, 0.99)
    assert task.assumptions == ("p holds numbers between 0 and 1: the reference gives infinities with others",)
    for name in ("kept", "masked"):
        assert probed(INFINITE, name, {"x": "64x64"})[0].tensors[0].values == NormalValues(), "infinities by choice"


LOSSES = """
import torch
import torch.nn.functional as F

def divergence(logp, t):
    return F.kl_div(logp, t, reduction="none")

def of_logits(x, t):
    return F.binary_cross_entropy(torch.sigmoid(x), t)
"""


@pytest.mark.parametrize(("name", "free"), [("divergence", "logp"), ("of_logits", "x")])
def test_only_tensors_that_need_it_hold_numbers_between_0_and_1(name: str, free: str) -> None:
    task = probed(LOSSES, name, {free: "64x32", "t": "64x32"})[0]
    assert [one.values for one in task.tensors] == [NormalValues(), UniformValues(0.01, 0.99)]
    assert task.assumptions[0].startswith("t holds numbers between 0 and 1")


def test_a_size_of_one_is_fixed_and_large_shapes_are_not_allocated() -> None:
    task = made("add", {"x": "1000000x1000000:bf16", "y": "1000000x1:bf16"})
    assert task.sizes == {"rows": 1000000, "cols": 1000000, "one": 1}
    assert varying(task) == {"rows", "cols"}
    assert axes(task) == {"x": ("rows", "cols"), "y": ("rows", "one")}


def test_a_function_that_looks_at_values_is_called_for_real() -> None:
    assert outputs(made("looks", {"x": "8000x1000"})) == [("y", DType.F32, ("rows", "cols"))]
    with pytest.raises(ReferenceProblem, match="too many for a reference that reads the values of its inputs; give"):
        made("looks", {"x": "800000x1000"})
    with pytest.raises(ReferenceProblem, match="elements are more than any GPU holds; give smaller shapes"):
        made("add", {"x": "99999999999x99999999999", "y": "1"})


def test_the_person_may_fix_dimensions() -> None:
    shapes = {"x": "8x32", "y": "8x32"}
    assert varying(made("add", shapes, fixed=("cols",))) == {"rows"}
    assert varying(made("add", shapes, fixed_all=True)) == set()
    for name in ("cols", "half_cols"):
        fixed = made("halves", {"x": "8x12"}, fixed=(name,))
        assert varying(fixed) == {"rows"}
        assert fixed.sizes == {"rows": 8, "cols": 12, "half_cols": 6}
    with pytest.raises(TaskError, match="there is no dimension width; this task has rows, cols"):
        made("add", shapes, fixed=("width",))


def test_what_is_neither_tensor_nor_number_is_closed_over() -> None:
    shapes = {"x": "8x32", "weight": "32", "bias": "32"}
    task, _ = probed(SOURCE, "layernorm_gelu", shapes, {"approximate": "tanh", "eps": "1e-3"})
    assert task.function == "layernorm_gelu_of_inputs"
    assert "approximate='tanh'" in task.reference
    assert [(one.name, one.value, one.default) for one in task.numbers] == [("eps", 1e-3, False)]
    absent = made("maybe", {"x": "8"})
    assert [one.name for one in absent.inputs] == ["x"]
    given, _ = probed(SOURCE, "maybe", {"x": "8", "bias": "8"}, {"scale": "3"})
    assert task_op_line(given) == "maybe(x, bias, scale: float) -> y"
    renamed, _ = probed(SOURCE, "odd_names", {"min": "8", "device": "8"})
    assert task_op_line(renamed) == "odd_names(min_in, device_in, float_in: int = 2) -> y"


def test_a_reference_that_fails_says_where() -> None:
    with pytest.raises(ReferenceProblem, match=r"fails at x=8x8:f32: RuntimeError: .*line \d+: return x.view\(7, -1\)"):
        made("wrong", {"x": "8x8"})
    with pytest.raises(ReferenceProblem, match="returns nothing and changes no tensor"):
        made("nothing", {"x": "8x8"})


def test_the_weight_of_a_transposed_convolution_has_its_channels_first() -> None:
    source = "import torch\ndef f(x, b, w):\n    return torch.nn.functional.conv_transpose2d(x, w) + b\n"
    task = probed(source, "f", {"x": "2x3x16x18", "b": "1x7x1x1", "w": "3x7x2x4"})[0]
    assert axes(task)["w"] == ("channels", "out_channels", "kernel_height", "kernel_width")
    assert axes(task)["b"] == ("one", "out_channels", "one", "one")
