"""The kernels before the product, as text: the input with channels last and room around it, and packed weights.

f16 has the mantissa of TF32 but not its range. Weights are scaled for it by a power of two for each filter. Elements of
the input are taken as they are: where some do not fit, the rows they are in are noted, and the results made from those
rows are made again by another kernel.
"""

from __future__ import annotations

from tilewright.playbook.cpp_text import worded
from tilewright.playbook.gemms.convolution_hopper_geometry import Geometry
from tilewright.playbook.gemms.convolution_hopper_kernel import SIZES, sizes_parameters
from tilewright.playbook.gemms.convolution_hopper_parts import (
    NOTING_PARTS,
    PACKING_PARTS,
    PARTS_OF_EIGHT,
    SCALING_PARTS,
)
from tilewright.playbook.gemms.convolution_hopper_store import ONE_ADDRESS
from tilewright.playbook.gemms.hopper_form import Parameters, kernel
from tilewright.playbook.templates import sections
from tilewright.records import DType

_CUDA = sections("gemms/convolution_hopper_copies")

NOTE_ROWS = 256  # rows that are noted together


def copy_parameters(geometry: Geometry) -> Parameters:
    one = geometry.convolution
    lengths = ("x_depth", "x_height", "x_width")
    return [
        (f"const {one.element.cpp}* __restrict__ x", one.x),
        ("uint4* __restrict__ copied", "@copied"),
        ("int* __restrict__ noted", "@noted"),
        *((f"int {name}", f"@{name}") for name in lengths),
        *sizes_parameters(),
    ]


def copy_text(geometry: Geometry) -> list[str]:
    """The kernel that copies the input, or what the product needs to copy it itself."""
    exact = geometry.convolution.is_exact
    if geometry.planes:
        text, words = _CUDA["planes"], _PLANES_OF_PARTS if exact else _PLANES_OF_WHOLE
    else:
        text, words = _CUDA["rows"], _ROWS_OF_PARTS if exact else _ROWS_OF_WHOLE
    of_plane = "i" if geometry.fold == 1 else "i % 4"
    words = {
        **words,
        "store_parts": _CUDA["store_neighbours"] if geometry.rest else _CUDA["store_parts"],
        "rest": str(geometry.rest),
        "neighbours": str(geometry.neighbours if geometry.rest else 0),
        "sizes": SIZES,
        "channel": of_plane if exact else f"plane % @planes * 8 + {of_plane}",
        "planes": str(geometry.planes),
    }
    body = worded(text, words).splitlines()
    f32 = geometry.convolution.element is DType.F32
    helper = worded(_CUDA["noting_16"], {"type": geometry.convolution.element.cpp})
    if f32:
        helper = worded(_CUDA["noting_f32"], NOTING_PARTS if exact else _NOTING_WHOLE)
        helper += f"\n{PARTS_OF_EIGHT}" if exact else ""
    return [
        f"constexpr int NOTE_ROWS = {NOTE_ROWS};  // rows that are noted together",
        *ONE_ADDRESS.splitlines(),
        *_CUDA["mark"].splitlines(),
        *helper.splitlines(),
        *([] if geometry.is_copied_ahead else _CUDA["place"].splitlines()),
        *([] if geometry.is_copied_ahead else kernel("256, 4", "copy_input", copy_parameters(geometry), body)),
    ]


_NOTING_WHOLE = {"off": "2^-25", "few": "", "count": "", "too_few": ""}
_PLANES_OF_WHOLE = {
    "number": "plane = 0; plane < GROUPS * @planes; ++plane",
    "group": "plane / @planes",
    "stored": "if (inside) copied[plane * all_rows + at.row] = some.packed;",
}
_PLANES_OF_PARTS = {
    "number": "group = 0; group < GROUPS; ++group",
    "group": "group",
    "stored": "const Parts parts(v);\n@store_parts",
}
_ROWS_OF_WHOLE = {
    "together": "1024",
    "each": "CHUNKS",
    "all": "CHUNKS",
    "first": "chunk0",
    "chunks": "all_chunks",
    "stored": "held[place * HELD + chunk] = some.packed;",
}
_ROWS_OF_PARTS = {
    "together": "512",
    "each": "3 * CHUNKS",
    "all": "(3 * CHUNKS)",
    "first": "3 * chunk0",
    "chunks": "3 * all_chunks",
    "stored": "const Parts parts(v[item]);\n#pragma unroll\nfor (int part = 0; part < 3; ++part) "
    "held[place * HELD + 3 * chunk + part] = parts.packed[part];",
}


def pack_parameters(geometry: Geometry) -> Parameters:
    one = geometry.convolution
    return [
        (f"const {one.element.cpp}* __restrict__ weight", one.weight),
        (f"{geometry.copied.cpp}* __restrict__ packed", "@packed"),
        ("float* __restrict__ scales", "@scales"),
        *([("int* __restrict__ noted", "@noted")] if one.element is DType.F32 else []),
        ("int channels", "@channels"),
        ("int filters", "@filters"),
        ("int channel_blocks", "@channel_blocks"),
        ("int row_tiles", "@row_tiles"),
    ]


def pack_text(geometry: Geometry) -> list[str]:
    """The kernel that packs weights."""
    per_tap = {0: "ROW_ELEMENTS", 1: "8", 2: "16"}[geometry.planes]
    channel = "e % PER_SHIFT % 4" if geometry.fold == 2 else "e % PER_SHIFT"
    if geometry.rest:
        channel = "ELEMENT_NUMBER[e]"
    of_fold = " + e % PER_SHIFT / 4" if geometry.fold == 2 else ""
    per_block = "STEPS * 16" if not geometry.planes else "0"
    beyond = "ELEMENT_NUMBER[e] >= 0" if geometry.rest else "true" if geometry.planes else "e < STEPS * 16"
    exact = geometry.convolution.is_exact
    words = {
        **(PACKING_PARTS if exact else _PACKING_WHOLE),
        **(SCALING_PARTS if exact else _SCALING_WHOLE),
        "scale": _CUDA["scale"] if geometry.convolution.element is DType.F32 else _CUDA["no_scale"],
        "per_shift": per_tap,
        "further": "ELEMENT_SHIFT[e]" if geometry.rest else "e / PER_SHIFT",
        "place": f"{geometry.weight_at('group', 'filter')} + t",
        "channel": channel,
        "fold": of_fold,
        "per_block": per_block,
        "type": geometry.copied.cpp,
        "beyond": beyond,
    }
    return kernel("256", "pack_weights", pack_parameters(geometry), worded(_CUDA["pack"], words).splitlines())


_PACKING_WHOLE = {"element": "c", "part": "", "high": "", "stored": "v"}
_SCALING_WHOLE = {"range": "8 .. 16", "exponent": "3", "losing": "v != 0.f && v < 0x1p-14f"}
