"""From a reference to its row program."""

from __future__ import annotations

import pytest
from tests.playbook.functions import BY_NAME, SIZES, Function, program_of, task_of

from tilewright.playbook.catalogue import row_schedules
from tilewright.playbook.errors import NotSupported
from tilewright.playbook.row_program import LaunchNumber, NumberKind, Reduce, Reduction
from tilewright.playbook.understanding import understand
from tilewright.records import Dimension, DType, Task, TaskOutput, TensorInput
from tilewright.tasks import task_op_line


def test_layernorm_is_two_reductions_and_three_sweeps() -> None:
    program = program_of(BY_NAME["layernorm_gelu"])
    assert [program.values[one].op for one in program.reductions] == [Reduction.SUM] * 2  # type: ignore[union-attr]
    assert program.sweeps == 3
    assert [one.name for one in program.columns] == ["weight", "bias"]
    assert [one.name for one in program.streams] == ["x"]
    assert (program.task_rows, program.task_cols) == (4096, 1024)
    assert LaunchNumber("eps", "eps") in program.values


def test_a_number_that_follows_a_size_is_an_expression() -> None:
    program = program_of(BY_NAME["scaled_scores"])
    found = [one for one in program.values if isinstance(one, LaunchNumber)]
    assert found == [LaunchNumber("root_cols", "sqrt(x.shape[1])")]


def test_numbers_that_vary_are_parameters_and_others_are_needed() -> None:
    program = program_of(Function("f", "return x * alpha + (1 - alpha) + k", "x: f32[rows, cols]; alpha = 0.3; k = 2"))
    assert {one.name for one in program.values if isinstance(one, LaunchNumber)} == {"alpha", "one_minus_alpha"}
    assert "k == 2" in program.shape_needs


def test_numbers_that_follow_from_several_arguments_are_expressions() -> None:
    """As AdamW has them; a quotient of two is no constant, though each may grow by the same part."""
    body = "return x * (1 - lr * wd) / math.sqrt(1 - b ** 10) + lr / (1 - b ** 3) + lr / wd"
    program = program_of(Function("f", body, "x: f32[rows, cols]; lr = 1e-3; wd = 0.01; b = 0.9"))
    found = {one.expression for one in program.values if isinstance(one, LaunchNumber)}
    product = " * ".join("b" * 10)
    assert found == {"1.0 - (lr * wd)", f"sqrt(1.0 - ({product}))", "lr / (1.0 - (b * b * b))", "lr / wd"}


def test_a_number_that_cannot_be_explained_is_refused_with_a_way_on() -> None:
    with pytest.raises(NotSupported, match=r"from the sizes and the numbers of the function .* a parameter of its own"):
        program_of(Function("f", "return x * math.sin(lr)", "x: f32[rows, cols]; lr = 0.3"))


def test_a_fixed_dimension_is_needed_as_it_is() -> None:
    program = program_of(Function("f", "return torch.softmax(x, -1)", fixed=("cols",)))
    assert "x.shape[1] == 1024" in program.shape_needs


def test_two_fixed_dimensions_of_one_name_are_both_needed_as_they_are() -> None:
    inputs = "x: f32[batch, height, height]; weight: f32[height, height]"
    function = Function("f", "return F.layer_norm(x, weight.shape, weight)", inputs, fixed=("height",))
    needs = program_of(function).shape_needs
    size = task_of(function).sizes["height"]
    assert f"x.shape[1] == {size}" in needs
    assert f"x.shape[2] == {size}" in needs
    assert "weight.shape[1] == x.shape[2]" in needs
    assert f"weight.shape[1] == {size}" not in needs  # that is said already


def test_a_square_matrix_keeps_rows_and_columns_apart() -> None:
    """Both dimensions have one name and one size; the row's mean must still go along rows."""
    source = "def f(x, w):\n    return (x - x.mean(-1, keepdim=True)) * w\n"
    size = Dimension("n", 64)
    inputs = (TensorInput("x", DType.F32, ("n", "n")), TensorInput("w", DType.F32, ("n",)))
    task = Task("f", source, "f", inputs, (TaskOutput("y", DType.F32, ("n", "n")),), (size,))
    program = program_of(Function("f", "return (x - x.mean(-1, keepdim=True)) * w", "x: f32[n, n]; w: f32[n]"), task)
    assert [one.name for one in program.columns] == ["w"]
    assert program.shape_needs[1:] == ("x.ndim == 2", "w.ndim == 1", "w.shape[0] == x.shape[1]")


def test_broadcast_over_some_rows_is_a_division() -> None:
    program = program_of(BY_NAME["masked_softmax"])
    keep = next(one for one in program.inputs if one.name == "keep")
    assert keep.parts is not None
    assert [(one.divisor, one.modulus) for one in keep.parts] == [("", "x.shape[2]")]
    channels = next(one for one in program_of(BY_NAME["batch_norm"]).inputs if one.name == "mean")
    assert not channels.varies
    assert channels.parts is not None
    assert [(one.divisor, one.modulus) for one in channels.parts] == [("", "x.shape[1]")]


def test_nothing_but_whole_tensors_is_flat() -> None:
    assert program_of(BY_NAME["gate"]).is_flat
    assert not program_of(BY_NAME["bias_gelu"]).is_flat
    assert program_of(BY_NAME["bias_gelu"]).is_pointwise


def test_whole_numbers_are_reduced_as_such() -> None:
    program = program_of(BY_NAME["kinds"])
    sums = [
        one for one in program.reductions if program.values[one] == Reduce(Reduction.SUM, program.arguments(one)[0])
    ]
    assert [program.kinds[one] for one in sums] == [NumberKind.INT]


@pytest.mark.parametrize(
    ("body", "inputs"),
    [
        ("return x @ y", "x: f32[rows, cols]; y: f32[cols, rows]"),
        ("return F.conv1d(x, y)", "x: f32[batch, rows, cols]; y: f32[heads, rows, one]"),
        ("return x.cumsum(-1)", "x: f32[rows, cols]"),
        ("return x[:, i]", "x: f32[rows, cols]; i: i64[heads]"),
        ("return x.T + 1", "x: f32[rows, cols]"),
        ("return x.amax((0, 2))", "x: f32[batch, rows, heads, cols]"),
        ("return x.sum(-1) - x.sum(0)", "x: f32[rows, rows]"),
        ("return x.double() * 2", "x: f32[rows, cols]"),
        ("return torch.sort(x, -1).values", "x: f32[rows, cols]"),
        ("return x.reshape(48, -1).sum(-1)", "x: f32[rows, cols]"),
        ("a, b = x.chunk(2, -1)\nreturn a * b", "x: f32[rows, cols]"),
        ("return F.dropout(x, 0.5)", "x: f32[rows, cols]"),
    ],
)
def test_what_rows_do_not_take_is_left_to_others(body: str, inputs: str) -> None:
    sizes = {**SIZES, "rows": 64, "cols": 96}
    function = Function("f", body, inputs, fixed=("rows", "cols"))
    with pytest.raises(NotSupported):
        program_of(function, task_of(function, sizes))


def test_a_reference_is_traced_in_its_own_process_and_remembered() -> None:
    task = task_of(BY_NAME["layernorm_gelu"])
    answer = understand(task)
    here = row_schedules(program_of(BY_NAME["layernorm_gelu"], task)).structures
    line = task_op_line(task)
    assert [one.write(line) for one in answer.structures] == [one.write(line) for one in here]
    assert understand(task) is answer


def test_a_reference_that_looks_at_its_values_cannot_be_followed() -> None:
    task = task_of(Function("f", "return x if x.sum() > 0 else -x"))
    with pytest.raises(NotSupported, match="cannot follow the reference"):
        understand(task)


def test_mish_spelled_out_is_one_function() -> None:
    """One exponential and one division where tanh and softplus would take three of them."""
    function = Function("f", "return torch.multiply(torch.tanh(F.softplus(x)), x) + torch.tanh(F.softplus(x, 2.0)) * x")
    (written, *_) = row_schedules(program_of(function)).structures
    text = written.write(task_op_line(task_of(function)))
    assert "mish_of(x_value)" in text
    assert "tanhf(softplus_of(x_value, 2.0f, 20.0f))" in text  # another function
    assert "softplus_of(x_value, 1.0f" not in text
