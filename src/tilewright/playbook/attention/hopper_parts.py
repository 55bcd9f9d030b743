"""Attention of f32 elements for Hopper (sm_90a) at f32's accuracy: every number is two f16 parts on tensor cores."""

from __future__ import annotations

from tilewright.playbook.attention.flash_f32 import flash_fragment
from tilewright.playbook.attention.hopper_kernel import (
    KERNEL_TEXTS,
    SIZES_OF_PARTS,
    TURNS,
    Parts,
    Places,
    kernel_text,
    own_lengths,
    section_line,
)
from tilewright.playbook.attention.maps import load_box
from tilewright.playbook.attention.program import Attention
from tilewright.playbook.attention.text import PAIR, POWER, AttentionKernel, AttentionPlan, is_whole, pair_text
from tilewright.playbook.cpp_text import worded
from tilewright.playbook.file_text import Entry, Fragment, PlanLines, joined_file, plan_entry
from tilewright.playbook.gemms.hopper_form import BARRIERS, wgmma, wgmma_of
from tilewright.playbook.places.text import product_text
from tilewright.playbook.templates import sections
from tilewright.records import DType

_CUDA = sections("attention/hopper_parts")

_WHOLE = """
{name} in f32, as exact as f32 arithmetic, on Hopper's f16 tensor cores. Queries and keys of a head, and every column of
its values, are scaled by a power of two and split into two f16 parts, which together have 22 bits; the product of two
numbers is then three products of parts.

What parts do not hold is made otherwise: where scores may be large, a number is not finite, or many numbers of a column
lie far below its greatest, a flag is set, and the last kernel makes that head again from f32 itself. On ordinary data
it finds no flag and ends.
"""
_HEADER = """
First the greatest number of each head's queries and keys and of each column of its values is found, then the parts are
made. One thread of a producer warpgroup brings parts into slots of shared memory by TMA. Each consumer warpgroup has 64
rows of queries: it multiplies them with a tile of keys by wgmma, makes weights of the scores in registers, splits those
too, and multiplies them with the tile of values. Tensor cores cut off bits where they add, so f32 registers add up what
each tile comes to.
"""
_WIDTHS = (64, 128)


def can_write(made: Attention) -> bool:
    sizes = (made.depth.size.own, made.column.size.own)
    whole = made.element is DType.F32 and is_whole(made, 4) and all(one in (64, 128) for one in sizes)
    return whole and made.row.size.own >= 64


def hopper_parts(made: Attention, op_line: str) -> str:
    parts = {"parts": _parts_fragment(made, op_line), "again": flash_fragment(made, op_line, flagged=True)}
    head = PlanLines(made.placed.as_rows(), op_line).head
    return joined_file(_WHOLE.format(name=made.placed.name), [*head, _flags(made)], parts)


def _flags(made: Attention) -> Entry:
    return plan_entry("scratch", f"wide: i32[{product_text(made.heads)}] zeroed")


def _parts_fragment(made: Attention, op_line: str) -> Fragment:
    plan = AttentionPlan(made, op_line)
    _plan(plan)
    texts = (*KERNEL_TEXTS, _CUDA["halves"], _CUDA["before"], _CUDA["peaks"], _CUDA["split"], PAIR, POWER, BARRIERS)
    before = [_before(AttentionKernel(plan, *texts), which) for which in ("peaks", "split")]
    kernel = AttentionKernel(plan, *texts)
    places = Places(
        q="box % (D / 64) * 64, row0 + box / (2 * D / 64) * 64, box / (D / 64) % 2 * heads + head",
        k="box % (D / 64) * 64, n * KEYS, box / (D / 64) * units + head / shares",
        v="box % (E / 64) * 64, n * KEYS, box / (E / 64) * units + head / shares",
    )
    begin = ["const float scale = given_scale / (scale_of(q_peaks[head]) * scale_of(k_peaks[head / shares]));"]
    more = [(f"const unsigned* __restrict__ {name}_peaks", plan.name(f"{name}_peaks")) for name in "qkv"]
    more += plan.numbers("heads", "units", "shares")
    column_scale = "(1.0f / scale_of(v_peaks[head / shares * E + @column]))"
    text = kernel_text(kernel, places, more, Parts(begin, column_scale))
    device = [
        POWER,
        pair_text(DType.F16),
        _CUDA["halves"],
        BARRIERS,
        load_box(3),
        wgmma(_WIDTHS, "f16", (False, False)) + wgmma_of(made.column.size.own, "f16", (False, True), in_registers=True),
        TURNS,
        SIZES_OF_PARTS,
        *kernel.forms.helpers(),
    ]
    return plan.fragment(_HEADER, device, *before, text, more=("cuda_fp16.h",))


def _plan(plan: AttentionPlan) -> None:
    made, heads, rows, keys = plan.made, plan.name("heads"), plan.name("rows"), plan.name("keys")
    own_lengths(plan)
    plan.whole_rows(4)
    plan.add("const", "CONSUMERS = 2", "warpgroups with 64 rows each")
    plan.add("tune", "KEYS = 128 | 64", "of a tile")
    plan.add("tune", "STAGES = 2 | 1")
    plan.add("need", "KEYS + E <= 192", "registers of a thread")
    slots = "(CONSUMERS * 64 * D + STAGES * KEYS * (D + E)) * 4"
    plan.shared_memory(f"{slots} + (STAGES * 4 + 2) * 8")
    units, shares = plan.name("units"), plan.name("shares")
    plan.add("let", f"{units} = {product_text(made.units)}, {shares} = {product_text(made.sharing)}")
    plan.add("let", f"@tiles = ceil_div({rows}, CONSUMERS * 64)")
    plan.add("let", f"@q_pieces = ceil_div({rows}, 64)")
    plan.add("let", f"@k_pieces = ceil_div({keys}, 64)")
    plan.add("need", f"(@q_pieces + 2 * @k_pieces) * {heads} <= 2000000000")
    section_line(plan, 4)
    shapes = {
        "q": (heads, rows, "D", ""),
        "k": (units, keys, "D", ""),
        "v": (units, keys, "E", ", E"),
    }
    for name, (count, many, length, columns_too) in shapes.items():
        plan.add("scratch", f"{plan.name(name + '_parts')}: f16[2 * {count}, {many}, {length}]")
        plan.add("scratch", f"{plan.name(name + '_peaks')}: i32[{count}{columns_too}] zeroed", "greatest, as bits")
        box = "64" if name == "q" else "KEYS"
        tiled = f"tiled({plan.name(name + '_parts')}, box=[1, {box}, 64], swizzle=128, l2=256)"
        plan.add("map", f"{plan.name(name + '_map')} = {tiled}")


def _before(kernel: AttentionKernel, which: str) -> list[str]:
    made, plan = kernel.made, kernel.plan
    parts = {f"{name}_{what}": [text] for name, what, text in kernel.places()}
    body = worded(_CUDA["before"], {"heads": kernel.split(made.heads, "head"), **parts}).splitlines()
    body += (_CUDA["peaks"] if which == "peaks" else _CUDA["split"]).splitlines()
    constant = "" if which == "peaks" else "const "
    more = [(f"{constant}unsigned* __restrict__ {name}_peaks", plan.name(f"{name}_peaks")) for name in "qkv"]
    if which == "split":
        more += [(f"__half* __restrict__ {name}_parts", plan.name(f"{name}_parts")) for name in "qkv"]
        more += [("int* __restrict__ wide", "wide"), ("float given_scale", made.scores.scale)]
    more += plan.numbers("rows", "keys", "heads", "units", "shares", "q_pieces", "k_pieces")
    grid = "@heads * @q_pieces + 2 * @units * @k_pieces"
    return kernel.launched(which, grid, "256", "256", body, more, ())
