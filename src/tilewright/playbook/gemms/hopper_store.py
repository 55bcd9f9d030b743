"""From the sums in registers to the result, as text: finished, of neighbours two at once, and stored.

Results of 16 bits are put in order in shared memory and stored by TMA. Those of f32 are stored from registers; but
where sums are short, as `hopper_short` has it.
"""

from __future__ import annotations

import re

from tilewright.playbook.cpp_text import indented, worded
from tilewright.playbook.gemms.epilogue_text import EpilogueText, kept_sum
from tilewright.playbook.gemms.hopper_form import Form
from tilewright.playbook.templates import sections
from tilewright.records import DType

_CUDA = sections("gemms/hopper_store")

PAIRED = (DType.F32, DType.F16, DType.BF16)  # element types of which a kernel loads two neighbours at once

_VECTOR_PAIRS = {
    DType.F32: _CUDA["vector_pairs_f32"],
    DType.F16: _CUDA["vector_pairs_f16"],
    DType.BF16: _CUDA["vector_pairs_bf16"],
}


def epilogue_lines(form: Form) -> list[str]:
    """Statements that make results of all sums of a tile."""
    lines = epilogue_of_all(form, form.epilogue)
    if form.boxes:
        return [*lines, "#pragma unroll", "for (int i = 0; i < BN / 16; ++i) {", *indented(_store_16_bit(form)), "}"]
    return [*lines, *(_store_fours(form) if form.tma_store else _store_plainly(form))]


def epilogue_of_some(form: Form) -> list[str]:
    """A function that makes results of 16 columns of a tile's rounded sums."""
    unused = [] if form.staged in form.late_epilogue.inputs else ["[[maybe_unused]] "]
    epilogue = epilogue_of_all(form, form.late_epilogue) if form.late_epilogue.function else []
    return [
        f"auto finish_some = [&](const Walk& tile, {''.join(unused)}uint32_t my_columns, int i) {{",
        *indented([*epilogue, *_store_16_bit(form, late=True)]),
        "};",
    ]


def epilogue_of_all(form: Form, epilogue: EpilogueText) -> list[str]:
    """The function that makes results of four sums, and what it needs."""
    four = _four(form, epilogue)
    text = "\n".join(four)
    lines = ["// Sums 4j .. 4j+3 of a lane: columns 8j + 2(lane % 4) and the next, of rows `row` and `row` + 8."]
    of_rows = [] if form.pieces else row_values(epilogue)
    from_registers = form.tma_store and not form.boxes and not form.short
    needs_rows = from_registers or "row_at" in text or "row_at" in "\n".join(of_rows)
    needs_m = "m[" in text or needs_rows or form.split_before
    if not form.parts and (needs_m or not form.boxes):
        lines.append("const int row = warp * 16 + lane / 4;")
    if needs_m and not form.split_before:
        lines.append("const int m[2] = {tile.m0 + consumer * 64 + row, tile.m0 + consumer * 64 + row + 8};")
    if needs_rows:
        copy = "(size_t)(tile.piece * batch + tile.z)" if form.pieces else "(size_t)tile.z"
        places = ", ".join(f"{copy} * M + min(m[{row}], M - 1)" for row in range(2))
        lines.append(f"const size_t row_at[2] = {{{places}}};")
    lines += of_rows
    return [*lines, "auto four = [&](const float* s, int column, float (&v)[4]) {", *indented(four), "};"]


def _four(form: Form, epilogue: EpilogueText) -> list[str]:
    """The body of the function that makes four results of four sums."""
    lines: list[str] = []
    values = [f"s[{index}]" for index in range(4)]
    if form.parts:
        lines += column_pair("scale")
        values = [f"s[{index}] * (row_scale[{index // 2}] * scale.{'xy'[index % 2]})" for index in range(4)]
    if form.pieces:
        made = [f"v[{index}] = {value};" for index, value in enumerate(values)]
    else:
        made = epilogue_of_four(form, values, epilogue)
    if re.search(r"\bn\b", "".join(made)):
        lines.append("const int n = tile.n0 + column;")
    return [*lines, *made]


def _store_plainly(form: Form) -> list[str]:
    cast = "" if form.stored is DType.F32 else f"({form.stored.cpp})"
    copy = "(tile.piece * batch + tile.z)" if form.pieces else "tile.z"
    return _CUDA["plain"].replace("@copy", copy).replace("@cast", cast).splitlines()


def _store_fours(form: Form) -> list[str]:
    most, greatest = ("float most[2];  // of 64 columns", _CUDA["greatest"]) if form.product.greatest else ("", "")
    return worded(_CUDA["fours"], {"most": most, "greatest": greatest}).splitlines()


def who_stores(form: Form) -> str:
    """Of the threads that put results in order the one that has TMA store them: a warp's, or a consumer's."""
    return "(LATE ? lane : thread) == 0" if form.late else "thread == 0"


def _store_16_bit(form: Form, late: bool = False) -> list[str]:
    """Columns 16 i and on: put in order in rows of 128 bytes, swizzled as TMA expects; 64 columns leave at once. Under
    products each warp stores its own 16 rows, so that it waits for no other."""
    sync, storing, place, row = "consumer_sync(consumer);", "thread", "buffer", "tile.m0 + consumer * 64"
    if late:
        sync, storing, place, row = "__syncwarp();", "lane", f"{place} + warp * 16 * 128", f"{row} + warp * 16"
    made = ["float v[4], w[4];"]
    packed = [f"pack({name}[{at}], {name}[{at + 1}])" for name in "vw" for at in (0, 2)]
    if not late:
        made += ["four(sum + i * 8, i * 16 + lane % 4 * 2, v);", "four(sum + i * 8 + 4, i * 16 + lane % 4 * 2 + 8, w);"]
    elif form.late_epilogue.function:
        made += [
            "float s[8];",
            "unrolled for (int j = 0; j < 4; ++j) {",
            "  const float2 two = unpack(rounded[i * 4 + j]);",
            "  s[j * 2] = two.x, s[j * 2 + 1] = two.y;",
            "}",
            "four(s, i * 16 + lane % 4 * 2, v);",
            "four(s + 4, i * 16 + lane % 4 * 2 + 8, w);",
        ]
    else:
        made, packed = [], [f"rounded[i * 4{f' + {at}' if at else ''}]" for at in range(4)]
    return [
        "const uint32_t buffer = c_buffers + (consumer * C_BUFFERS + i / 4 % C_BUFFERS) * C_BYTES;",
        "if (i % 4 == 0) {",
        "  // A tile of an odd number of pieces ends in the buffer in which the next one begins.",
        f"  if ({storing} == 0) {{",
        "    if (i == 0 && BN / 64 % C_BUFFERS) wait_until_read<0>();",
        "    else wait_until_read<C_BUFFERS - 1>();",
        "  }",
        f"  {sync}",
        "}",
        *made,
        "const int to_row = warp * 16 + lane % 16;  // the row whose place this lane gives to stmatrix",
        "const uint32_t to = buffer + to_row * 128 + ((i % 4 * 2 + lane / 16) ^ to_row % 8) * 16;",
        'asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"',
        f'             ::"r"(to), "r"({packed[0]}), "r"({packed[1]}), "r"({packed[2]}),',
        f'               "r"({packed[3]}) : "memory");',
        "if (i % 4 == 3) {",
        "  show_to_tma();",
        f"  {sync}",
        f"  if ({storing} == 0)",
        f"    store_box(&c_map, {place}, tile.n0 + i / 4 * 64, {row}, tile.z);",
        "}",
    ]


def pack(dtype: DType) -> list[str]:
    kind = "f16" if dtype is DType.F16 else "bf16"
    return [
        "__device__ __forceinline__ uint32_t pack(float low, float high) {",
        f'  uint32_t r; asm("cvt.rn.{kind}x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low)); return r;',
        "}",
    ]


def unpack(dtype: DType) -> list[str]:
    lines = ["return __half22float2(*reinterpret_cast<const __half2*>(&two));"]
    if dtype is DType.BF16:
        lines = ["return make_float2(__uint_as_float(two << 16), __uint_as_float(two & 0xFFFF0000u));"]
    return ["__device__ __forceinline__ float2 unpack(uint32_t two) {", *indented(lines), "}"]


def pair_functions(form: Form) -> list[str]:
    """How neighbours are loaded: two at once where rows are whole numbers of pairs."""
    vectors, inputs = form.tma_store, zip(form.product.epilogue_inputs, form.epilogue.inputs, strict=False)
    kinds = [one.dtype for one, text in inputs if one.varies and text != form.staged]
    if not kinds:
        return []
    texts = [_VECTOR_PAIRS[kind] for kind in PAIRED if kind in kinds] if vectors else [_CUDA["single_pair"]]
    note = "// Elements n and n + 1 of a row of N" + (", which are a whole number of pairs." if vectors else ".")
    return [note, *"".join(texts).rstrip("\n").splitlines()]


def column_pair(name: str) -> list[str]:
    """What columns `column` and the next have in shared memory."""
    return [
        f"float2 {name};",
        'asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"',
        f'             : "=f"({name}.x), "=f"({name}.y) : "r"(my_columns + column * 4));',
    ]


def epilogue_of_four(form: Form, sums: list[str], epilogue: EpilogueText) -> list[str]:
    """Statements that make `v` of four sums: columns n and n + 1 of rows m[0] and m[1]."""
    lines: list[str] = []
    values: list[list[str]] = [[] for _ in sums]
    for one in epilogue.inputs:
        if one == form.staged:
            lines += column_pair(one.value)
        elif one.place == "column":
            lines.append(f"const float2 {one.value} = pair_at({one.name}, n, N);")
        if one.place == "at":
            lines += [
                f"const float2 {one.value}_{row} = pair_at({one.name} + row_at[{row}] * N, n, N);" for row in (0, 1)
            ]
        for index, known in enumerate(values):
            row, side = index // 2, "xy"[index % 2]
            known.append(
                f"{one.value}_of_row[{row}]"
                if one.place in ("row", "0")
                else f"{one.value}{'' if one.place == 'column' else f'_{row}'}.{side}"
            )
    for index, (sum, known) in enumerate(zip(sums, values, strict=True)):
        kept = kept_sum(form.product, sum, f"m[{index // 2}]", f"(n + {index % 2})")
        lines.append(f"v[{index}] = {epilogue.of(kept, *known)};")
    return lines


def row_values(epilogue: EpilogueText) -> list[str]:
    """Statements that load what rows m[0] and m[1] have one number of each."""
    lines: list[str] = []
    for one in epilogue.inputs:
        if one.place in ("row", "0"):
            places = ("0", "0") if one.place == "0" else ("row_at[0]", "row_at[1]")
            read = ", ".join(f"static_cast<float>({one.name}[{place}])" for place in places)
            lines.append(f"const float {one.value}_of_row[2] = {{{read}}};")
    return lines
