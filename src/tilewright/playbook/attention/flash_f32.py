"""Attention of f32 elements at f32's accuracy, on the TF32 tensor cores of any GPU from sm_80 on."""

from __future__ import annotations

from tilewright.playbook.attention.program import Attention
from tilewright.playbook.attention.text import (
    EACH_SCORE,
    POWER,
    AttentionKernel,
    AttentionPlan,
    inverse_line,
    is_whole,
    scale_argument,
)
from tilewright.playbook.cpp_text import worded
from tilewright.playbook.file_text import Fragment
from tilewright.playbook.templates import sections
from tilewright.records import DType

_CUDA = sections("attention/flash_f32")

_HEADER = """
{name} in f32, as exact as f32 arithmetic, on tensor cores. Every number is two TF32 numbers, a big and a small part,
and three products of parts give what one of f32 would. Tensor cores cut off bits where they add: they sum 32 products
at a time, and f32 registers add those sums up.

A block has the rows of a tile of queries, 16 for every warp, and walks the keys in tiles that asynchronous copies bring
to shared memory, the next while this one is worked on. Scores, weights and sums stay in registers.
"""


def can_write(made: Attention) -> bool:
    """Whether rows are whole numbers of 16 bytes at the task's own sizes."""
    return made.element is DType.F32 and is_whole(made, 4)


def flash_f32(made: Attention, op_line: str) -> str:
    return flash_fragment(made, op_line).file()


def flash_fragment(made: Attention, op_line: str, flagged: bool = False) -> Fragment:
    """`flagged`: it makes only heads for which there is a flag in `wide`, and has no constants to tune."""
    plan = AttentionPlan(made, op_line)
    kernel = AttentionKernel(plan, _CUDA["device"], _CUDA["body"], POWER, "wide")
    _plan(plan, flagged)
    text = _kernel(kernel, flagged)
    return plan.fragment(_HEADER, (POWER, _CUDA["device"], *kernel.forms.helpers()), text)


def _plan(plan: AttentionPlan, flagged: bool) -> None:
    plan.add("need", "device.cc >= 80 and @depth <= 256 and @columns <= 256")
    plan.whole_rows(4)
    if flagged:
        plan.add("const", "WARPS = 4, KEYS = 32, SLOTS = 1")
    else:
        plan.add("tune", "WARPS = 8 | 4")
        plan.add("tune", "KEYS = 64 | 32", "of a tile")
        plan.add("tune", "SLOTS = 2 | 1", "tiles in shared memory: the one that is worked on, and the next")
    rows = "WARPS * 16 * (round_up(D, 32) + 4)"
    tiles = "SLOTS * KEYS * (round_up(D, 32) + round_up(E, 8) + 8)"
    plan.shared_memory(f"({rows} + {tiles}) * 4")
    plan.tiles("WARPS * 16")


def _kernel(kernel: AttentionKernel, flagged: bool) -> list[str]:
    made, plan = kernel.made, kernel.plan
    parts = {
        "heads": kernel.split(made.heads, "head"),
        "scored": kernel.scored(),
        "ends": [kernel.ends("row0 + ROWS")],
        **{f"{name}_{what}": [text] for name, what, text in kernel.places()},
        "masked": kernel.masked(EACH_SCORE, "score[j][e]", "row + e / 2 * 8", "row0 + warp_row"),
        "scale": ["" if made.scores.value is not None else " * scale"],
        "inverse": [inverse_line(made, "total[r]")],
        "row": [kernel.variable(made.row)],
        "column": [kernel.variable(made.column)],
        "store": kernel.stored_lines("sum[j][2 * r + e] * inverse"),
    }
    body = ["if (!wide[blockIdx.x / tiles]) return;"] if flagged else []
    body += worded(_CUDA["body"], parts).splitlines()
    more = [("const int* __restrict__ wide", "wide")] if flagged else []
    more += [*plan.numbers("rows", "keys", "tiles"), scale_argument(made)]
    grid = "@tiles * @heads"
    return kernel.launched("flash", grid, "WARPS * 32, @smem", "WARPS * 32", body, more)
