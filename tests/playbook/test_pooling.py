"""Pooling: every structure on the emulator against PyTorch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.playbook.placed import ARCHITECTURES, Placed, check_structure, structure

import tilewright
from tilewright.playbook.understanding import answer
from tilewright.runtime.errors import NoKernelApplies
from tilewright.tasks import task_op_line

_LINE, _PLANE, _VOLUME = (f"x: f32[batch, heads, {rest}]" for rest in ("cols", "height, width", "depth, height, width"))
_ODD = ({"height": 20, "width": 24}, {"height": 9, "width": 13}, {"height": 17, "width": 140})
_DEEP = ({"depth": 9, "height": 12, "width": 16}, {"depth": 13, "height": 11, "width": 17})


def _plane(name: str, call: str, height: str, width: str, kind: str = "f32") -> Placed:
    results = f"{kind}[batch, heads, h = {height}, w = {width}]"
    return Placed(name, f"return {call}", _PLANE.replace("f32", kind), results, _ODD)


CASES = (
    Placed(
        "line_max",
        "return F.max_pool1d(x, 8, 1, 4, 3)",
        _LINE,
        "f32[batch, heads, w = cols - 13]",
        ({"cols": 40}, {"cols": 37}, {"cols": 1500}),
    ),
    Placed(
        "line_mean",
        "return F.avg_pool1d(x, 8, 1, 4)",
        _LINE,
        "f32[batch, heads, w = cols + 1]",
        ({"cols": 40}, {"cols": 37}, {"cols": 1500}),
    ),
    Placed(
        "long_line_max",
        "return torch.tanh(F.max_pool1d(x, 8, 1, 4, 3))",
        "x: f32[batch, heads, long]",
        "f32[batch, heads, w = long - 13]",
        ({"long": 1500}, {"long": 1501}, {"long": 2048}, {"long": 20}),
    ),
    Placed(
        "long_line_mean",
        "return F.avg_pool1d(x, 7, 1, 3)",
        "x: f32[batch, heads, long]",
        "f32[batch, heads, w = long]",
        ({"long": 1500}, {"long": 1501}, {"long": 2048}, {"long": 1}),
    ),
    Placed(
        "line_pairs",
        "return F.max_pool1d(x, 2)",
        _LINE,
        "f32[batch, heads, w = cols / 2]",
        ({"cols": 40}, {"cols": 37}),
    ),
    _plane("overlapping", "F.max_pool2d(x, 4, 1, 1)", "height - 1", "width - 1"),
    _plane("apart", "F.avg_pool2d(x, 5)", "height / 5", "width / 5"),
    _plane("halves", "F.max_pool2d(x, 2)", "height / 2", "width / 2", "bf16"),
    _plane("quarters", "torch.tanh(F.max_pool2d(x * 2, 4))", "height / 4", "width / 4"),
    _plane("uneven", "F.max_pool2d(x, (3, 2), (1, 2), (1, 0), (2, 3))", "height - 2", "(width - 2) / 2"),
    _plane(
        "without_padding",
        "F.avg_pool2d(F.relu(x), 3, 2, 1, ceil_mode=True, count_include_pad=False) * 2",
        "(height + 2) / 2",
        "(width + 2) / 2",
    ),
    _plane("ceiling", "F.avg_pool2d(x, 3, 2, 1, ceil_mode=True)", "(height + 2) / 2", "(width + 2) / 2"),
    _plane("padded", "F.max_pool2d(-F.pad(x, (1, 2, 1, 0)), 2)", "(height + 1) / 2", "(width + 3) / 2"),
    _plane("overridden", "F.avg_pool2d(x, 3, divisor_override=5)", "height / 3", "width / 3"),
    Placed(
        "volume_max",
        "return F.max_pool3d(x, 3, 2, 1, 3)",
        _VOLUME,
        "f32[batch, heads, d = (depth - 3) / 2, h = (height - 3) / 2, w = (width - 3) / 2]",
        _DEEP,
    ),
    Placed(
        "volume_halves",
        "return F.avg_pool3d(F.relu(x), 2) + bias[:, None, None, None]",
        f"{_VOLUME}; bias: f32[heads]",
        "f32[batch, heads, d = depth / 2, h = height / 2, w = width / 2]",
        _DEEP,
    ),
    Placed(
        "volume_mean",
        "return torch.sigmoid(F.avg_pool3d(x, 3, 2, 1))",
        _VOLUME,
        "f32[batch, heads, d = (depth + 1) / 2, h = (height + 1) / 2, w = (width + 1) / 2]",
        _DEEP,
    ),
)
BY_NAME = {one.name: one for one in CASES}
_COPIED = ({"height": 20, "width": 24}, {"height": 9, "width": 140}, {"height": 4, "width": 4})
COPIED = tuple(
    replace(one, at=_COPIED)
    for one in (
        BY_NAME["overlapping"],
        _plane("tall", "torch.tanh(F.max_pool2d(x, (5, 3), (2, 1), (2, 1), (1, 2)))", "(height + 1) / 2", "width - 2"),
        _plane("gaps", "F.max_pool2d(x, (2, 3), (3, 1), (1, 1), (5, 1))", "(height - 1) / 3", "width"),
        _plane("means", "F.avg_pool2d(x, 3, 1, 1) * 2", "height", "width"),
        replace(
            _plane("named", "F.max_pool2d(target, 3, 1, 1)", "height", "width"), inputs=_PLANE.replace("x:", "target:")
        ),
    )
)


@pytest.mark.parametrize(
    ("name", "id"),
    [
        ("overlapping", "loops"),
        ("line_max", "pool-strips"),
        ("long_line_max", "pool-strips"),
        ("without_padding", "pool-strips"),
        ("volume_halves", "pool-apart"),
        ("halves", "pool-apart"),
    ],
)
def test_pooling_is_right(name: str, id: str, tmp_path: Path) -> None:
    check_structure(BY_NAME[name], structure(BY_NAME[name], id), tmp_path, 1)


@pytest.mark.slow
@pytest.mark.parametrize("gpu", ARCHITECTURES.values(), ids=ARCHITECTURES)
@pytest.mark.parametrize("case", CASES, ids=lambda one: one.name)
def test_every_structure_of_every_pooling_is_right(
    case: Placed, gpu: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_EMULATE", gpu)
    for step in case.answer.every:
        if step.id != "pool-bulk":  # it has needs of its own, and tests
            check_structure(case, step, tmp_path)


@pytest.mark.parametrize("case", COPIED, ids=lambda one: one.name)
def test_strips_that_are_copied_are_right_at_rows_that_begin_anywhere(
    case: Placed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_EMULATE", "H200")
    check_structure(case, structure(case, "pool-bulk"), tmp_path)


@pytest.mark.parametrize("name", ["from_y", "copy_rows", "barrier_wait"])
def test_a_plane_may_have_the_name_of_what_the_kernel_uses(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_EMULATE", "H200")
    plane = _plane("named", f"F.max_pool2d({name}, 3, 1, 1)", "height", "width")
    case = replace(plane, inputs=_PLANE.replace("x:", f"{name}:"), at=_COPIED)
    check_structure(case, structure(case, "pool-bulk"), tmp_path, 1)


def test_bulk_copies_are_for_planes_of_f32_whose_windows_overlap() -> None:
    for name in ("halves", "apart", "without_padding", "padded", "volume_max", "line_max"):
        assert "pool-bulk" not in {one.id for one in BY_NAME[name].answer.every}
    apart = Placed(
        "apart",
        "return F.max_pool2d(x[:, :512].view(-1, 1, 8, 64), 3, 1, 1)",
        "x: f32[cols, odd = cols * 2 + 3]",
        "f32[cols, 1, 8, 64]",
        (),
    )
    assert {"pool-strips"} <= {one.id for one in apart.answer.every} <= {"loops", "pool-strips"}
    task = BY_NAME["overlapping"].task
    assert "pool-bulk" not in {one.id for one in answer(replace(task, gpu="A100"), BY_NAME["overlapping"].ask).every}


@pytest.mark.parametrize("cols", [61, 127, 332, 333])
def test_a_window_that_is_longer_than_a_team_loads_is_declined(cols: int, tmp_path: Path) -> None:
    """With single elements in place of vectors a team has a quarter of the columns."""
    case = Placed(
        "long_window", "return F.max_pool1d(x, 101, 3, 20)", _LINE, "f32[batch, heads, w = (cols - 61) / 3 + 1]", ()
    )
    path = tmp_path / "pool.cu"
    path.write_text(structure(case, "pool-strips").write(task_op_line(case.task)))
    x = torch.randn(2, 3, cols)
    try:
        found = tilewright.load(str(path))(x)
    except NoKernelApplies:
        assert cols % 4 != 0
        return
    assert torch.equal(found, torch.nn.functional.max_pool1d(x, 101, 3, 20))


@pytest.mark.slow
def test_teams_wider_than_a_warp_wait_for_themselves(tmp_path: Path) -> None:
    """Two warps a team, teams that walk chunks of different lengths: a barrier of the whole block would be wrong."""
    case = BY_NAME["volume_max"]
    text = structure(case, "pool-strips").write("volume_max(x) -> y0")
    for name, choice in (("LANES", 64), ("TEAMS", 3), ("DEPTH", 2)):
        line = next(one for one in text.splitlines() if one.startswith(f"//! tune    {name} = "))
        text = text.replace(line, f"//! tune    {name} = {choice}")
    step = structure(case, "pool-strips")
    check_structure(case, type(step)(step.id, step.summary, lambda _: text), tmp_path)
