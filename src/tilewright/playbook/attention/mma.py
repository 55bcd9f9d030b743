"""Attention by mma.sync: online softmax with tiles of keys, and split-KV for few rows."""

from __future__ import annotations

from tilewright.playbook.attention.program import Attention
from tilewright.playbook.attention.text import (
    EACH_SCORE,
    LOG2_E,
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
from tilewright.playbook.file_text import Fragment
from tilewright.playbook.gemms.hopper_form import BARRIERS
from tilewright.playbook.places.indices import Variable
from tilewright.playbook.places.text import product_text
from tilewright.playbook.templates import sections
from tilewright.records import DType

_CUDA = sections("attention/mma")

_HEADER = """
{name} with tensor cores. A block has the rows of a tile of queries, 16 or 32 for every warp, and walks the keys in
tiles that asynchronous copies bring to shared memory, the next while this one is worked on.

Scores, weights and sums stay in registers: what comes out of the first product is what the second takes in.
"""


def can_flash(made: Attention) -> bool:
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


# -- attention of f32 elements at f32's accuracy, on the TF32 tensor cores of any GPU from sm_80 on --


_F32_HEADER = """
{name} in f32, as exact as f32 arithmetic, on tensor cores. Every number is two TF32 numbers, a big and a small part,
and three products of parts give what one of f32 would. Tensor cores cut off bits where they add: they sum 32 products
at a time, and f32 registers add those sums up.

A block has the rows of a tile of queries, 16 for every warp, and walks the keys in tiles that asynchronous copies bring
to shared memory, the next while this one is worked on. Scores, weights and sums stay in registers.
"""


def can_flash_f32(made: Attention) -> bool:
    """Whether rows are whole numbers of 16 bytes at the task's own sizes."""
    return made.element is DType.F32 and is_whole(made, 4)


def flash_f32(made: Attention, op_line: str) -> str:
    return flash_fragment(made, op_line).file()


def flash_fragment(made: Attention, op_line: str, flagged: bool = False) -> Fragment:
    """`flagged`: it makes only heads for which there is a flag in `wide`, and has no constants to tune."""
    plan = AttentionPlan(made, op_line)
    kernel = AttentionKernel(plan, _CUDA["f32_device"], _CUDA["f32_body"], POWER, "wide")
    _f32_plan(plan, flagged)
    text = _f32_kernel(kernel, flagged)
    return plan.fragment(_F32_HEADER, (POWER, _CUDA["f32_device"], *kernel.forms.helpers()), text)


def _f32_plan(plan: AttentionPlan, flagged: bool) -> None:
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


def _f32_kernel(kernel: AttentionKernel, flagged: bool) -> list[str]:
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
    body += worded(_CUDA["f32_body"], parts).splitlines()
    more = [("const int* __restrict__ wide", "wide")] if flagged else []
    more += [*plan.numbers("rows", "keys", "tiles"), scale_argument(made)]
    grid = "@tiles * @heads"
    return kernel.launched("flash", grid, "WARPS * 32, @smem", "WARPS * 32", body, more)


# Attention of few rows of queries over many keys: the keys of a head are shared out among blocks (split-KV).


_MOST_ROWS = 64


def can_decode(made: Attention) -> bool:
    rows = made.row.size.own
    for one in made.sharing:
        rows *= one.size.own
    fits = made.element in (DType.F16, DType.BF16) and is_whole(made, 8)
    return fits and rows <= _MOST_ROWS and max(made.depth.size.own, made.column.size.own) <= 256


def decode(made: Attention, op_line: str) -> str:
    plan = AttentionPlan(made, op_line)
    _decode_plan(plan)
    texts = (
        PITCHES,
        BARRIERS,
        MATRICES,
        _CUDA["decode_device"],
        _CUDA["decode_body"],
        _CUDA["together"],
        PAIR,
        POWER,
    )
    first, second = AttentionKernel(plan, *texts), AttentionKernel(plan, *texts)
    kernels = [_pieces_kernel(first), _together_kernel(second)]
    words = {"type": made.element.cpp, "kind": made.element.value}
    device = [
        POWER,
        pair_text(made.element),
        *(worded(one, words) for one in (PITCHES, BARRIERS, MATRICES, _CUDA["decode_device"])),
    ]
    helpers = dict.fromkeys([*first.forms.helpers(), *second.forms.helpers()])
    return plan.fragment(_CUDA["header"], (*device, *helpers), *kernels).file()


def _decode_plan(plan: AttentionPlan) -> None:
    made, columns, keys = plan.made, plan.name("columns"), plan.name("keys")
    plan.add("need", f"device.cc >= 80 and @depth <= 256 and {columns} <= 256")
    plan.whole_rows(8)
    plan.add("tune", "STEP = 16 | 32", "keys of a warp at a time")
    plan.add("tune", "STAGES = 3 | 4 | 2 | 6")
    plan.add("tune", "BLOCKS = 2 | 4 | 1", "for every multiprocessor")
    plan.add("tune", "BULK = true | false", "whether rows come by bulk copies")
    plan.add("need", "not BULK or device.cc >= 90")
    plan.add("const", "WARPS = 4")
    units, shared = plan.name("units"), plan.name("shared_rows")
    plan.add("let", f"{units} = {product_text(made.units)}, {shared} = {product_text((*made.sharing, made.row))}")
    plan.add("let", f"@tiles = ceil_div({shared}, 16)")
    jobs = f"({units} * @tiles)"
    plan.add("let", f"@most = max(1, min(device.sms * BLOCKS / {jobs}, ceil_div({keys}, 256)))")
    plan.add("let", f"@piece = round_up(ceil_div({keys}, @most), WARPS * STEP)")
    plan.add("let", f"@pieces = ceil_div({keys}, @piece)")
    plan.add("need", f"{jobs} * @pieces <= 2000000000 and {units} * {shared} <= 2000000000")
    ring = "STAGES * WARPS * STEP * (round_up(D, 16) + round_up(E, 16) + 16) * 2"
    plan.add("let", f"@ring = {ring}")
    plan.shared_memory("max(@ring, WARPS * 16 * (round_up(E, 16) + 4) * 4)")
    plan.add("scratch", f"@part: f32[{units} * {shared}, @pieces, {columns}]", "sums")
    plan.add("scratch", f"@stat: f32[{units} * {shared}, @pieces, 2]", "greatest score, weights")


def _pieces_kernel(kernel: AttentionKernel) -> list[str]:
    made, plan = kernel.made, kernel.plan
    query = kernel.at(made.query.tensor, made.query.place, {})
    depth = f" + {kernel.variable(made.depth)}"
    split = _rows_of(kernel, (), "shared_row")
    parts = {
        "type": [made.element.cpp],
        "units": kernel.split(made.units, "unit"),
        **{f"{name}_{what}": [text] for name, what, text in kernel.places() if name != "q"},
        "scored": kernel.scored(split),
        "split": split,
        "q_row": [f"{query[0]} + {_without(query[1], depth, kernel.variable(made.depth))}"],
        "masked": _masked(kernel, split),
    }
    body = worded(_CUDA["decode_body"], parts).splitlines()
    more = [(f"float* __restrict__ {name}", plan.name(name)) for name in ("part", "stat")]
    more += [*plan.numbers("keys", "shared_rows", "tiles", "piece", "pieces"), scale_argument(made)]
    grid = "@units * @tiles * @pieces"
    return kernel.launched("pieces", grid, "WARPS * 32, @smem", "WARPS * 32", body, more, ())


def _rows_of(kernel: AttentionKernel, units: tuple[Variable, ...], number: str) -> list[str]:
    """The row and the head that has it, and the unit's variables too where they are asked for, from a number."""
    made = kernel.made
    if not made.row.size.is_always(1):
        return kernel.split((*units, *made.sharing, made.row), number)
    only = [f"const int {kernel.variable(made.row)} = 0;"] if made.scores.causal is not None else []
    return [*only, *kernel.split((*units, *made.sharing), number)]


def _without(place: str, more: str, alone: str) -> str:
    """A place without the element of a row in it."""
    return place.replace(more, "", 1) if more in place else place.replace(f"{alone} + ", "", 1)


def _masked(kernel: AttentionKernel, split: list[str]) -> list[str]:
    made = kernel.made
    row = kernel.variable(made.row)
    found = "const int shared_row = first_row + g + e / 2 * 8;"
    if made.scores.value is not None:
        scored = f"{LOG2_E}f * scored(score[n][e] * scale, shared_row, key)"
        return [found, f"score[n][e] = shared_row < shared_rows && key < end ? {scored} : -INFINITY;"]
    causal = kernel.outside(row, "key").partition(" || ")[2]
    lines = [found, *split] if causal else []
    test = f"key < end && !({causal})" if causal else "key < end"
    return [*lines, f"score[n][e] = {test} ? score[n][e] * scale : -INFINITY;"]


def _together_kernel(kernel: AttentionKernel) -> list[str]:
    made, plan = kernel.made, kernel.plan
    parts = {
        "split": _rows_of(kernel, made.units, "blockIdx.x"),
        "column": [kernel.variable(made.column)],
        "inverse": [inverse_line(made, "total")],
        "store": kernel.stored_lines("sum * inverse"),
    }
    body = worded(_CUDA["together"], parts).splitlines()
    more = [(f"const float* __restrict__ {name}", plan.name(name)) for name in ("part", "stat")]
    more += plan.numbers("pieces")
    grid = "@units * @shared_rows"
    return kernel.launched("together", grid, "128", "128", body, more, rest=" pdl")
