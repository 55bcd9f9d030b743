"""What the two consumers of a Hopper product do, as text: multiply what has arrived, and finish and store the sums."""

from __future__ import annotations

from tilewright.playbook.cpp_text import indented
from tilewright.playbook.gemms.hopper_form import Form, matrix_text, operands
from tilewright.playbook.gemms.hopper_split import TOLD, unkept_half
from tilewright.playbook.gemms.hopper_store import epilogue_lines, epilogue_of_some, who_stores
from tilewright.playbook.templates import sections


def consumer(form: Form) -> list[str]:
    inc = 'asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS));'
    a_place, b_place = slot_descriptors(form)
    lines = [
        inc,
        "const int consumer = warpgroup, lane = thread % 32, warp = thread / 32;",
        f"const uint64_t a_slots = {a_place};",
        f"const uint64_t b_slots = {b_place};",
        "auto release = [&](int s) {",
        "  if (thread == 0) barrier_arrive(empty + s * 8);",
        "};",
        "uint32_t parity = 0;",
        *(["uint32_t turn = 0;  // tiles take turns with two places for scales"] if form.parts else []),
    ]
    epilogue = epilogue_lines(form)
    tiles = [
        "while (true) {" if form.sorted else "while (tile.next()) {",
        *indented(TOLD.splitlines() if form.sorted else []),
        *indented(_column_loads(form)),
        *indented(_sums_of_parts(form) if form.parts else _sums(form)),
        *indented(_column_stores(form)),
        "",
        *indented(epilogue),
        "}",
    ]
    if form.late:
        tiles = ["if constexpr (!LATE) {", *indented(tiles), "} else {", *indented(_late_tiles(form)), "}"]
    lines += tiles
    if form.boxes:
        lines.append(f"if ({who_stores(form)}) wait_until_stored();")
    return lines


def slot_descriptors(form: Form, b_at: str = "") -> tuple[str, str]:
    """Where a and b lie in the first slot; `b_at`: b has places of its own."""
    swizzle = "SWIZZLE_64" if form.parts else "SWIZZLE_128"
    first_b = b_at or ("slots + 2 * A_BYTES" if form.parts else "slots + A_BYTES")
    a_place = (
        f"descriptor(slots + consumer * 64 * BK * 2, 16, 8 * BK * 2, {swizzle})"
        if form.product.a.along_k
        else "descriptor(slots + consumer * BOX_BYTES, BOX_BYTES, 1024, SWIZZLE_128)"
    )
    b_place = (
        f"descriptor({first_b}, 16, 8 * BK * 2, {swizzle})"
        if form.product.b.along_k
        else f"descriptor({first_b}, BOX_BYTES, 1024, SWIZZLE_128)"
    )
    return a_place, b_place


def slot_steps(form: Form) -> tuple[str, str]:
    """How far 16 of k lie apart in the descriptors of a and b."""
    a, b = ("32" if one.along_k else "16 * 128" for one in operands(form).values())
    return a, b


def _sums(form: Form) -> list[str]:
    a_step, b_step = slot_steps(form)
    return [
        "float sum[BN / 2] = {};",
        "int before = 0;",
        "for (int step = 0; step < tile.steps; ++step) {",
        "  barrier_wait(full + slot * 8, parity);",
        "  wgmma_fence();",
        "  const uint64_t a_slot = a_slots + (slot * SLOT_BYTES >> 4), b_slot = b_slots + (slot * SLOT_BYTES >> 4);",
        "  unrolled for (int k = 0; k < BK / 16; ++k)",
        f"    wgmma(sum, a_slot + (k * {a_step} >> 4), b_slot + (k * {b_step} >> 4), step > 0 || k > 0);",
        "  wgmma_commit();",
        "  wgmma_wait<1>();  // the products of the step before are done: its slot may be filled again",
        "  if (step > 0) release(before);",
        "  before = slot;",
        "  advance(parity);",
        "}",
        "wgmma_wait<0>();",
        "if (tile.steps > 0) release(before);",
    ]


def _late_tiles(form: Form) -> list[str]:
    """Tile after tile: a tile's sums are rounded, and finished while the next one's first products run."""
    a_step, b_step = slot_steps(form)
    columns = bool(form.of_columns)
    places = "columns + (consumer * 2 + turn) * BN * 4" if columns else "0"
    return [
        "// Threads that finish sums leave the tensor cores idle, unless the next tile's products have begun.",
        "// Registers hold the one's sums and the other's if those have 16 bits.",
        "constexpr int UNDER = BN / 16;  // steps under which a tile is finished",
        "float sum[BN / 2];",
        "uint32_t rounded[BN / 4];",
        *(["uint32_t turn = 0;  // tiles take turns with the places for what columns have"] if columns else []),
        *epilogue_of_some(form),
        "int before = 0;",
        "auto begin = [&](bool first) {  // the products of the next slot",
        "  barrier_wait(full + slot * 8, parity);",
        "  wgmma_fence();",
        "  const uint64_t a_slot = a_slots + (slot * SLOT_BYTES >> 4), b_slot = b_slots + (slot * SLOT_BYTES >> 4);",
        "  unrolled for (int k = 0; k < BK / 16; ++k)",
        f"    wgmma(sum, a_slot + (k * {a_step} >> 4), b_slot + (k * {b_step} >> 4), !first || k > 0);",
        "  wgmma_commit();",
        "};",
        "auto go_on = [&](bool first) {",
        "  wgmma_wait<1>();  // the products of the step before are done: its slot may be filled again",
        "  if (!first) release(before);",
        "  before = slot;",
        "  advance(parity);",
        "};",
        "Walk last = tile;  // whose products are made; `tile` is the next one, if there are more",
        "bool more = tile.next(), unfinished = false;",
        "auto products = [&](int done) {  // of the next tile, of which some are",
        *indented(_column_loads(form)),
        "  rolled for (int step = done; step < tile.steps; ++step) begin(step == 0), go_on(step == 0);",
        "  last = tile, more = tile.next();  // while the last of them run",
        *indented(["turn ^= 1;", *_column_stores(form, late=True), "consumer_sync(consumer);"] if columns else []),
        *indented(_added_columns(form)),
        "  wgmma_wait<0>();",
        "  release(before);",
        *indented(sections("gemms/stream_k")["shared_sums"].splitlines()),
        *indented(_rounding(form)),
        "  unfinished = true;",
        "};",
        "while (true) {",
        "  if (unfinished && more && tile.steps >= UNDER) {",
        "    unrolled for (int i = 0; i < UNDER; ++i) {",
        "      begin(i == 0);",
        f"      finish_some(last, {places}, i);",
        "      go_on(i == 0);",
        "    }",
        "    products(UNDER);",
        "  } else {",
        "    if (unfinished) {",
        f"      unrolled for (int i = 0; i < BN / 16; ++i) finish_some(last, {places}, i);",
        "    }",
        "    if (!more) break;",
        "    products(0);",
        "  }",
        "}",
    ]


def _added_columns(form: Form) -> list[str]:
    """What is added to the tile's columns, in registers that hold rounded sums a little later."""
    if form.epilogue.added is None:
        return []
    name = form.epilogue.added.value
    return [
        f"float2 {name}[BN / 8];",
        "unrolled for (int j = 0; j < BN / 8; ++j)",
        '  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"',
        f'               : "=f"({name}[j].x), "=f"({name}[j].y) : "r"(my_columns + (j * 8 + lane % 4 * 2) * 4));',
    ]


def _rounding(form: Form) -> list[str]:
    """Sums 4j .. 4j+3 of a lane: columns 8j + 2(lane % 4) and the next, of a row and the row 8 below."""
    added = form.epilogue.added
    x, y = (f" + {added.value}[j].{side}" if added else "" for side in "xy")
    return [
        "unrolled for (int j = 0; j < BN / 8; ++j) {",
        f"  rounded[j * 2] = pack(sum[j * 4]{x}, sum[j * 4 + 1]{y});",
        f"  rounded[j * 2 + 1] = pack(sum[j * 4 + 2]{x}, sum[j * 4 + 3]{y});",
        "}",
    ]


def _sums_of_parts(form: Form) -> list[str]:
    a_step, b_step = slot_steps(form)
    half = "WIDTH * BK * 2" if form.product.b.along_k else "WIDTH / 64 * BOX_BYTES"
    return [
        "// low * high + high * low + high * high, the small products first; low * low is below the last bit.",
        "auto products = [&](float (&some)[WIDTH / 2], int half) {",
        "  const uint64_t a_slot = a_slots + (slot * SLOT_BYTES >> 4), b_slot = b_slots + (slot * SLOT_BYTES >> 4);",
        "  wgmma_fence();",
        "  unrolled for (int which = 0; which < 3; ++which)",
        "    unrolled for (int k = 0; k < BK / 16; ++k)",
        f"      wgmma(some, a_slot + (((which == 0) * A_BYTES + k * {a_step}) >> 4),",
        f"            b_slot + (((which == 1) * B_BYTES + half * ({half}) + k * {b_step}) >> 4),",
        "            which > 0 || k > 0);",
        "  wgmma_commit();",
        "  wgmma_wait<0>();",
        "};",
        "// Tensor cores cut off bits where they add, so only BK of k are summed there; the sums are added up in f32",
        "// registers, while the other consumer's products run.",
        "float sum[BN / 2] = {};",
        "for (int step = 0; step < tile.steps; ++step) {",
        "  barrier_wait(full + slot * 8, parity);",
        "  unrolled for (int half = 0; half < BN / WIDTH; ++half) {",
        *indented(unkept_half(form.product) if form.sorted else [], 2),
        "    float some[WIDTH / 2];",
        "    products(some, half);",
        "    if (half == BN / WIDTH - 1) release(slot);",
        "    unrolled for (int i = 0; i < WIDTH / 2; ++i) sum[half * (WIDTH / 2) + i] += some[i];",
        "  }",
        "  advance(parity);",
        "}",
    ]


def _column_loads(form: Form) -> list[str]:
    """What the tile's columns have one number of each, and the scales of its rows."""
    lines: list[str] = []
    if form.parts:
        matrix = matrix_text(form)
        lines += [
            "const int row = warp * 16 + lane / 4;",
            "const int m[2] = {tile.m0 + consumer * 64 + row, tile.m0 + consumer * 64 + row + 8};",
            f"const float* row_scales = a_scales + (size_t){matrix} * M;",
            "const float row_scale[2] = {row_scales[min(m[0], M - 1)], row_scales[min(m[1], M - 1)]};",
        ]
    if not form.of_columns:
        return lines
    return [
        "// On its way while the products run: what the tile's columns have one number of each.",
        *lines,
        "float of_column[(BN + 127) / 128];",
        "unrolled for (int i = 0; i < (BN + 127) / 128; ++i)",
        f"  of_column[i] = {form.of_columns.replace('@n', 'min(tile.n0 + thread + i * 128, N - 1)')};",
    ]


def _column_stores(form: Form, late: bool = False) -> list[str]:
    """The same, for all threads of a consumer."""
    if not form.of_columns:
        return []
    place = "(consumer * 2 + turn)" if form.parts or late else "consumer"
    place = f"columns + {place} * BN * 4"
    stores = [
        "unrolled for (int i = 0; i < (BN + 127) / 128; ++i)",
        "  if (thread + i * 128 < BN)",
        '    asm volatile("st.shared.f32 [%0], %1;"',
        '                 ::"r"(my_columns + (thread + i * 128) * 4), "f"(of_column[i]) : "memory");',
        *(["turn ^= 1;", "consumer_sync(consumer);"] if form.parts else []),
    ]
    return [f"const uint32_t my_columns = {place};", *stores]
