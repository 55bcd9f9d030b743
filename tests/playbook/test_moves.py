"""Elements that are moved: every structure on the emulator against PyTorch."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.playbook.placed import ARCHITECTURES, Placed, check_structure, structure

from tilewright.tasks import task_op_line

_ODD = ({"rows": 9, "cols": 12}, {"rows": 11, "cols": 14}, {"rows": 16, "cols": 32})
_PAIRS = ({"rows": 70, "cols": 34}, {"rows": 66, "cols": 7})  # squares of which a part is moved, by twos and by ones
# Rows that a thread has several of: not a whole number of its turns, fewer than those, by vectors and by ones.
_TURNS = ({"words": 9, "rows": 5, "cols": 32}, {"words": 3, "rows": 4, "cols": 16}, {"words": 6, "rows": 3, "cols": 14})
_X = "x: f32[rows, cols]"
_EVEN = (("cols", 2),)

CASES = (
    Placed("of_two_results", "return F.logsigmoid(x)[..., 1:]", _X, "f32[rows, less = cols - 1]", _ODD),
    Placed("transposed", "return x.t()", _X, "f32[cols, rows]", _ODD),
    Placed("narrow", "return x.t()", "x: bf16[rows, cols]", "bf16[cols, rows]", _PAIRS),
    Placed(
        "joined_with_wider_numbers",
        "return torch.cat((x.bfloat16(), y))",
        "x: f32[rows, cols]; y: f32[rows, cols]",
        "f32[both = rows * 2, cols]",
        _ODD,
    ),
    Placed(
        "permuted",
        "return x.permute(2, 0, 1) * 2 + y",
        "x: f16[batch, rows, cols]; y: f16[cols, batch, rows]",
        "f16[cols, batch, rows]",
        _ODD,
    ),
    Placed(
        "swiglu",
        "a, b = x.chunk(2, -1)\nreturn F.silu(a) * b",
        "x: bf16[rows, cols]",
        "bf16[rows, half = cols / 2]",
        _ODD,
        _EVEN,
    ),
    Placed("gated", "return F.glu(x, 0)", _X, "f32[half = rows / 2, cols]", ({"rows": 6, "cols": 7},), (("rows", 2),)),
    Placed(
        "rotated",
        "d = x.shape[-1] // 2\nreturn x * c + torch.cat((-x[..., d:], x[..., :d]), -1) * s",
        "x: f32[batch, heads, rows, cols]; c: f32[rows, cols]; s: f32[rows, cols]",
        "f32[batch, heads, rows, cols]",
        _ODD,
        _EVEN,
    ),
    Placed(
        "rotated_at_any_width",
        "d = x.shape[-1] // 2\nreturn x * c + torch.cat((-x[..., d:], x[..., :d]), -1) * s",
        "x: f32[batch, rows, cols]; c: f32[rows, cols]; s: f32[rows, cols]",
        "f32[batch, rows, cols]",
        ({"rows": 9, "cols": 13}, {"rows": 4, "cols": 16}),
    ),
    Placed(
        "rotated_heads",
        "d = x.shape[-1] // 2\nreturn x * c + torch.cat((-x[..., d:], x[..., :d]), -1) * s",
        "x: bf16[words, rows, cols]; c: bf16[rows, cols]; s: bf16[rows, cols]",
        "bf16[words, rows, cols]",
        _TURNS,
        _EVEN,
    ),
    Placed(
        "rotated_between",
        "d = x.shape[-1] // 2\nreturn x * c[:, None] + torch.cat((-x[..., d:], x[..., :d]), -1) * s[:, None]",
        "x: f32[batch, rows, words, cols]; c: f32[rows, cols]; s: f32[rows, cols]",
        "f32[batch, rows, words, cols]",
        _TURNS,
        _EVEN,
    ),
    Placed(
        "halves_exchanged",
        "d = x.shape[-1] // 2\nreturn F.pad(x[..., d:], (0, d)) * c + F.pad(x[..., :d], (d, 0)) * s + 1",
        "x: f32[words, rows, cols]; c: f32[rows, cols]; s: f32[rows, cols]",
        "f32[words, rows, cols]",
        _TURNS,
        _EVEN,
    ),
    Placed(
        "interleaved",
        "a, b = x[..., 0::2], x[..., 1::2]\nreturn torch.stack((a * c - b * s, b * c + a * s), -1).flatten(-2)",
        "x: f32[batch, rows, cols]; c: f32[rows, half = cols / 2]; s: f32[rows, half]",
        "f32[batch, rows, cols]",
        _ODD,
        _EVEN,
    ),
    Placed(
        "cached",
        "return torch.cat((past, k.transpose(1, 2)), 2)",
        "past: bf16[batch, heads, rows, cols]; k: bf16[batch, words, heads, cols]",
        "bf16[batch, heads, all = rows + words, cols]",
        _ODD,
    ),
    Placed(
        "split_heads",
        "return x.view(x.shape[0], x.shape[1], -1, 16).transpose(1, 2)",
        "x: f32[batch, rows, cols]",
        "f32[batch, count = cols / 16, rows, 16]",
        ({"rows": 9, "cols": 32}, {"rows": 4, "cols": 48}),
        (("cols", 16),),
    ),
    Placed(
        "embedded",
        "return F.embedding(i, x)",
        "x: f32[words, cols]; i: i64[batch, rows]",
        "f32[batch, rows, cols]",
        _ODD,
    ),
    Placed("selected", "return x.index_select(1, i)", "x: f32[rows, cols]; i: i64[batch]", "f32[rows, batch]", _ODD),
    Placed("gathered", "return x.gather(1, i)", "x: f32[rows, cols]; i: i64[rows, batch]", "f32[rows, batch]", _ODD),
    Placed(
        "taken",
        "return torch.take_along_dim(x, i, 1)",
        "x: f32[rows, cols]; i: i64[rows, batch]",
        "f32[rows, batch]",
        _ODD,
    ),
    Placed("looked_up", "return x[i - 9] + x[-1]", "x: f32[rows, cols]; i: i64[batch]", "f32[batch, cols]", _ODD),
    Placed("rolled", "return torch.roll(x, (2, -3), (0, 1))", _X, "f32[rows, cols]", _ODD),
    Placed("flipped", "return x.flip(-1) + x.flip(0)", _X, "f32[rows, cols]", _ODD),
    Placed("repeated", "return x.repeat(2, 3)", _X, "f32[r = 2 * rows, c = 3 * cols]", _ODD),
    Placed("interleaves", "return x.repeat_interleave(2, 1)", _X, "f32[rows, c = 2 * cols]", _ODD),
    Placed("padded", "return F.pad(x, (1, 2, 3, 0), value=0.5)", _X, "f32[r = rows + 3, c = cols + 3]", _ODD),
    Placed("masked", "return torch.tril(x, 1) - torch.triu(x)", _X, "f32[rows, cols]", _ODD),
    Placed(
        "causal",
        "n = x.shape[-1]\nreturn x.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -1.0)",
        "x: f32[batch, cols, cols]",
        "f32[batch, cols, cols]",
        ({"cols": 12}, {"cols": 13}),
    ),
    Placed(
        "unpacked",
        "a, b = (x & 15).to(torch.int8) - 8, (x * 31 >> 4).to(torch.int8) - 8\n"
        "return torch.stack((a, b), -1).flatten(-2) * s",
        "x: u8[rows, cols]; s: f32[rows, one]",
        "f32[rows, c = 2 * cols]",
        _ODD,
    ),
    Placed(
        "packed",
        "return (x[..., 0::2] & 15) | (x[..., 1::2] << 4)",
        "x: u8[rows, cols]",
        "u8[rows, half = cols / 2]",
        _ODD,
        _EVEN,
    ),
    Placed("placed", "return x + torch.arange(x.shape[1])", _X, "f32[rows, cols]", _ODD),
    Placed(
        "shuffled",
        "return F.pixel_shuffle(x, 2)",
        "x: f32[batch, channels, rows, cols]",
        "f32[batch, fewer = channels / 4, high = 2 * rows, wide = 2 * cols]",
        ({"channels": 8, "rows": 3, "cols": 5}, {"channels": 4, "rows": 4, "cols": 8}),
        (("channels", 4),),
    ),
    Placed(
        "joined",
        "return torch.cat((x, y), 1), torch.cat((x, y.exp()), 0)",
        "x: f16[rows, cols]; y: f16[rows, cols]",
        "f16[rows, c = 2 * cols]; f16[r = 2 * rows, cols]",
        _ODD,
    ),
    Placed(
        "nearest",
        "return F.interpolate(x, scale_factor=2)",
        "x: f32[batch, heads, rows, cols]",
        "f32[batch, heads, h = 2 * rows, w = 2 * cols]",
        _ODD,
    ),
)
BY_NAME = {one.name: one for one in CASES}


@pytest.mark.parametrize(
    ("name", "id"),
    [
        ("rotated", "place-vectors"),
        ("rotated_heads", "place-vectors"),
        ("rotated_at_any_width", "loops"),
        ("narrow", "place-tiles"),
        ("embedded", "place-vectors"),
        ("looked_up", "place-vectors"),
        ("padded", "place-vectors"),
        ("unpacked", "loops"),
        ("joined_with_wider_numbers", "loops"),
    ],
)
def test_moved_elements_are_right(name: str, id: str, tmp_path: Path) -> None:
    check_structure(BY_NAME[name], structure(BY_NAME[name], id), tmp_path, 2)


@pytest.mark.slow
@pytest.mark.parametrize("gpu", ARCHITECTURES.values(), ids=ARCHITECTURES)
@pytest.mark.parametrize("case", CASES, ids=lambda one: one.name)
def test_every_structure_of_every_move_is_right(
    case: Placed, gpu: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_EMULATE", gpu)
    for step in case.answer.every:
        check_structure(case, step, tmp_path)


def test_lines_of_kernels_are_short() -> None:
    for name in ("cached", "rotated", "shuffled", "padded"):
        for step in BY_NAME[name].answer.structures:
            text = step.write(task_op_line(BY_NAME[name].task))
            assert max(map(len, text.splitlines())) <= 120, step.id


def test_whole_vectors_are_moved_where_places_allow() -> None:
    """A rotated half begins at a whole vector, so both sides of the join are one load of a vector, without a test for
    every element."""
    text = structure(BY_NAME["rotated"], "place-vectors").write("rotated(x, c, s) -> y0")
    assert text.count("reinterpret_cast<const Vector<float>*>(x + ") == 2
    assert text.count("at_cols + i") == text.count("x[") == 0


def test_what_does_not_differ_is_read_once_for_several_vectors() -> None:
    text = structure(BY_NAME["rotated_heads"], "place-vectors").write("rotated_heads(x, c, s) -> y0")
    for name in "cs":
        assert text.index(f"{name}_at_here = ") < text.index("for (int k = 0; k < TURNS")
    assert "TURNS" not in structure(BY_NAME["rotated"], "place-vectors").write("rotated(x, c, s) -> y0")  # too few
