"""What loops are written as: vectors, held rows, squares, tensor cores; right at whole vectors and at odd sizes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.playbook.agreement import check, load_structure
from tests.playbook.placed import ARCHITECTURES, Placed

from tilewright.playbook.families import Structure
from tilewright.playbook.understanding import any_graph
from tilewright.tasks import task_op_line

_ROWS, _IMAGE = "bf16[rows, cols]", "bf16[batch, rows, cols]"
_ODD = ({}, {"rows": 5, "cols": 37}, {"rows": 3, "cols": 72})
_PRODUCT = ({}, {"rows": 5, "cols": 37, "keys": 9}, {"rows": 136, "cols": 72, "keys": 72})
_GATED = "a, b = x.chunk(2, -1)\nreturn F.silu(a) * b"
_NORM = "h = x + r\nf = h.float()\nreturn (f * torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w, h"
_INT8 = "return (x.float() @ w.float().t() * s).to(torch.bfloat16)"
_GROUPS = """
g = x.float().view(x.shape[0], -1, 8)
s = g.abs().amax(-1, keepdim=True) / 127.0
return torch.round(g / s.clamp(min=1e-8)).clamp(-127, 127).to(torch.int8).view(x.shape), s[..., 0]
"""


@dataclass(frozen=True)
class Written:
    """A function, and words that its kernel has where it is written as it should be."""

    placed: Placed
    words: tuple[str, ...] = ("load_packed", "store_packed")

    @property
    def step(self) -> Structure:
        return any_graph(self.placed.task, self.placed.ask).draft


CASES = (
    Written(Placed("gated", _GATED, "x: bf16[rows, wide]", "bf16[rows, half = wide / 2]",
                   ({}, {"rows": 5, "wide": 74}), (("wide", 2),))),
    Written(Placed("mixed", "return x.float() * s + w", "x: u8[rows, cols]; s: f32[cols]; w: bf16[rows, one]",
                   "f32[rows, cols]", _ODD)),
    Written(Placed("flat", "return x * 2 + y", "x: f32[rows, cols]; y: f16[rows, cols]", "f32[rows, cols]", _ODD),
            ("left",)),
    Written(Placed("flipped", "return torch.cat([x.flip(-1), x * 2], -1)", f"x: {_ROWS}", "bf16[rows, wide = cols * 2]",
                   _ODD)),
    Written(Placed("looked_up", "return x[i] * 2", f"x: {_ROWS}; i: i64[keys]", "bf16[keys, cols]",
                   ({}, {"rows": 11, "cols": 37}))),
    Written(Placed("padded", "return F.pad(x, (8, 3), value=1.5)", f"x: {_ROWS}",
                   "bf16[rows, m = cols + 11]", _ODD), ()),
    Written(Placed("normed", _NORM, f"x: {_ROWS}; r: {_ROWS}; w: bf16[cols]", f"{_ROWS}; {_ROWS}", _ODD), ("KEEP_K0",)),
    Written(Placed("capped", "return torch.softmax(30.0 * torch.tanh(x / 30.0), -1)", f"x: {_ROWS}", _ROWS, _ODD),
            ("HELD_K0", "quick_exp")),
    Written(Placed("long_rows", "return torch.softmax(x.float(), -1)", "x: f32[few, large]", "f32[few, large]",
                   ({"few": 2, "large": 70000}, {"few": 1, "large": 40001}))),
    Written(Placed("grouped", _GROUPS, f"x: {_ROWS}", "i8[rows, cols]; f32[rows, m = cols / 8]",
                   ({}, {"rows": 5, "cols": 40}), (("cols", 8),)), ()),
    Written(Placed("float8", "s = x.float().abs().amax(-1, keepdim=True) / 448.0\n"
                   "return (x.float() / s.clamp(min=1e-12)).to(torch.float8_e4m3fn).float(), s",
                   f"x: {_ROWS}", "f32[rows, cols]; f32[rows, 1]", _ODD)),
    Written(Placed("columns", "return (x * 2).sum(0), x.amax(0), x.argmax(0)", "x: f32[rows, cols]",
                   "f32[cols]; f32[cols]; i64[cols]", _ODD), ("column_reduce",)),
    Written(Placed("whole", "return (x * x).sum(), x.amax()", "x: f32[rows, wide]", "f32[]; f32[]",
                   ({}, {"rows": 5, "wide": 37})), ("load_packed",)),
    Written(Placed("turned", "return x.transpose(1, 2) * 2 + y", f"x: {_IMAGE}; y: f32[cols, rows]",
                   "f32[batch, cols, rows]", _ODD), ("square0",)),
    Written(Placed("turned_bytes", "return x.permute(2, 0, 1).contiguous()", "x: u8[batch, rows, cols]",
                   "u8[cols, batch, rows]", _ODD), ("square0",)),
    Written(Placed("linear", "return F.gelu(F.linear(x, w, b))", f"x: {_ROWS}; w: bf16[keys, cols]; b: bf16[keys]",
                   "bf16[rows, keys]", _PRODUCT), ("mma.sync", "cp.async")),
    Written(Placed("halves", "return x.t() @ w", "x: f16[cols, rows]; w: f16[cols, keys]", "f16[rows, keys]", _PRODUCT),
            ("mma.sync", "ldmatrix")),
    Written(Placed("exact", "return torch.relu(x @ w.t()) + 1", "x: f32[rows, cols]; w: f32[keys, cols]",
                   "f32[rows, keys]", _PRODUCT), ("tf32",)),
    Written(Placed("int8", _INT8, f"x: {_ROWS}; w: i8[keys, cols]; s: f32[keys]", "bf16[rows, keys]", _PRODUCT),
            ("mma.sync",)),
    Written(Placed("batched", "return torch.bmm(F.elu(x) + 1, y.mT).mT", f"x: {_IMAGE}; y: bf16[batch, keys, cols]",
                   "bf16[batch, keys, rows]", _PRODUCT), ("mma.sync",)),
    Written(Placed("long_k", "return torch.relu(x @ w) * 2", "x: bf16[rows, long]; w: bf16[long, keys]",
                   "bf16[rows, keys]",
                   ({"rows": 40}, {"rows": 5, "long": 1999, "keys": 9})), ("SPLITS",)),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda one: one.placed.name)
def test_it_is_right_where_vectors_fit_and_where_not(case: Written, tmp_path: Path) -> None:
    text = case.step.write(task_op_line(case.placed.task))
    assert all(word in text for word in case.words)
    _check(case, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("gpu", ARCHITECTURES.values(), ids=ARCHITECTURES)
@pytest.mark.parametrize("case", CASES, ids=lambda one: one.placed.name)
def test_it_is_right_for_every_architecture(
    case: Written, gpu: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_EMULATE", gpu)
    _check(case, tmp_path)


def _check(case: Written, folder: Path) -> None:
    task = case.placed.task
    op = load_structure(case.step, task, folder)
    for sizes in case.placed.at:
        check(op, case.placed.function, task, task.complete({**task.sizes, **sizes}), slack=2.0)
