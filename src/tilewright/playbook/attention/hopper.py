"""Attention of 16-bit elements for Hopper (sm_90a): TMA and wgmma, warpgroups that take turns."""

from __future__ import annotations

from tilewright.playbook.attention.hopper_kernel import (
    KERNEL_TEXTS,
    SIZES,
    TURNS,
    Places,
    kernel_text,
    own_lengths,
    section_line,
)
from tilewright.playbook.attention.maps import MatrixMap, load_box, matrix_map
from tilewright.playbook.attention.program import Attention
from tilewright.playbook.attention.text import PAIR, POWER, AttentionKernel, AttentionPlan, pair_text
from tilewright.playbook.errors import NotSupported
from tilewright.playbook.gemms.hopper_form import BARRIERS, wgmma, wgmma_of
from tilewright.records import DType

_HEADER = """
{name} for Hopper. One thread of a producer warpgroup brings queries, keys and values into slots of shared memory by
TMA. Each consumer warpgroup has 64 rows of queries: it multiplies them with a tile of keys by wgmma, makes weights of
the scores in registers, and multiplies those, still in registers, with the tile of values.

The scores of the next tile are multiplied while this tile's values are, and consumers take turns, so that tensor cores
work for one while another makes its weights. Scores are never stored. Blocks stay and take tile after tile.
"""
_WIDTHS = (64, 128, 160)  # of tiles of keys, that there are functions for
_FEWEST_ROWS = 64


def can_write(made: Attention) -> bool:
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
