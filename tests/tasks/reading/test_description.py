"""task.toml: what it may hold, and one sentence for each way it can be wrong."""

from __future__ import annotations

import pytest

from tilewright.records import Dimension, DType, IndexValues, TensorInput, UniformValues
from tilewright.tasks import TaskError
from tilewright.tasks.reading.description import print_described, read_description
from tilewright.tasks.reading.parameters import parse_values, print_values

WHOLE = """
name = "gather_rows"
function = "f"
assumptions = ["ids are valid"]
goal = "latency"

[dimensions]
rows = 4096
cols = {size = 1024, varies = false, multiple_of = 8}

[inputs]
x = "bf16[rows, cols]"
ids = "i64[7]"
out = "inplace f32[rows, 1] order 1 0"
eps = 1e-5
flag = true

[values]
x = "uniform -1 1"
ids = "index rows"
"""


def test_a_whole_description() -> None:
    found = read_description(WHOLE)
    assert (found.name, found.function, found.assumptions) == ("gather_rows", "f", ("ids are valid",))
    assert list(found.dimensions.values()) == [
        Dimension("rows", 4096),
        Dimension("cols", 1024, False, 8),
        Dimension("size_7", 7, False),
        Dimension("one", 1, False),
    ]
    assert found.inputs["x"] == TensorInput("x", DType.BF16, ("rows", "cols"), UniformValues(-1.0, 1.0))
    assert found.inputs["ids"] == TensorInput("ids", DType.I64, ("size_7",), IndexValues("rows"))
    assert found.inputs["out"] == TensorInput("out", DType.F32, ("rows", "one"), memory_order=(1, 0), in_place=True)
    assert found.unspecified == {"out"}
    assert (found.inputs["eps"], found.inputs["flag"]) == (1e-5, True)
    assert found.goal is not None
    assert found.goal.value == "latency"


def test_sizes_that_follow_from_others() -> None:
    text = WHOLE.replace("rows = 4096", 'half = "cols / 2"\nrows = 4096').replace('"bf16[rows, cols]"', '"bf16[half]"')
    text = text.replace('"i64[7]"', '"i64[cols / 2, 2 * rows, rows - cols + 1]"')
    found = read_description(text)
    ids = found.inputs["ids"]
    assert isinstance(ids, TensorInput)
    assert ids.dimensions == ("half", "twice_rows", "ids_size")
    sizes = {one.name: (one.size, one.varies) for one in found.dimensions.values() if one.formula is not None}
    assert sizes == {"half": (512, False), "twice_rows": (8192, True), "ids_size": (3073, True)}
    assert read_description(print_described(found)) == found


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('name = "gather_rows"', "name = 3"), "name must be given as text"),
        (('name = "gather_rows"', 'name = "gather rows"'), "is no valid op name"),
        (('goal = "latency"', 'goal = "fast"'), "goal = 'fast' is not latency, throughput"),
        (('goal = "latency"', "speed = 1"), "unknown key 'speed'; it may have name, function"),
        (("rows = 4096", 'rows = "many"'), "dimension rows = many: there is no dimension many; name cols"),
        (("rows = 4096", "rows = true"), r'\[dimensions\] rows: write a size, \{size .* or .* "cols / 2"'),
        (
            ("rows = 4096", 'rows = {size = 4096, at_least = 2, unless = ["colls"]}'),
            "`unless` names colls, which is no dimension",
        ),
        (("rows = 4096", 'rows = "cols / "'), "'cols / ' is no formula"),
        (("rows = 4096", 'rows = "cols - 2000"'), "is -976 at cols = 1024; no size is below 0"),
        (('"bf16[rows, cols]"', '"bf16[rows, cols / rows]"'), "x: 'cols / rows' divides by something other"),
        (('"bf16[rows, cols]"', '"bf16[rows, 2 * width]"'), "x: dimension twice_width .* there is no dimension width"),
        (("multiple_of = 8", "multiple_of = 7"), "1024 is not a size that is a multiple of 7"),
        (('"bf16[rows, cols]"', '"bf16[rows, width]"'), "there is no dimension 'width'; .* has rows, cols"),
        (('"bf16[rows, cols]"', '"bfloat[rows]"'), "'bfloat' is not a dtype; write one of f64, f32"),
        (('"bf16[rows, cols]"', '"bf16 rows"'), "is no tensor; write such as"),
        (('"bf16[rows, cols]"', '"const bf16[rows]"'), "'const' is none of inplace, optional, parameter"),
        (("order 1 0", "order 1 1"), "order must name each of its 2 axes once"),
        (('"uniform -1 1"', '"gauss"'), r"\[values\] x: 'gauss' describes no values; write normal"),
        (('"index rows"', '"normal"'), r"\[values\] ids: i64 cannot hold normal"),
        (('ids = "index rows"', 'idz = "normal"'), r"\[values\] has idz, which is no tensor"),
        (("[values]", "[values"), "this is not TOML"),
    ],
)
def test_mistakes(change: tuple[str, str], message: str) -> None:
    assert change[0] in WHOLE
    with pytest.raises(TaskError, match=message):
        read_description(WHOLE.replace(*change))


@pytest.mark.parametrize(
    "text",
    [
        "normal",
        "normal 0.5 2.0",
        "uniform -1.0 1.0",
        "normal upper",
        "uniform 0.0 1.0 lower",
        "integers -3 7",
        "index rows",
    ],
)
def test_values_are_printed_as_they_are_read(text: str) -> None:
    assert print_values(parse_values(text, DType.F32, 2)) == text
    assert parse_values(text.replace(" ", ":"), DType.F32, 2) == parse_values(text, DType.F32, 2)


@pytest.mark.parametrize(
    "text",
    [
        "normal 1",
        "normal 0 -1",
        "upper",
        "normal 0 upper",
        "integers 0 9 upper",
        "uniform 2 1",
        "integers 5 5",
        "integers 0.5 2",
        "index",
    ],
)
def test_values_that_make_no_sense(text: str) -> None:
    with pytest.raises(ValueError, match="describes no values; write normal, normal:MEAN"):
        parse_values(text, DType.F32, 2)


def test_a_vector_has_no_triangle() -> None:
    with pytest.raises(ValueError, match="fewer than two dimensions has no upper triangle; leave the word out"):
        parse_values("normal upper", DType.F32, 1)


def test_a_least_size_is_read_and_written() -> None:
    found = read_description(WHOLE.replace("rows = 4096", "rows = {size = 4096, at_least = 3}"))
    assert found.dimensions["rows"] == Dimension("rows", 4096, at_least=3)
    printed = print_described(found)
    assert "rows = {size = 4096, varies = true, multiple_of = 1, at_least = 3}" in printed
    assert read_description(printed) == found
    with pytest.raises(TaskError, match="dimension rows: 4096 is not a size of at least 5000"):
        read_description(WHOLE.replace("rows = 4096", "rows = {size = 4096, at_least = 5000}"))
