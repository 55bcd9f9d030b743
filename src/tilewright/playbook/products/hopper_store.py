"""From the sums in registers to the result, as text: finished, put in order in shared memory, and stored by TMA."""

from __future__ import annotations

import re

from tilewright.playbook.cpp_text import indented
from tilewright.playbook.products.hopper_finish import column_pair, finish_of_four, row_values
from tilewright.playbook.products.hopper_form import Form, matrix_text
from tilewright.records import DType


def epilogue(form: Form) -> list[str]:
    four = _four(form)
    text = "\n".join(four)
    lines = ["// Sums 4j .. 4j+3 of a lane: columns 8j + 2(lane % 4) and the next, of rows `row` and `row` + 8."]
    of_rows = [] if form.pieces else row_values(form.finish)
    needs_rows = "row_at" in text or "row_at" in "\n".join(of_rows)
    needs_m = "m[" in text or needs_rows or form.split_before
    if not form.fused and (needs_m or form.stored.itemsize == 4 or not form.tma_store):
        lines.append("const int row = warp * 16 + lane / 4;")
    if needs_m:
        lines.append("const int m[2] = {tile.m0 + consumer * 64 + row, tile.m0 + consumer * 64 + row + 8};")
    if needs_rows:
        copy = "(size_t)(tile.piece * batch + tile.z)" if form.pieces else "(size_t)tile.z"
        places = ", ".join(f"{copy} * M + min(m[{row}], M - 1)" for row in range(2))
        lines.append(f"const size_t row_at[2] = {{{places}}};")
    lines += of_rows
    if form.split_before:
        lines.append(f"const float* row_scales = a_scales + (size_t){matrix_text(form)} * M;")
        lines.append("const float row_scale[2] = {row_scales[min(m[0], M - 1)], row_scales[min(m[1], M - 1)]};")
    lines += ["auto four = [&](const float* s, int column, float (&v)[4]) {", *indented(four), "};"]
    if not form.tma_store:
        return [*lines, *_plain_store(form)]
    return [*lines, *(_store_16_bit() if form.stored.itemsize == 2 else _store_f32(form))]


def _four(form: Form) -> list[str]:
    """The body of the function that makes four results of four sums."""
    lines: list[str] = []
    values = [f"s[{index}]" for index in range(4)]
    if form.parts:
        lines += column_pair("scale", "my_scales")
        values = [f"s[{index}] * (row_scale[{index // 2}] * scale.{'xy'[index % 2]})" for index in range(4)]
    if form.pieces:
        made = [f"v[{index}] = {value};" for index, value in enumerate(values)]
    else:
        made = finish_of_four(form, values)
    if re.search(r"\bn\b", "".join(made)):
        lines.append("const int n = tile.n0 + column;")
    return [*lines, *made]


def _z_of_store(form: Form) -> str:
    return "tile.piece * batch + tile.z" if form.pieces else "tile.z"


def _store_f32(form: Form) -> list[str]:
    return [
        "const uint32_t buffers = c_buffers + consumer * C_BUFFERS * C_BYTES;",
        "#pragma unroll",
        "for (int q = 0; q < BN / 32; ++q) {  // 32 columns at a time: rows of 128 bytes, swizzled as TMA expects",
        "  const uint32_t buffer = buffers + q % C_BUFFERS * C_BYTES;",
        "  if (thread == 0) wait_until_read<C_BUFFERS - 1>();",
        "  consumer_sync(consumer);",
        *indented(_to_buffer()),
        "  show_to_tma();",
        "  consumer_sync(consumer);",
        "  if (thread == 0)",
        f"    store_box(&c_map, buffer, tile.n0 + q * 32, tile.m0 + consumer * 64, {_z_of_store(form)});",
        "}",
    ]


def _store_16_bit() -> list[str]:
    return [
        "const uint32_t buffers = c_buffers + consumer * C_BUFFERS * C_BYTES;",
        "const int to_row = warp * 16 + lane % 16;  // the row whose place this lane gives to stmatrix",
        "#pragma unroll",
        "for (int q = 0; q < BN / 64; ++q) {  // 64 columns at a time: rows of 128 bytes, swizzled as TMA expects",
        "  const uint32_t buffer = buffers + q % C_BUFFERS * C_BYTES;",
        "  if (thread == 0) wait_until_read<C_BUFFERS - 1>();",
        "  consumer_sync(consumer);",
        "#pragma unroll",
        "  for (int j = 0; j < 4; ++j) {",
        "    float v[4], w[4];",
        "    four(sum + q * 32 + j * 8, q * 64 + j * 16 + lane % 4 * 2, v);",
        "    four(sum + q * 32 + j * 8 + 4, q * 64 + j * 16 + lane % 4 * 2 + 8, w);",
        "    const uint32_t to = buffer + to_row * 128 + ((j * 2 + lane / 16) ^ to_row % 8) * 16;",
        '    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"',
        '                 ::"r"(to), "r"(pack(v[0], v[1])), "r"(pack(v[2], v[3])), "r"(pack(w[0], w[1])),',
        '                   "r"(pack(w[2], w[3])) : "memory");',
        "  }",
        "  show_to_tma();",
        "  consumer_sync(consumer);",
        "  if (thread == 0) store_box(&c_map, buffer, tile.n0 + q * 64, tile.m0 + consumer * 64, tile.z);",
        "}",
    ]


def _plain_store(form: Form) -> list[str]:
    cast = "" if form.stored is DType.F32 else f"({form.stored.cpp})"
    copy = "(tile.piece * batch + tile.z)" if form.pieces else "tile.z"
    return [
        *(["consumer_sync(consumer);"] if form.parts else []),
        "const uint32_t buffer = c_buffers + consumer * C_BYTES;",
        "#pragma unroll",
        "for (int q = 0; q < BN / 32; ++q) {  // 32 columns at a time, put in order in the warp's rows of the buffer",
        "  __syncwarp();",
        *indented(_to_buffer()),
        "  __syncwarp();",
        "  const int n_of_lane = tile.n0 + q * 32 + lane;",
        "#pragma unroll",
        "  for (int r = warp * 16; r < warp * 16 + 16; ++r) {",
        "    float value;",
        "    const uint32_t from = buffer + r * 128 + ((lane / 4) ^ r % 8) * 16 + lane % 4 * 4;",
        '    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(from) : "memory");',
        "    const int m_of_row = tile.m0 + consumer * 64 + r;",
        "    if (m_of_row < M && n_of_lane < N)",
        f"      c[((size_t){copy} * M + m_of_row) * N + n_of_lane] = {cast}value;",
        "  }",
        "}",
    ]


def _to_buffer() -> list[str]:
    """64 rows of 32 results, 128 bytes each, swizzled so that lanes meet all banks."""
    return [
        "#pragma unroll",
        "for (int j = 0; j < 4; ++j) {",
        "  float v[4];",
        "  four(sum + q * 16 + j * 4, q * 32 + j * 8 + lane % 4 * 2, v);",
        "  const uint32_t to = buffer + row * 128 + ((j * 2 + lane % 4 / 2) ^ row % 8) * 16 + lane % 2 * 8;",
        '  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(v[0]), "f"(v[1]) : "memory");',
        '  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to + 8 * 128), "f"(v[2]), "f"(v[3]) : "memory");',
        "}",
    ]


def pack(dtype: DType) -> list[str]:
    kind = "f16" if dtype is DType.F16 else "bf16"
    return [
        "__device__ __forceinline__ uint32_t pack(float low, float high) {",
        f'  uint32_t r; asm("cvt.rn.{kind}x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low)); return r;',
        "}",
    ]
