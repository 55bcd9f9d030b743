"""Scans: every structure on the emulator against PyTorch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.playbook.placed import ARCHITECTURES, Placed, check_structure, structure

from tilewright.playbook.understanding import answer
from tilewright.tasks import task_op_line

_AT = ({"rows": 3, "cols": 260}, {"rows": 5, "cols": 13}, {"rows": 2, "cols": 4100}, {"rows": 1, "cols": 1})
_DOWN = ({"rows": 150, "cols": 12}, {"rows": 3, "cols": 13}, {"rows": 1, "cols": 4})
_X, _Y = "x: f32[rows, cols]", "f32[rows, cols]"
_EXCLUSIVE = """
c = torch.cumsum(x.narrow(1, 0, x.size(1) - 1), 1)
return torch.cat((torch.zeros_like(x.select(1, 0).unsqueeze(1)), c), 1)
"""
_MASKED = "x: f32[rows, cols]; mask: bool[rows, cols]"

CASES = (
    Placed("sums", "return torch.cumsum(x, 1)", _X, _Y, _AT),
    Placed("halves", "return torch.cumsum(F.relu(x), -1)", "x: bf16[rows, cols]", "bf16[rows, cols]", _AT),
    Placed("products", "return torch.cumprod(x * 0.5 + 1, 1)", _X, _Y, _AT[:2]),
    Placed("backwards", "return torch.cumsum(x.flip(1), 1).flip(1)", _X, _Y, _AT),
    Placed("exclusive", _EXCLUSIVE, _X, _Y, _AT),
    Placed("shifted", "return F.pad(torch.cumsum(x, 1)[:, :-1], (1, 0))", _X, _Y, _AT),
    Placed("before_and_after", "return torch.cumsum(x, 1) - x, torch.cumsum(x, 1)", _X, f"{_Y}; {_Y}", _AT[:2]),
    Placed("exclusive_back", "return (torch.cumsum(x.flip(1), 1) - x.flip(1)).flip(1)", _X, _Y, _AT[:2]),
    Placed("masked", "return torch.cumsum(x * mask, 1)", _MASKED, _Y, _AT),
    Placed("counted", "return torch.cumsum(mask, 1)", "mask: bool[rows, cols]", "i64[rows, cols]", _AT[:2]),
    Placed(
        "running_mean",
        "return torch.cumsum(x * mask, 1) / torch.cumsum(mask.float(), 1).clamp_min(1)",
        _MASKED,
        _Y,
        _AT,
    ),
    Placed("vector", "return torch.cumsum(x, 0)", "x: f32[cols]", "f32[cols]", ({"cols": 5000}, {"cols": 7})),
    Placed("down", "return torch.cumsum(x, 0)", _X, _Y, _DOWN),
    Placed("down_backwards", "return torch.cumsum(x.flip(0), 0).flip(0)", _X, _Y, _DOWN),
    Placed(
        "middle",
        "return torch.cumsum(x, 1) * s",
        "x: f32[batch, rows, cols]; s: f32[cols]",
        "f32[batch, rows, cols]",
        _DOWN,
    ),
    Placed("turned", "return torch.cumsum(x, 1).t()", _X, "f32[cols, rows]", _DOWN),
)
BY_NAME = {one.name: one for one in CASES}


@pytest.mark.parametrize(
    ("name", "id"),
    [
        ("sums", "loops"),
        ("backwards", "scan-rows"),
        ("exclusive", "scan-rows"),
        ("exclusive", "scan-warps"),
        ("backwards", "scan-warps"),
        ("running_mean", "scan-warps"),
        ("running_mean", "scan-pieces"),
        ("middle", "scan-columns"),
    ],
)
def test_scans_are_right(name: str, id: str, tmp_path: Path) -> None:
    check_structure(BY_NAME[name], structure(BY_NAME[name], id), tmp_path, 2)


@pytest.mark.parametrize(("name", "vectors"), [("sums", 4), ("backwards", 4), ("exclusive", 2), ("products", 4)])
def test_lanes_that_have_several_totals_of_warps_are_right(name: str, vectors: int, tmp_path: Path) -> None:
    """Long rows are gone along in tiles of which a warp has more totals than lanes."""
    case = replace(BY_NAME[name], at=({"rows": 2, "cols": 33000}, {"rows": 1, "cols": 4099}))
    step = structure(case, "scan-rows")
    text = step.write(task_op_line(case.task))
    for was, wanted in (("THREADS = 1024 | 512 | 256", "THREADS = 1024"), ("VECTORS <= 32", "VECTORS <= 128")):
        assert was in text
        text = text.replace(was, wanted)
    text = text.replace("VECTORS = 1 | 2 | 4", f"VECTORS = {vectors}")
    check_structure(case, replace(step, write=lambda _: text), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sums", "backwards", "exclusive", "counted"])
def test_many_pieces_of_a_row_are_right(name: str, tmp_path: Path) -> None:
    """More pieces than the warp that scans their sums has lanes."""
    case = replace(BY_NAME[name], at=({"rows": 2, "cols": 40 * 1024 + 8}, {"rows": 1, "cols": 9 * 1024 + 5}))
    step = structure(case, "scan-pieces")
    text = step.write(task_op_line(case.task))
    for tune in ("THREADS = 512 | 256 | 1024", "VECTORS = 2 | 1", "TILES = 4 | 2 | 8"):
        assert tune in text
        name = tune.partition(" = ")[0]
        text = text.replace(tune, f"{name} = {256 if name == 'THREADS' else 1}")
    check_structure(case, replace(step, write=lambda _: text), tmp_path)


@pytest.mark.slow
def test_teams_of_several_warps_share_columns(tmp_path: Path) -> None:
    """With one set of totals in place of two, the next tile's would be written while this one's are read."""
    case = replace(BY_NAME["down"], at=({"rows": 300, "cols": 40},))
    step = structure(case, "scan-columns")
    text = step.write(task_op_line(case.task))
    for name, choice in (("LANES", 8), ("TEAMS", 16), ("AHEAD", 4)):
        line = next(one for one in text.splitlines() if one.startswith(f"//! tune    {name} = "))
        text = text.replace(line, f"//! tune    {name} = {choice}")
    check_structure(case, replace(step, write=lambda _: text), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("gpu", ARCHITECTURES.values(), ids=ARCHITECTURES)
@pytest.mark.parametrize("case", CASES, ids=lambda one: one.name)
def test_every_structure_of_every_scan_is_right(
    case: Placed, gpu: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_EMULATE", gpu)
    for step in case.answer.every:
        check_structure(case, step, tmp_path)


@pytest.mark.parametrize(
    ("rows", "cols", "first"), [(4096, 1024, "scan-warps"), (4096, 1025, "scan-rows"), (99, 9, "scan-rows")]
)
def test_many_short_rows_have_a_warp_each(rows: int, cols: int, first: str) -> None:
    case = BY_NAME["sums"]
    sizes = {"rows": rows, "cols": cols}
    dimensions = tuple(replace(one, size=sizes[one.name]) for one in case.task.dimensions)
    assert answer(replace(case.task, dimensions=dimensions), case.ask).structures[0].id == first


def test_a_scan_reads_and_writes_whole_vectors_in_either_direction() -> None:
    text = structure(BY_NAME["backwards"], "scan-rows").write("backwards(x) -> y0")
    assert ".at[WIDTH - 1 - i]" in text
    assert "x_at_next[k] = *reinterpret_cast<const Vector<float>*>" in text
