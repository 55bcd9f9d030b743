"""Attention of few rows of queries over many keys: the keys of a head are shared out among blocks (split-KV)."""

from __future__ import annotations

from tilewright.playbook.attention.flash import MATRICES, PITCHES
from tilewright.playbook.attention.program import Attention
from tilewright.playbook.attention.text import (
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
from tilewright.playbook.cpp_text import worded
from tilewright.playbook.gemms.hopper_form import BARRIERS
from tilewright.playbook.places.indices import Variable
from tilewright.playbook.places.text import product_text
from tilewright.playbook.templates import sections
from tilewright.records import DType

_CUDA = sections("attention/decode")

_MOST_ROWS = 64


def can_write(made: Attention) -> bool:
    rows = made.row.size.own
    for one in made.sharing:
        rows *= one.size.own
    fits = made.element in (DType.F16, DType.BF16) and is_whole(made, 8)
    return fits and rows <= _MOST_ROWS and max(made.depth.size.own, made.column.size.own) <= 256


def decode(made: Attention, op_line: str) -> str:
    plan = AttentionPlan(made, op_line)
    _plan(plan)
    texts = (PITCHES, BARRIERS, MATRICES, _CUDA["device"], _CUDA["body"], _CUDA["together"], PAIR, POWER)
    first, second = AttentionKernel(plan, *texts), AttentionKernel(plan, *texts)
    kernels = [_pieces_kernel(first), _together_kernel(second)]
    words = {"type": made.element.cpp, "kind": made.element.value}
    device = [
        POWER,
        pair_text(made.element),
        *(worded(one, words) for one in (PITCHES, BARRIERS, MATRICES, _CUDA["device"])),
    ]
    helpers = dict.fromkeys([*first.forms.helpers(), *second.forms.helpers()])
    return plan.fragment(_CUDA["header"], (*device, *helpers), *kernels).file()


def _plan(plan: AttentionPlan) -> None:
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
    body = worded(_CUDA["body"], parts).splitlines()
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
