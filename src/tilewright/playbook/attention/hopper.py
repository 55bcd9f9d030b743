"""Attention by TMA and wgmma: 16-bit operands, and f32 as two f16 parts."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.playbook.attention.hopper_kernel import (
    KERNEL_TEXTS,
    SIZES,
    SIZES_OF_PARTS,
    TURNS,
    Parts,
    Places,
    kernel_text,
    own_lengths,
    section_line,
)
from tilewright.playbook.attention.mma import flash_fragment
from tilewright.playbook.attention.program import Attention
from tilewright.playbook.attention.text import PAIR, POWER, AttentionKernel, AttentionPlan, is_whole, pair_text
from tilewright.playbook.cpp_text import worded
from tilewright.playbook.errors import NoMatch, NotSupported
from tilewright.playbook.file_text import Entry, Fragment, PlanLines, joined_file, plan_entry
from tilewright.playbook.gemms.hopper_form import BARRIERS, wgmma, wgmma_of
from tilewright.playbook.places.indices import Variable
from tilewright.playbook.places.reader import Read
from tilewright.playbook.places.sizes import Size
from tilewright.playbook.places.text import product_text
from tilewright.playbook.templates import sections
from tilewright.records import DType

_MOST_OUTER = 3  # dimensions of a map beside rows and elements
_TOGETHER = 8  # elements of 16 bytes, of which TMA takes whole ones


@dataclass(frozen=True)
class MatrixMap:
    """A matrix of every head: rows of `pitch` elements, in which this head's begin at an offset."""

    read: Read
    pitch: Size
    outer: tuple[tuple[Variable, Size], ...]  # heads that lie apart, with how far
    inner: tuple[tuple[Variable, Size], ...]  # heads that lie side by side in a row
    offset: Size

    @property
    def rank(self) -> int:
        return 2 + len(self.outer)

    @property
    def needs(self) -> list[str]:
        """What the plan must ask for: all that places are made of is a multiple of 16 bytes."""
        sizes = [self.pitch, *(one for _, one in (*self.outer, *self.inner)), self.offset]
        texts = dict.fromkeys(one.text for one in sizes if one.literal is None or one.literal % _TOGETHER)
        return [f"({text}) % {_TOGETHER} == 0" for text in texts]

    def tiled(self, rows_text: str, box_rows: str) -> str:
        shape = [*(one.size.text for one, _ in self.outer), rows_text, self.pitch.text]
        stride = [*(apart.text for _, apart in self.outer), self.pitch.text, "1"]
        box = ["1"] * len(self.outer) + [box_rows, "64"]
        return (
            f"tiled({self.read.tensor}, shape=[{', '.join(shape)}], stride=[{', '.join(stride)}], "
            f"box=[{', '.join(box)}], swizzle=128, l2=256)"
        )

    def element(self, kernel: AttentionKernel) -> str:
        """Where this head's rows begin in a row of the map."""
        parts = [f"{kernel.variable(one)} * {kernel.size(apart, 'int')}" for one, apart in self.inner]
        parts += [kernel.size(self.offset, "int")] if not self.offset.is_always(0) else []
        return " + ".join(parts)

    def outer_coordinates(self, kernel: AttentionKernel) -> list[str]:
        """Innermost first, as TMA has them."""
        return [kernel.variable(one) for one, _ in reversed(self.outer)]


def matrix_map(made: Attention, read: Read, rows: Variable) -> MatrixMap:
    """Raises `NotSupported` where TMA cannot see the matrices so."""
    pitch = read.place.factor(rows)
    if pitch is None:
        raise NoMatch
    outer: list[tuple[Variable, Size]] = []
    inner: list[tuple[Variable, Size]] = []
    for one in made.heads:
        apart = read.place.factor(one)
        if apart is None:
            continue
        side_by_side = all(a < b for a, b in zip(apart.values, pitch.values, strict=True))
        (inner if side_by_side else outer).append((one, apart))
    if len(outer) > _MOST_OUTER:
        raise NoMatch
    return MatrixMap(read, pitch, tuple(outer), tuple(inner), read.place.constant)


def load_box(rank: int) -> str:
    """The function that brings a box of a map of this rank."""
    coordinates = [f"int c{index}" for index in range(rank)]
    named = ", ".join(f"%{index + 3}" for index in range(rank))
    given = ", ".join(f'"r"(c{index})' for index in range(rank))
    return f"""\
__device__ __forceinline__ void load_box(const CUtensorMap* map, uint32_t barrier, uint32_t to,
                                         {", ".join(coordinates)}) {{
  asm volatile("cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes"
               " [%0], [%1, {{{named}}}], [%2];"
               ::"r"(to), "l"(map), "r"(barrier), {given} : "memory");
}}
"""


# -- attention of 16-bit elements for Hopper (sm_90a): TMA and wgmma, warpgroups that take turns --


_HEADER = """
{name} for Hopper. One thread of a producer warpgroup brings queries, keys and values into slots of shared memory by
TMA. Each consumer warpgroup has 64 rows of queries: it multiplies them with a tile of keys by wgmma, makes weights of
the scores in registers, and multiplies those, still in registers, with the tile of values.

The scores of the next tile are multiplied while this tile's values are, and consumers take turns, so that tensor cores
work for one while another makes its weights. Scores are never stored. Blocks stay and take tile after tile.
"""
_WIDTHS = (64, 128, 160)  # of tiles of keys, that there are functions for
_FEWEST_ROWS = 64


def can_hopper(made: Attention) -> bool:
    """Whether TMA and wgmma take the task at its own sizes."""
    sizes = (made.depth.size.own, made.column.size.own)
    if made.element not in (DType.F16, DType.BF16) or any(one not in (64, 128, 192, 256) for one in sizes):
        return False
    try:
        maps = _maps(made)
    except NotSupported:
        return False
    return made.row.size.own >= _FEWEST_ROWS and all(
        one.own % 8 == 0 for each in maps.values() for one in (each.pitch, each.offset)
    )


def _maps(made: Attention) -> dict[str, MatrixMap]:
    return {
        "q": matrix_map(made, made.query, made.row),
        "k": matrix_map(made, made.key, made.along),
        "v": matrix_map(made, made.value, made.along),
    }


def hopper(made: Attention, op_line: str) -> str:
    plan, maps = AttentionPlan(made, op_line), _maps(made)
    _plan(plan, maps)
    kernel = AttentionKernel(plan, *KERNEL_TEXTS, PAIR, POWER, BARRIERS)
    kind, columns = made.element.value, made.column.size.own
    text = kernel_text(kernel, _places(kernel, maps), [])
    device = [
        POWER,
        pair_text(made.element),
        BARRIERS,
        *(load_box(rank) for rank in sorted({one.rank for one in maps.values()})),
        wgmma(_WIDTHS, kind, (False, False)) + wgmma_of(columns, kind, (False, True), in_registers=True),
        TURNS,
        SIZES,
        *kernel.forms.helpers(),
    ]
    return plan.fragment(_HEADER, device, text).file()


def _places(kernel: AttentionKernel, maps: dict[str, MatrixMap]) -> Places:
    rows = {"q": "row0 + box / (D / 64) * 64", "k": "n * KEYS", "v": "n * KEYS"}
    found = {}
    for name, one in maps.items():
        element = one.element(kernel)
        first = "box % (D / 64) * 64" if name == "q" else "box * 64"
        first = f"{element} + {first}" if element else first
        found[name] = ", ".join([first, rows[name], *one.outer_coordinates(kernel)])
    return Places(**found)


def _plan(plan: AttentionPlan, maps: dict[str, MatrixMap]) -> None:
    own_lengths(plan)
    for need in dict.fromkeys(need for one in maps.values() for need in one.needs):
        plan.add("need", need, "TMA takes multiples of 16 bytes")
    plan.lengths()
    plan.add("tune", "CONSUMERS = 2 | 3", "warpgroups with 64 rows each")
    plan.add("tune", "KEYS = 160 | 128 | 64", "of a tile")
    plan.add("tune", "STAGES = 2 | 3")
    plan.add("need", "KEYS != 160 or E > 64", "long tiles pay where there is much to do with each")
    plan.add("need", "KEYS / 2 + KEYS / 4 + E / 2 <= (200 if CONSUMERS == 2 else 128)", "registers of a thread")
    slots = "(CONSUMERS * 64 * D + STAGES * KEYS * (D + E)) * 2"
    plan.shared_memory(f"{slots} + (STAGES * 4 + 2) * 8")
    plan.tiles("CONSUMERS * 64")
    section_line(plan, 2)
    for name, one in maps.items():
        rows, box = (plan.name("rows"), "64") if name == "q" else (plan.name("keys"), "KEYS")
        plan.add("map", f"{plan.name(name + '_map')} = {one.tiled(rows, box)}")


# Attention of f32 elements for Hopper (sm_90a) at f32's accuracy: every number is two f16 parts on tensor cores.


_CUDA = sections("attention/hopper_parts")

_WHOLE = """
{name} in f32, as exact as f32 arithmetic, on Hopper's f16 tensor cores. Queries and keys of a head, and every column of
its values, are scaled by a power of two and split into two f16 parts, which together have 22 bits; the product of two
numbers is then three products of parts.

What parts do not hold is made otherwise: where scores may be large, a number is not finite, or many numbers of a column
lie far below its greatest, a flag is set, and the last kernel makes that head again from f32 itself. On ordinary data
it finds no flag and ends.
"""
_F32_HEADER = """
First the greatest number of each head's queries and keys and of each column of its values is found, then the parts are
made. One thread of a producer warpgroup brings parts into slots of shared memory by TMA. Each consumer warpgroup has 64
rows of queries: it multiplies them with a tile of keys by wgmma, makes weights of the scores in registers, splits those
too, and multiplies them with the tile of values. Tensor cores cut off bits where they add, so f32 registers add up what
each tile comes to.
"""
_F32_WIDTHS = (64, 128)


def can_hopper_parts(made: Attention) -> bool:
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
    _f32_plan(plan)
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
        wgmma(_F32_WIDTHS, "f16", (False, False))
        + wgmma_of(made.column.size.own, "f16", (False, True), in_registers=True),
        TURNS,
        SIZES_OF_PARTS,
        *kernel.forms.helpers(),
    ]
    return plan.fragment(_F32_HEADER, device, *before, text, more=("cuda_fp16.h",))


def _f32_plan(plan: AttentionPlan) -> None:
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
