"""The warp-specialised product of Hopper as text: TMA fills a ring of slots, wgmma empties it, tiles are stored by TMA.

One kernel serves 16-bit operands, and f32 operands that were split into two f16 parts before (`hopper_split`).
"""

from __future__ import annotations

from tilewright.playbook.cpp_text import indented
from tilewright.playbook.products.finish_text import skipped_tile
from tilewright.playbook.products.hopper_form import Form, kernel_parameters, matrix_text, signature, walk_arguments
from tilewright.playbook.products.hopper_sorted import (
    NUMBERS,
    SORTED_MEMBERS,
    SPANS,
    STEPS,
    sorted_tiles,
    unkept_half,
    unkept_tiles,
)
from tilewright.playbook.products.hopper_store import epilogue, pack, pair_functions
from tilewright.playbook.products.hopper_text import BARRIERS, tma, wgmma
from tilewright.playbook.products.program import Operand


def device_text(form: Form) -> list[str]:
    """All of the file's code that the product itself needs."""
    along_m, along_n = not form.product.a.along_k, not form.product.b.along_k
    widths = (128,) if form.parts else (64, 128, 192, 256)
    narrow = {one.along_k and form.parts for one in (form.product.a, form.product.b)}
    swizzles = tuple(64 if one else 128 for one in sorted(narrow))
    pieces: list[str] = [
        *_constants(form),
        "",
        *BARRIERS.splitlines(),
        *tma(form.boxes, form.rows).splitlines(),
        *(NUMBERS.splitlines() if form.sorted else []),
        "",
        *wgmma(widths, form.kind, (along_m, along_n), swizzles).splitlines(),
        "",
    ]
    if form.stored.itemsize == 2:
        pieces += [*pack(form.stored), ""]
    if not form.pieces:
        pieces += [*pair_functions(form), *form.finish_function]
        pieces += [""] if form.finish.function else []
    return [*pieces, *walk(form), "", *_kernel(form)]


def _constants(form: Form) -> list[str]:
    lines = [
        f"constexpr int BM = 128, BK = {form.depth};  // a tile of the result is BM x BN; a slot holds BK of k",
        "constexpr int A_BYTES = BM * BK * 2, B_BYTES = BN * BK * 2;",
    ]
    if form.parts:
        lines.append(
            "constexpr int SLOT_BYTES = 2 * (A_BYTES + (KEPT ? 0 : B_BYTES)), KEPT_BYTES = KEPT * 2 * B_BYTES;"
        )
    else:
        lines.append("constexpr int SLOT_BYTES = A_BYTES + B_BYTES;")
    if not (form.product.a.along_k and form.product.b.along_k):
        lines.append("constexpr int BOX_BYTES = BK * 64 * 2;  // of an operand contiguous along m or n: BK rows of 64")
    if form.boxes or not form.tma_store:
        lines.append(f"constexpr int C_BYTES = 64 * 128{', C_BUFFERS = 2' if form.boxes else ''};  // per consumer")
    if form.rows:
        lines.append("constexpr int C_PITCH = BN * 4 + 32, C_BYTES = (BLOCKS - 1) * 8 * C_PITCH;  // eight rows")
    if form.parts:
        lines.append("constexpr int WIDTH = 128;  // columns of one wgmma")
    lines += [
        "constexpr int PRODUCER_REGISTERS = 40, CONSUMER_REGISTERS = 232;  // 128 * 40 + 256 * 232 fit",
        "constexpr int TILE_GROUP = 8;  // rows of tiles walked together, so that blocks share operands in L2",
    ]
    return lines


def walk(form: Form) -> list[str]:
    """The walk over tiles, the same for producer and consumers."""
    given = ["int M", "int N", "int K", "int batch"]
    given += ["int pieces"] if form.pieces else []
    members = ["int tiles_m, tiles_n, job, jobs, all_steps;", "int m0, n0, z, steps;  // of the tile"]
    if form.pieces:
        members += ["int pieces, piece, k0;  // the tile is the sum over a piece of k"]
    count = "(K + BK - 1) / BK"
    first = [
        "tiles_m = (M + BM - 1) / BM, tiles_n = (N + BN - 1) / BN;",
        f"job = blockIdx.x, jobs = tiles_m * tiles_n * batch{' * pieces' if form.pieces else ''};",
        f"all_steps = ({count} + pieces - 1) / pieces;" if form.pieces else f"all_steps = {count};",
    ]
    first += ["this->pieces = pieces;"] if form.pieces else []
    place = [
        "const int tiles = tiles_m * tiles_n, matrix = job / tiles, in_matrix = job % tiles;",
        "const int group = in_matrix / (TILE_GROUP * tiles_n), in_group = in_matrix % (TILE_GROUP * tiles_n);",
        "const int rows = min(TILE_GROUP, tiles_m - group * TILE_GROUP);",
        "const int m_tile = group * TILE_GROUP + in_group % rows, n_tile = in_group / rows;",
        "m0 = m_tile * BM, n0 = n_tile * BN, steps = all_steps;",
    ]
    place += (
        ["z = matrix / pieces, piece = matrix % pieces, k0 = piece * all_steps * BK;"]
        if form.pieces
        else ["z = matrix;"]
    )
    outside = "" if form.fused else skipped_tile(form.product, "BM", "BN")
    if outside:
        place.append(f"if ({outside}) steps = 0;  // nothing of the tile is kept: zeros")
    body = ["if (job >= jobs) return false;", *place, "job += gridDim.x;", "return true;"]
    if form.sorted:
        body = sorted_tiles(form.product)
        members = ["int tiles_m, tiles_n, job, batch, all_steps;", *members[1:], *SORTED_MEMBERS]
        first = [first[0], "job = blockIdx.x, this->batch = batch, z = 0;", first[2]]
    if form.strips:
        members += ["int last;  // of a strip's rows"]
        first += ["if constexpr (KEPT) {", *indented(_STRIP.splitlines()), "}"]
        inside = ["if (m0 >= last) return false;", "m0 += BM, steps = KEPT;"]
        inside += [f"if ({outside}) steps = 0;"] if outside else []
        body = ["if constexpr (KEPT) {", *indented([*inside, "return true;"]), "}", *body]
    return [
        "// The walk over tiles, the same for producer and consumers.",
        "struct Walk {",
        *indented(members),
        f"  __device__ __forceinline__ Walk({', '.join(given)}) {{",
        *indented(first, 2),
        "  }",
        "  __device__ __forceinline__ bool next() {",
        *indented(body, 2),
        "  }",
        "};",
    ]


# The blocks that run together store whole rows of the result, about as they follow each other in memory.
_STRIP = """\
// Short sums: a block takes STRIP tiles one below the other, and neighbouring blocks neighbouring columns of tiles.
const int strips = (tiles_m + STRIP - 1) / STRIP, strip = job / tiles_n % strips * STRIP;
n0 = job % tiles_n * BN, z = job / tiles_n / strips;
m0 = (strip - 1) * BM, last = (min(strip + STRIP, tiles_m) - 1) * BM;
"""


def _kernel(form: Form) -> list[str]:
    bounds = "THREADS, BLOCKS" if form.parts else "384, 1"
    declared = [declaration for declaration, _ in kernel_parameters(form)]
    places = form.store_places
    slots_end = f"slots + STAGES * SLOT_BYTES{' + KEPT_BYTES' if form.parts else ''}"
    after = f"c_buffers + {places} * C_BYTES" if places else slots_end
    body = [
        "extern __shared__ __align__(1024) char shared[];  // swizzled tiles need 1024-byte bases",
        "const uint32_t slots = (uint32_t)__cvta_generic_to_shared(shared);",
    ]
    body += [f"const uint32_t c_buffers = {slots_end};"] if places else []
    if form.of_columns:
        body += [f"const uint32_t columns = {after}, full = columns{form.column_bytes}, empty = full + STAGES * 8;"]
    else:
        body += [f"const uint32_t full = {after}, empty = full + STAGES * 8;"]
    if form.strips:
        body += ["const uint32_t kept = slots + STAGES * SLOT_BYTES, kept_full = empty + STAGES * 8;"]
    if form.sorted:
        body += ["const uint32_t steps_of_tiles = kept_full + 8;  // of the tile that begins in a slot"]
    body += [
        "const int thread = threadIdx.x % 128, warpgroup = threadIdx.x / 128;  // two consumers, then the producer",
        "if (threadIdx.x == 0) {",
        "  if (slots % 1024) __trap();",
        f"  prefetch(&a_map), prefetch(&b_map){', prefetch(&c_map)' if form.boxes else ''};",
        "  for (int s = 0; s < STAGES; ++s) barrier_init(full + s * 8, 1), barrier_init(empty + s * 8, 2);",
        *(["  if constexpr (KEPT) barrier_init(kept_full, 1);"] if form.strips else []),
        '  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");',
        "}",
        "__syncthreads();",
        *(["cudaTriggerProgrammaticLaunchCompletion();", "cudaGridDependencySynchronize();"] if form.parts else []),
        "",
        f"Walk tile({walk_arguments(form)});",
        "int slot = 0;",
        "auto advance = [&](uint32_t& parity) {",
        "  if (++slot == STAGES) slot = 0, parity ^= 1;",
        "};",
        "",
        "if (warpgroup == 2) {  // ---- producer",
        *indented(_producer(form)),
        "} else {  // ---- consumers",
        *indented(_consumer(form)),
        "}",
    ]
    return [*signature(f"__launch_bounds__({bounds}) ", "product", declared), *indented(body), "}"]


def _producer(form: Form) -> list[str]:
    dec = 'asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS));'
    k = "tile.k0 + step * BK" if form.pieces else "(first + step) * BK" if form.sorted else "step * BK"
    lines = [f"if constexpr (BLOCKS == 1) {dec}" if form.parts else dec]
    z_of = {name: "tile.z" if one.batch_pitch.expression != "0" else "0" for name, one in _operands(form).items()}
    batches = {name: "batch" if z != "0" else "1" for name, z in z_of.items()}
    of_operands: dict[str, list[str]] = {}
    for name, one in _operands(form).items():
        rows = "tile.m0" if name == "a" else "tile.n0"
        start = "at" if name == "a" else "b_at"
        start += f" + part * {name.upper()}_BYTES" if form.parts else ""
        z = z_of[name]
        if form.parts:
            z = f"part * {batches[name]} + {z}" if z != "0" else "part"
        if one.along_k:
            of_operands[name] = [f"load_box(&{name}_map, arrived, {start}, k, {rows}, {z});"]
        else:
            size = "BM" if name == "a" else "BN"
            of_operands[name] = [
                "#pragma unroll",
                f"for (int box = 0; box < {size} / 64; ++box)",
                f"  load_box(&{name}_map, arrived, {start} + box * BOX_BYTES, {rows} + box * 64, k, {z});",
            ]
    rest = ["else if (BLOCKS == 1 && threadIdx.x >= 288) {", *indented(unkept_tiles(form)), "}"] if form.sorted else []
    b_at = f"const uint32_t b_at = at + {'2 * ' if form.parts else ''}A_BYTES;"
    if not form.parts:
        loads, first = [b_at, *of_operands["a"], *of_operands["b"]], []
    else:
        each_part = ["#pragma unroll", "for (int part = 0; part < 2; ++part) {"]
        b_loads = [b_at, *of_operands["b"]]
        b_loads = ["if constexpr (!KEPT) {", *indented(b_loads), "}"] if form.strips else b_loads
        loads = [*each_part, *indented([*of_operands["a"], *b_loads]), "}"]
        first = _kept_loads([*each_part, *indented(of_operands["b"]), "}"]) if form.strips else []
    told = ["if (!KEPT && step == 0) store_number(steps_of_tiles + slot * 4, tile.steps);"] if form.sorted else []
    return [
        *lines,
        "if (threadIdx.x == 256) {",
        *indented(first),
        '  uint32_t parity = 1;  // the phase "before the first": a fresh barrier counts as just completed',
        "  while (tile.next()) {",
        *indented(SPANS.splitlines() if form.sorted else [], 2),
        "#pragma unroll 1",
        "    for (int step = 0; step < tile.steps; ++step) {",
        f"      const int k = {k};",
        "      const uint32_t at = slots + slot * SLOT_BYTES, arrived = full + slot * 8;",
        "      barrier_wait(empty + slot * 8, parity);",
        *indented(told, 3),
        "      barrier_arrive_expecting(arrived, SLOT_BYTES);",
        *indented(loads, 3),
        "      advance(parity);",
        "    }",
        "  }",
        "}",
        *rest,
    ]


def _kept_loads(loads: list[str]) -> list[str]:
    """What the second operand has for all tiles of a strip, brought once."""
    return [
        "if constexpr (KEPT) {",
        "  const uint32_t arrived = kept_full;",
        "  barrier_arrive_expecting(arrived, KEPT_BYTES);",
        "#pragma unroll",
        "  for (int step = 0; step < KEPT; ++step) {",
        "    const int k = step * BK;",
        "    const uint32_t b_at = kept + step * 2 * B_BYTES;",
        *indented(loads, 2),
        "  }",
        "}",
    ]


def _operands(form: Form) -> dict[str, Operand]:
    return {"a": form.product.a, "b": form.product.b}


def _consumer(form: Form) -> list[str]:
    inc = 'asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS));'
    swizzle = "SWIZZLE_64" if form.parts else "SWIZZLE_128"
    a, b = form.product.a, form.product.b
    first_b = "slots + 2 * A_BYTES" if form.parts else "slots + A_BYTES"
    first_b = "(KEPT ? kept : slots + 2 * A_BYTES)" if form.strips else first_b
    a_place = (
        f"descriptor(slots + consumer * 64 * BK * 2, 16, 8 * BK * 2, {swizzle})"
        if a.along_k
        else "descriptor(slots + consumer * BOX_BYTES, BOX_BYTES, 1024, SWIZZLE_128)"
    )
    b_place = (
        f"descriptor({first_b}, 16, 8 * BK * 2, {swizzle})"
        if b.along_k
        else f"descriptor({first_b}, BOX_BYTES, 1024, SWIZZLE_128)"
    )
    lines = [
        f"if constexpr (BLOCKS == 1) {inc}" if form.parts else inc,
        "const int consumer = warpgroup, lane = thread % 32, warp = thread / 32;",
        f"const uint64_t a_slots = {a_place};",
        f"const uint64_t b_slots = {b_place};",
        "auto release = [&](int s) {",
        "  if (thread == 0) barrier_arrive(empty + s * 8);",
        "};",
        "uint32_t parity = 0;",
        *(["uint32_t turn = 0;  // tiles take turns with two places for scales"] if form.parts else []),
        *(["if constexpr (KEPT) barrier_wait(kept_full, 0);"] if form.strips else []),
        "while (tile.next()) {",
        *indented(STEPS.splitlines() if form.sorted else []),
        *indented(_column_loads(form)),
        *indented(_sums_of_parts(form) if form.parts else _sums(form)),
        *indented(_column_stores(form)),
        "",
        *indented(epilogue(form)),
        "}",
    ]
    if form.boxes or form.rows:
        lines.append(f"if ({'thread == 0' if form.boxes else 'lane < 8'}) wait_until_stored();")
    return lines


def _steps(form: Form) -> tuple[str, str]:
    """How far 16 of k lie apart in the descriptors of a and b."""
    a, b = ("32" if one.along_k else "16 * 128" for one in _operands(form).values())
    return a, b


def _sums(form: Form) -> list[str]:
    a_step, b_step = _steps(form)
    return [
        "float sum[BN / 2] = {};",
        "int before = 0;",
        "for (int step = 0; step < tile.steps; ++step) {",
        "  barrier_wait(full + slot * 8, parity);",
        "  wgmma_fence();",
        "  const uint64_t a_slot = a_slots + (slot * SLOT_BYTES >> 4), b_slot = b_slots + (slot * SLOT_BYTES >> 4);",
        "#pragma unroll",
        "  for (int k = 0; k < BK / 16; ++k)",
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


def _sums_of_parts(form: Form) -> list[str]:
    a_step, b_step = _steps(form)
    half = "WIDTH * BK * 2" if form.product.b.along_k else "WIDTH / 64 * BOX_BYTES"
    return [
        "// low * high + high * low + high * high, the small products first; low * low is below the last bit.",
        "auto products = [&](float (&some)[WIDTH / 2], int half, int step, bool add) {",
        "  const uint64_t a_slot = a_slots + (slot * SLOT_BYTES >> 4);",
        "  const uint64_t b_slot = b_slots + ((KEPT ? step * 2 * B_BYTES : slot * SLOT_BYTES) >> 4);",
        "  wgmma_fence();",
        "#pragma unroll",
        "  for (int which = 0; which < 3; ++which)",
        "#pragma unroll",
        "    for (int k = 0; k < BK / 16; ++k)",
        f"      wgmma(some, a_slot + (((which == 0) * A_BYTES + k * {a_step}) >> 4),",
        f"            b_slot + (((which == 1) * B_BYTES + half * ({half}) + k * {b_step}) >> 4),",
        "            add || which > 0 || k > 0);",
        "  wgmma_commit();",
        "  wgmma_wait<0>();",
        "};",
        "// Tensor cores cut off bits where they add, so where k is long only BK of it are summed there; the sums are",
        "// added up in f32 registers, while the other consumer's products run.",
        "float sum[BN / 2] = {};",
        "for (int step = 0; step < tile.steps; ++step) {",
        "  barrier_wait(full + slot * 8, parity);",
        "  if constexpr (BLOCKS > 1) {",
        "    products(reinterpret_cast<float (&)[WIDTH / 2]>(sum), 0, step, step > 0);  // all of it: BN is WIDTH then",
        "    release(slot);",
        "  } else {",
        "#pragma unroll",
        "    for (int half = 0; half < BN / WIDTH; ++half) {",
        *indented(unkept_half(form.product) if form.sorted else [], 3),
        "      float some[WIDTH / 2];",
        "      products(some, half, step, false);",
        "      if (half == BN / WIDTH - 1) release(slot);",
        "#pragma unroll",
        "      for (int i = 0; i < WIDTH / 2; ++i) sum[half * (WIDTH / 2) + i] += some[i];",
        "    }",
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
        "#pragma unroll",
        "for (int i = 0; i < (BN + 127) / 128; ++i)",
        f"  of_column[i] = {form.of_columns.replace('@n', 'min(tile.n0 + thread + i * 128, N - 1)')};",
    ]


def _column_stores(form: Form) -> list[str]:
    """The same, for all threads of a consumer."""
    if not form.of_columns:
        return []
    place = "(consumer * 2 + turn)" if form.parts else "consumer"
    return [
        f"const uint32_t my_columns = columns + {place} * BN * 4;",
        "#pragma unroll",
        "for (int i = 0; i < (BN + 127) / 128; ++i)",
        "  if (thread + i * 128 < BN)",
        '    asm volatile("st.shared.f32 [%0], %1;"',
        '                 ::"r"(my_columns + (thread + i * 128) * 4), "f"(of_column[i]) : "memory");',
        *(["turn ^= 1;", "consumer_sync(consumer);"] if form.parts else []),
    ]
