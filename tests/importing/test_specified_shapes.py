"""Shapes that are said of tensors behind pointers: the launcher's numbers follow from them."""

from __future__ import annotations

import pytest

from tilewright.importing.calls import CallArgument
from tilewright.importing.shapes import numbers_from_shapes, shapes_conflict, with_pointer_lengths
from tilewright.importing.sources import ConflictingArguments

SHAPES = {"x": ["rows", "cols"], "y": ["rows", "cols"], "w": ["cols * 3"], "n": ["rows"]}


def said(**given: tuple[int, ...] | int) -> dict[str, CallArgument]:
    return {
        name: CallArgument(name, "int", value=one) if isinstance(one, int) else CallArgument(name, "tensor", "f32", one)
        for name, one in given.items()
    }


@pytest.mark.parametrize(
    ("given", "numbers", "flat"),
    [
        ({"x": (512, 1000)}, {"rows": 512, "cols": 1000}, False),
        ({"n": (512,), "w": (3000,)}, {"rows": 512, "cols": 1000}, False),
        ({"n": (4, 128)}, {"rows": 512}, True),  # as many elements
        ({"x": (512000,), "rows": 512, "cols": 1000}, {"rows": 512, "cols": 1000}, True),
        ({"x": (512000,), "y": (512, 1000)}, {"rows": 512, "cols": 1000}, True),
        ({"n": (600,), "rows": 512}, {"rows": 512}, True),  # more than is reached
        ({"x": (1000, 512), "rows": 512, "cols": 1000}, {"rows": 512, "cols": 1000}, True),
        ({"other": (3, 4)}, {}, False),
    ],
)
def test_numbers_follow(given: dict[str, tuple[int, ...] | int], numbers: dict[str, int], flat: bool) -> None:
    assert numbers_from_shapes(said(**given), SHAPES) == numbers
    assert shapes_conflict(said(**given), SHAPES) is flat


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"x": (512, 1000), "y": (512, 999)}, r"y=512x999: .* cols is 999, but --shape x=512x1000 makes it 1000"),
        ({"x": (512, 1000), "rows": 511}, "rows is 512, but --set makes it 511"),
        ({"x": (512000,)}, "write --shape x=ROWSxCOLS, or say rows, cols with --set"),
        ({"x": (100,), "rows": 512, "cols": 1000}, "which is 512000 elements"),
        ({"x": (512, 1000), "w": (1000,)}, "which is 3000 elements"),
        ({"w": (1000,)}, r"1000 is not cols \* 3"),
    ],
)  # fmt: skip
def test_a_contradiction_is_one_sentence(given: dict[str, tuple[int, ...] | int], words: str) -> None:
    with pytest.raises(ConflictingArguments, match=words):
        numbers_from_shapes(said(**given), SHAPES)


def test_pointers_that_stay_flat_are_as_long_as_is_said() -> None:
    bare = [CallArgument(name, "tensor", "f32", (1 << 17,), is_pointer=True) for name in ("x", "y", "n", "table")]
    call = [*bare, CallArgument("rows", "int", value=512), CallArgument("cols", "int", value=1000)]
    made, guessed = with_pointer_lengths(call, said(x=(512000,)), SHAPES)
    assert [one.shape for one in made[:4]] == [(512000,), (512000,), (512,), (1 << 17,)]
    assert guessed == ("table",)
    assert with_pointer_lengths(call, {}, SHAPES) == (tuple(call), ("x", "y", "n", "table"))
