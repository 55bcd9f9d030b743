"""Attention of 16-bit elements on any GPU with `mma.sync` and asynchronous copies (sm_80 and later)."""

from __future__ import annotations

from tilewright.playbook.attention.program import Attention
from tilewright.playbook.attention.text import (
    EACH_SCORE,
    PAIR,
    POWER,
    AttentionKernel,
    AttentionPlan,
    inverse_line,
    is_whole,
    pair_text,
    scale_argument,
)
from tilewright.playbook.cpp_text import indented, worded
from tilewright.playbook.templates import sections
from tilewright.records import DType

_CUDA = sections("attention/flash")

_HEADER = """
{name} with tensor cores. A block has the rows of a tile of queries, 16 or 32 for every warp, and walks the keys in
tiles that asynchronous copies bring to shared memory, the next while this one is worked on.

Scores, weights and sums stay in registers: what comes out of the first product is what the second takes in.
"""


def can_write(made: Attention) -> bool:
    """Whether rows are whole numbers of 16 bytes at the task's own sizes."""
    return made.element in (DType.F16, DType.BF16) and is_whole(made, 8)


def flash(made: Attention, op_line: str) -> str:
    plan = AttentionPlan(made, op_line)
    kernel = AttentionKernel(plan, PITCHES, _CUDA["device"], MATRICES, _CUDA["body"], PAIR, POWER)
    _plan(plan)
    text = _kernel(kernel)
    words = {"type": made.element.cpp, "kind": made.element.value}
    device = [POWER, pair_text(made.element), *(worded(one, words) for one in (PITCHES, _CUDA["device"], MATRICES))]
    return plan.fragment(_HEADER, (*device, *kernel.forms.helpers()), text).file()


def _plan(plan: AttentionPlan) -> None:
    plan.add("need", "device.cc >= 80 and @depth <= 256 and @columns <= 256")
    plan.whole_rows(8)
    plan.add("tune", "WARPS = 4 | 8")
    plan.add("tune", "HALVES = 2 | 1", "16 rows each, of a warp")
    plan.add("tune", "KEYS = 64 | 32 | 128", "of a tile")
    plan.add("need", "HALVES * (round_up(E, 16) + KEYS) <= 384", "registers of a thread")
    rows = "WARPS * HALVES * 16 * (round_up(D, 16) + 8)"
    tiles = "2 * KEYS * (round_up(D, 16) + round_up(E, 16) + 16)"
    plan.add("let", f"@slots = {tiles}")
    plan.shared_memory(f"({rows} + @slots) * 2")
    plan.tiles("WARPS * HALVES * 16")


PITCHES = _CUDA["pitches"]
MATRICES = _CUDA["matrices"]


def _kernel(kernel: AttentionKernel) -> list[str]:
    made, plan = kernel.made, kernel.plan
    general = made.scores.value is not None
    needs_row = general or made.scores.causal is not None
    row = ["const int row = row0 + warp_row + h * 16 + lane / 4;"] if needs_row else []
    parts = {
        "type": [made.element.cpp],
        "heads": kernel.split(made.heads, "head"),
        "scored": kernel.scored(),
        "ends": [kernel.ends("row0 + ROWS")],
        **{f"{name}_{what}": [text] for name, what, text in kernel.places()},
        "masked": kernel.masked([*row, *EACH_SCORE], "score[h][j][e]", "row + e / 2 * 8", "row0 + warp_row + h * 16"),
        "scale": ["" if general else " * scale"],
        "power": ["score[h][j][e] - base" if general else "fmaf(score[h][j][e], scale, -base)"],
        "inverse": [inverse_line(made, "total[h][r]")],
        "row": [kernel.variable(made.row)],
        "store": _store(kernel),
    }
    body = worded(_CUDA["body"], parts).splitlines()
    more = [*plan.numbers("rows", "keys", "tiles"), scale_argument(made)]
    grid = "@tiles * @heads"
    return kernel.launched("flash", grid, "WARPS * 32, @smem", "WARPS * 32", body, more)


def _store(kernel: AttentionKernel) -> list[str]:
    column = kernel.variable(kernel.made.column)
    loop = ["#pragma unroll", "for (int j = 0; j < E_VECTORS; ++j) {"]
    pair = kernel.stored_pair("sum[h][j][2 * r] * inverse", "sum[h][j][2 * r + 1] * inverse")
    if pair:
        first = [f"const int {column} = j * 8 + lane % 4 * 2;", f"if ({column} >= E) break;"]
        return [*loop, *indented([*first, *pair]), "}"]
    inner = [f"const int {column} = j * 8 + lane % 4 * 2 + e;", f"if ({column} >= E) break;"]
    inner += kernel.stored_lines("sum[h][j][2 * r + e] * inverse")
    return [*loop, "#pragma unroll", "  for (int e = 0; e < 2; ++e) {", *indented(inner, 2), "  }", "}"]
