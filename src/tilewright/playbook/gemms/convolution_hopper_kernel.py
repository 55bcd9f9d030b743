"""The kernel of a convolution by TMA and wgmma: producer, consumers and epilogue."""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.playbook.cpp_text import worded
from tilewright.playbook.gemms.convolution_hopper_channels import ChannelsText
from tilewright.playbook.gemms.convolution_hopper_geometry import NAMES, Geometry
from tilewright.playbook.gemms.epilogue_text import PLAIN, EpilogueText
from tilewright.playbook.gemms.hopper_form import BARRIERS, SHOW, Parameters, kernel, wgmma
from tilewright.playbook.templates import sections
from tilewright.records import DType

_CUDA = sections("gemms/convolution_hopper_kernel")

_UNDER_WAY = 2  # boxes of a warp
_BOX_BYTES = 8192  # 256 times eight channels
_LEAD = 4  # tiles of all blocks that the copy is ahead, at most: what has been copied shall be read from the cache
PRODUCER_REGISTERS, CONSUMER_REGISTERS = 56, 224
COPY_BYTES = 2 * (_UNDER_WAY * _BOX_BYTES + 2 * _BOX_BYTES // 2) + 256  # of two warps: boxes, what is stored, barriers


def before_first(geometry: Geometry) -> int:
    """Elements between where the first box of a line begins, which is a multiple of 16 bytes, and the line's first."""
    return -geometry.axes[2].margin % 4


def ahead_parameters() -> list[tuple[str, str]]:
    """Of the kernel, beside those of the product."""
    return [
        ("const __grid_constant__ CUtensorMap x_map", "@x_map"),
        ("uint4* __restrict__ copied", "@copied"),
        ("int* __restrict__ noted", "@noted"),
        ("int* __restrict__ arrived", "@arrived"),
        ("int x_depth", "@x_depth"),
        ("int x_height", "@x_height"),
        ("int pieces_of_line", "@pieces_of_line"),
    ]


def ahead_functions(geometry: Geometry) -> str:
    """What the two warps do, and how it is waited for."""
    text = _CUDA["ahead"].replace("@before", str(before_first(geometry)))
    return text.replace("@under_way", str(_UNDER_WAY)).replace("@lead", str(_LEAD)).replace("@box", str(_BOX_BYTES))


def ahead_text(geometry: Geometry) -> str:
    """What the kernel knows of it."""
    pairs = [pair for kind in geometry.kinds for pair in kind]
    outer = f"({max(one.depth for one in pairs)} * height + {max(one.height for one in pairs)}) * width"
    return _CUDA["known"].replace("@reach", f"{outer} + {max(one.shifts[0] for one in geometry.slots)}")


LOADER_WAITS = _CUDA["loader_waits"]
COPIES = _CUDA["copies"]


# From the sums in registers to the result, as text: put in order in shared memory, finished, and stored by lines.


def runs_text(geometry: Geometry) -> str:
    """Which results a tile has."""
    rows = geometry.row_phases
    if len(rows) == geometry.phases:
        place = "  return phase * PITCH + min(position, POSITIONS - 1u);"
    else:
        found = "".join(f"phase == {phase} ? {row} : " for row, phase in enumerate(rows))
        place = f"  const int row = {found}-1;  // -1: no tap meets it\n"
        place += "  return row < 0 ? POSITIONS : row * PITCH + min(position, POSITIONS - 1u);"
    return worded(_CUDA["runs"], {"sector": str(sector(geometry)), "place_of_phase": place})


def sector(geometry: Geometry) -> int:
    return 32 // geometry.convolution.output.dtype.itemsize


def asked_text(epilogue: EpilogueText) -> str:
    """What is read with the results of a job, asked for before it is multiplied."""
    whole = [one for one in epilogue.inputs if one.place == "at"]
    asked = [f'asm volatile("prefetch.global.L2 [%0];" ::"l"({one.name} + at));' for one in whole]
    return worded(_CUDA["store_ahead"], {"asked": asked}) if whole else ""


def store_text(geometry: Geometry, epilogue: EpilogueText) -> str:
    """What a consumer does with the sums of a job, once they are scaled."""
    dtype = geometry.convolution.output.dtype
    made = epilogue.call_read("value[f][i]", "[f][i]")
    stored = "value[f][i]" if dtype is DType.F32 else f"static_cast<{dtype.cpp}>(value[f][i])"
    words = {
        "there": epilogue.arrays("[FILTERS_TOGETHER][TOGETHER]"),
        "from": epilogue.pointers("one_address(@ + base(f))"),
        "read": epilogue.reads("[f][i]", "line[f].has(begin[f] + i * 32)", "apart(i)"),
        "row": ["const long long row = line[f].at / s.plane();"] if "row" in epilogue.takes else [],
    }
    return worded(_CUDA["store"], {**words, "made": made, "stored": stored})


ONE_ADDRESS = _CUDA["one_address"]
NOTHING_STAGED = _CUDA["nothing_staged"]
SCALED = _CUDA["scaled"]


# -- what a consumer multiplies for a job, as text: the products of rows of taps --


def products_text(geometry: Geometry) -> str:
    """The products of a row of taps, added to those before it; of a few rows, where sums of sums are made."""
    exact = geometry.convolution.is_exact
    if geometry.by_halves:
        if geometry.rest:
            steps = [geometry.planar_steps for _ in geometry.slots]
        else:
            steps = [len(one.shifts) if geometry.planes == 2 else -(-len(one.shifts) // 2) for one in geometry.slots]
        words = {"steps": ", ".join(map(str, steps)), "along": _ALONG_POSITIONS, "step": _planar_step(geometry)}
        return worded(_CUDA["halves"], words)
    if geometry.planes:
        text = _CUDA["planar_sums"] if exact else _CUDA["planar_products"]
        along, step, block = _ALONG_POSITIONS, _planar_step(geometry), "slot"
    else:
        text, along, step, block = _CUDA["row_products"], "", "(step * 32 >> 4)", "i"
    each = {"lines": "", "rows_of_line": "", "first_line": ""}
    if not exact:
        each = {"lines": _CUDA["lines"], "rows_of_line": " + line * line_rows", "first_line": " && line == 0"}
    words = {"multiply": _CUDA["multiply"], "sum": "some" if exact else "sum", "along": along, "step": step, **each}
    if not exact:
        return worded(text, {**words, "before": "weight"})
    text = worded(text, words)
    first, others = text.replace("@before", block), text.replace("@before || step", "true")
    return worded(_CUDA["sum_of_rows"], {"first": first, "others": others})


def loop_text(geometry: Geometry) -> str:
    """The head of a loop over rows of taps; over those that a slot serves together, where each row is not a sum."""
    return _CUDA["rows_one_by_one"] if geometry.convolution.is_exact else _CUDA["rows_of_a_slot"]


def _planar_step(geometry: Geometry) -> str:
    """What a step of k adds to the descriptor of a slot."""
    return "step_at(step)" if geometry.rest else "(step * (32 / PLANES) >> 4)"


def step_text(geometry: Geometry) -> list[str]:
    """Where the elements of k of a slot lie, where a second plane has those of neighbours side by side."""
    at = ", ".join(f"{'PLANE_BYTES + ' if plane else ''}{row * 16}" for plane, row in geometry.chunks)
    return _CUDA["step"].replace("@at", at).splitlines() if geometry.rest else []


def empty_text(geometry: Geometry) -> str:
    """What a job has whose results no tap meets."""
    all_met = all(geometry.kinds[one] for one in geometry.made)
    return "" if geometry.convolution.is_exact or all_met else _CUDA["empty"]


_ALONG_POSITIONS = "  // k goes from position to position: a row of a plane is 16 bytes"


# The kernel that multiplies, as text: a producer, two consumers that take turns, and the store of what they have.


def constants(geometry: Geometry) -> list[str]:
    """What of the convolution is fixed, as constants of the code."""
    one, width = geometry.convolution, geometry.axes[2]
    lines = [f"constexpr int GROUPS = {one.groups};"]
    for name, axis in zip(NAMES, geometry.axes, strict=True):
        window = axis.window
        named = {"TAPS": window.taps, "STRIDE": window.stride, "PADDING": window.padding, "DILATION": window.dilation}
        lines.append(
            "constexpr int " + ", ".join(f"{name.upper()}_{word} = {number}" for word, number in named.items()) + ";"
        )
    lines += [
        "// Results come in phases: number `position * PHASES + phase` is made from `position * MODULUS + shift` of",
        "// the input, with MARGIN zeros before it. Phases of the width are rows of the product.",
    ]
    for name, axis in zip(NAMES, geometry.axes, strict=True):
        named = {"PHASES": axis.phases, "MODULUS": axis.modulus, "MARGIN": axis.margin}
        lines.append(
            "constexpr int " + ", ".join(f"{name.upper()}_{word} = {number}" for word, number in named.items()) + ";"
        )
    made_fewer = len(geometry.made) * geometry.row_kinds < len(geometry.kinds)
    pairs = [pair for kind in geometry.kinds for pair in kind]
    before = [sum(len(kind) for kind in geometry.kinds[:place]) for place in range(len(geometry.kinds) + 1)]
    slots = geometry.slots
    blocks_before = [sum(len(slot.shifts) for slot in slots[:place]) for place in range(len(slots) + 1)]
    if geometry.planes:
        blocks_before = list(range(len(slots) + 1))
    met = [
        width.taps_of_shifts.get(at, {}).get(phase, -1)
        for at in range(width.reach + 1)
        for phase in (*geometry.row_phases, *(-1,) * (geometry.rows_of_filter - len(geometry.row_phases)))
    ]
    shifts = [slot.shifts[0] for slot in slots] if geometry.planes else [at for slot in slots for at in slot.shifts]
    of_slots = (
        range(len(slots)) if geometry.planes else [place for place, slot in enumerate(slots) for _ in slot.shifts]
    )
    lines += [
        f"constexpr int ROWS_OF_FILTER = {geometry.rows_of_filter}, FOLD = {geometry.fold}, "
        f"WIDTH_COPIES = {geometry.width_phases}, WIDTH_REACH = {width.reach};",
        f"constexpr int KINDS = {len(geometry.kinds)};  // of results, by their phases along depth and height",
        f"constexpr int ROW_KINDS = {geometry.row_kinds};  // that are rows of one product, one after the other",
        f"constexpr int MADE_KINDS = {len(geometry.made)};{'  // the others were stored before' if made_fewer else ''}",
        _table("MADE_KIND", geometry.made),
        "// Taps of depth and height, for each kind: the tap's number, and its place in the copied input.",
        _table("FIRST_PAIR", before),
        _table("KIND_LINES", geometry.lines_of_kinds) + "  // taps of the height beside each one of depth",
        _table("PAIR_TAP", (tap for pair in pairs for tap in pair.taps))
        + ("  // [pair][kind]; -1: none" if geometry.row_kinds > 1 else ""),
        _table("PAIR_COPY", (pair.phase for pair in pairs)),
        _table("PAIR_DEPTH", (pair.depth for pair in pairs)),
        _table("PAIR_HEIGHT", (pair.height for pair in pairs)),
        "// Along the width a slot of rows serves several shifts. Of blocks of weights: the slot, the first shift.",
        f"constexpr int SLOTS = {len(slots)}, WIDTH_BLOCKS = {geometry.width_blocks};",
        _table("SLOT_COPY", (slot.phase for slot in slots)),
        _table("SLOT_FIRST", (slot.shifts[0] for slot in slots)),
        _table("FIRST_BLOCK", blocks_before),
        _table("BLOCK_SLOT", of_slots),
        _table("BLOCK_SHIFT", shifts),
        _table("TAP_OF", met) + "  // [shift][row of a filter]; -1: none",
    ]
    if geometry.rest:
        lines += [
            "// Of elements of k in a slot: shifts behind its first, and which of a position's it is; -1: none.",
            _table("ELEMENT_SHIFT", (shift for shift, _ in geometry.elements)),
            _table("ELEMENT_NUMBER", (number for _, number in geometry.elements)),
        ]
    return lines


def _table(name: str, numbers: Iterable[int]) -> str:
    listed = list(numbers)
    return f"__device__ constexpr int {name}[{len(listed)}] = {{{', '.join(str(one) for one in listed)}}};"


def job_text(geometry: Geometry) -> list[str]:
    """The sizes that all kernels share, and which part of the product a job is."""
    return _CUDA["job"].replace("@positions", str(geometry.positions)).splitlines()


def kernel_parameters(geometry: Geometry, epilogue: EpilogueText, channels: ChannelsText | None) -> Parameters:
    """Declarations, and what the plan gives for them; a name that these files introduce begins with @."""
    one = geometry.convolution
    operand = (
        ("const uint4* __restrict__ copied", "@copied")
        if geometry.planes
        else ("const __grid_constant__ CUtensorMap copied_map", "@copied_map")
    )
    return [
        operand,
        *(ahead_parameters() if geometry.is_copied_ahead else []),
        ("const __grid_constant__ CUtensorMap weight_map", "@weight_map"),
        ("const float* __restrict__ scales", "@scales"),
        (f"{one.output.dtype.cpp}* __restrict__ y", one.output.name),
        *epilogue.parameters,
        *(channels.parameters if channels else ()),
        *(one for one in sizes_parameters() if one[1][1:] not in KNOWN_SIZES),
        ("int jobs", "@jobs"),
    ]


def known_constants() -> list[tuple[str, str]]:
    """Constants for sizes that the product is built for: it divides by them for every tile, which numbers that are
    known make quick. Others than the batch seldom differ from call to call."""
    return [(f"OF_{name.upper()}", f"@{name}") for name in KNOWN_SIZES]


def sizes_parameters() -> Parameters:
    names = ("batch", "channels", "filters", "depth", "height", "width", "copy_rows", "y_depth", "y_height", "y_width")
    return [(f"int {name}", f"@{name}") for name in names]


_OF_COPY, _OF_RESULT = ("depth", "height", "width"), ("y_depth", "y_height", "y_width")
KNOWN_SIZES = (*_OF_COPY, *_OF_RESULT, "channel_blocks", "row_tiles", "tile_step", "slice_tiles")
SIZES = "const Sizes s = {batch, channels, filters, depth, height, width, copy_rows, y_depth, y_height, y_width};"


def device_text(geometry: Geometry, epilogue: EpilogueText, channels: ChannelsText | None) -> list[str]:
    """All of the code that the product itself needs."""
    kind = "bf16" if geometry.copied is DType.BF16 else "f16"
    left = PLAIN if channels else epilogue  # to be done with what is stored
    wide = geometry.positions // 2 if geometry.by_halves else geometry.positions
    load = _CUDA["load_plane"] if geometry.planes else _LOAD_ROWS
    ahead = geometry.is_copied_ahead
    registers = (PRODUCER_REGISTERS, CONSUMER_REGISTERS) if ahead else (40, 232)
    words = {
        "zero": " = {}" if geometry.convolution.is_exact else "",
        "sizes": SIZES,
        "kept": f" + 2 * {channels.kept} * COLUMN_VALUES" if channels else "",
        "few_registers": str(registers[0]),
        "many_registers": str(registers[1]),
        "loaders": "< 32" if ahead else "== 0",
        "prefetch": ("" if geometry.planes else "prefetch(&copied_map), ") + "prefetch(&weight_map)",
        "load": _CUDA["load_of_planes"] if geometry.planes else _CUDA["load_of_rows"],
        "held": str(8 * geometry.parts),
        "known_of_copy": ahead_text(geometry) if ahead else "",
        "ready": "int ready = 0;" if ahead else "",
        "copy_is_there": LOADER_WAITS if ahead else "",
        "all_loaded": "if (thread == 0) ahead.say(0x7FFFFFFF);" if ahead else "",
        "copies": COPIES if ahead else "",
        "known": [
            "[[maybe_unused]] constexpr int " + ", ".join(f"{name} = OF_{name.upper()}" for name in names) + ";"
            for names in (KNOWN_SIZES[:6], KNOWN_SIZES[6:])
        ],
        "nothing": NOTHING_STAGED if len(geometry.row_phases) < geometry.phases else "",
        "loop": loop_text(geometry),
        "products": products_text(geometry),
        "empty": empty_text(geometry),
        "x_slots": _x_slots(geometry),
        "of_columns": _CUDA["of_columns"] if channels else "",
        "kept_of_columns": str(channels.kept) if channels else "",
        "ahead": asked_text(left),
        "scaled": SCALED,
        "channels": channels.product_text() if channels else "",
        "store": "" if channels and channels.is_reduced else store_text(geometry, left),
    }
    body = worded(_CUDA["kernel"], words).splitlines()
    widths = tuple(wide // one for one in ((4, 2, 1) if channels else (2, 1)))
    return [
        *(_CUDA["planar_shape"] if geometry.planes else _CUDA["row_shape"])
        .replace("@planes", str(geometry.planes))
        .splitlines(),
        *_CUDA["shape"].splitlines(),
        *step_text(geometry),
        *([_ROWS_TOGETHER] if geometry.convolution.is_exact and not geometry.by_halves else []),
        "",
        *BARRIERS.splitlines(),
        *_CUDA["bulk"].splitlines(),
        *load.splitlines(),
        *SHOW.splitlines(),
        "",
        *wgmma(widths, kind, (False, False), (32, 64, 128)).splitlines(),
        "",
        *_CUDA["ring"].splitlines(),
        "",
        *([*ahead_functions(geometry).splitlines(), ""] if ahead else []),
        *([] if channels and channels.is_reduced else [*runs_text(geometry).splitlines(), ""]),
        *([*channels.functions().splitlines(), ""] if channels else []),
        *kernel("384, 1", "convolve", kernel_parameters(geometry, epilogue, channels), body),
    ]


def _x_slots(geometry: Geometry) -> str:
    if not geometry.planes:
        return "const uint64_t x_slots = descriptor(x_at, 16, 8 * ROW_BYTES, SWIZZLE);"
    if geometry.rest:
        return "const uint64_t x_slots = descriptor(x_at, 0, 128, 0);  // a step of k says how far apart its halves are"
    lead = "16" if geometry.planes == 1 else "PLANE_BYTES"
    return f"const uint64_t x_slots = descriptor(x_at, {lead}, 128, 0);  // eight channels after eight are {lead} apart"


_MOST_STEPS = 12  # that tensor cores add up, before f32 adds such sums: what they cut off grows with each
_ROWS_TOGETHER = (
    f"constexpr int ROWS_TOGETHER = WIDTH_BLOCKS * STEPS < {_MOST_STEPS} ? {_MOST_STEPS} / (WIDTH_BLOCKS * STEPS) : 1;"
)
_LOAD_ROWS = ""
