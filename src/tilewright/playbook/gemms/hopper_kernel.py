"""The warp-specialised product of Hopper as text: TMA fills a ring of slots, wgmma empties it, tiles are stored by TMA.

One kernel serves 16-bit operands, and f32 operands that were split into two f16 parts before (`hopper_split`).
"""

from __future__ import annotations

from tilewright.playbook.cpp_text import indented
from tilewright.playbook.gemms.epilogue_text import skipped_tile
from tilewright.playbook.gemms.hopper_consumer import consumer
from tilewright.playbook.gemms.hopper_form import (
    BARRIERS,
    Form,
    kernel,
    kernel_parameters,
    operands,
    tma,
    walk_arguments,
    wgmma,
)
from tilewright.playbook.gemms.hopper_split import (
    NUMBERS,
    SHARE,
    SORTED_MEMBERS,
    SPANS,
    TAKEN,
    TAKING,
    TOLD_LAST,
    sorted_tiles,
    unkept_tiles,
)
from tilewright.playbook.gemms.hopper_store import pack, pair_functions, unpack
from tilewright.playbook.templates import sections

_STREAM_K = sections("gemms/stream_k")


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
        *tma(form.boxes).splitlines(),
        *(NUMBERS.splitlines() if form.sorted else []),
        "",
        *wgmma(widths, form.kind, (along_m, along_n), swizzles).splitlines(),
        "",
    ]
    if form.stored.itemsize == 2:
        pieces += [*pack(form.stored), *(unpack(form.stored) if form.late and form.late_epilogue.function else []), ""]
    if not form.pieces:
        pieces += [*pair_functions(form), *form.epilogue_function]
        pieces += [""] if form.epilogue.function else []
    if form.late:
        return [*pieces, *_STREAM_K["walk"].splitlines(), "", *_kernel(form)]
    return [*pieces, *walk(form), "", *_kernel(form)]


def _constants(form: Form) -> list[str]:
    lines = [
        f"constexpr int BM = 128, BK = {form.depth};  // a tile of the result is BM x BN; a slot holds BK of k",
        "constexpr int A_BYTES = BM * BK * 2, B_BYTES = BN * BK * 2;",
    ]
    if form.parts:
        lines.append("constexpr int SLOT_BYTES = 2 * (A_BYTES + B_BYTES);")
    else:
        lines.append("constexpr int SLOT_BYTES = A_BYTES + B_BYTES;")
    if not (form.product.a.along_k and form.product.b.along_k):
        lines.append("constexpr int BOX_BYTES = BK * 64 * 2;  // of an operand contiguous along m or n: BK rows of 64")
    if form.boxes or not form.tma_store:
        buffers = f", C_BUFFERS = {'2 - LATE' if form.late else '2'}" if form.boxes else ""
        lines.append(f"constexpr int C_BYTES = 64 * 128{buffers};  // per consumer")
    if form.parts:
        lines.append("constexpr int WIDTH = 128;  // columns of one wgmma")
    registers = ("LATE ? 24 : 40", "LATE ? 240 : 232") if form.late else ("40", "232")
    lines += [
        f"constexpr int PRODUCER_REGISTERS = {registers[0]}, CONSUMER_REGISTERS = {registers[1]};  // of 64 k for 384",
        f"constexpr int TILE_GROUP = {12 if form.late else 8};  // rows of tiles that are walked together, for L2",
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
        members = ["int tiles_m, tiles_n, batch, all_steps;", *members[1:], *SORTED_MEMBERS]
        first = [first[0], "number = blockIdx.x, this->batch = batch, z = 0;", first[2]]
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
        *indented(SHARE.splitlines() if form.sorted else []),
        "};",
    ]


def _kernel(form: Form) -> list[str]:
    places = form.store_places
    slots_end = "slots + STAGES * SLOT_BYTES"
    after = f"c_buffers + {places} * C_BYTES" if places else slots_end
    body = [
        "extern __shared__ __align__(1024) char shared[];  // swizzled tiles need 1024-byte bases",
        "const uint32_t slots = (uint32_t)__cvta_generic_to_shared(shared);",
    ]
    body += [f"const uint32_t c_buffers = {slots_end};"] if places else []
    if form.of_columns:
        body += [f"const uint32_t columns = {after};"]
        after = f"columns{form.column_bytes}"
    body += [f"const uint32_t full = {after}, empty = full + STAGES * 8;"]
    if form.late:
        body += ["const uint32_t all_left = empty + STAGES * 8;  // told when what others have of a tile can be read"]
    if form.sorted:  # of the tile that begins in a slot
        body += ["const uint32_t steps_of_tiles = empty + STAGES * 8, numbers_of_tiles = steps_of_tiles + STAGES * 4;"]
    body += [
        "const int thread = threadIdx.x % 128, warpgroup = threadIdx.x / 128;  // two consumers, then the producer",
        "if (threadIdx.x == 0) {",
        "  if (slots % 1024) __trap();",
        f"  prefetch(&a_map), prefetch(&b_map){', prefetch(&c_map)' if form.boxes else ''};",
        "  for (int s = 0; s < STAGES; ++s) barrier_init(full + s * 8, 1), barrier_init(empty + s * 8, 2);",
        *(["  barrier_init(all_left, 1);"] if form.late else []),
        '  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");',
        "}",
        "__syncthreads();",
        *(["cudaTriggerProgrammaticLaunchCompletion();", "cudaGridDependencySynchronize();"] if form.parts else []),
        "",
        f"Walk tile({walk_arguments(form)}{', gridDim.x' if form.late else ''});",
        "int slot = 0;",
        "auto advance = [&](uint32_t& parity) {",
        "  if (++slot == STAGES) slot = 0, parity ^= 1;",
        "};",
        "",
        "if (warpgroup == 2) {  // ---- producer",
        *indented(_producer(form)),
        "} else {  // ---- consumers",
        *indented(consumer(form)),
        "}",
    ]
    return kernel("384, 1", "product", kernel_parameters(form), body)


_TURNS = "bool back = true;  // every other tile begins at the end of k: what the one before read last is still in L2"


def _producer(form: Form) -> list[str]:
    dec = 'asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS));'
    k = "tile.k0 + step * BK" if form.pieces else "(first + step) * BK" if form.sorted else "step * BK"
    turns = not form.parts and not form.pieces
    turned = "back ? tile.steps - 1 - step : step"
    k = f"(tile.first + ({turned})) * BK" if form.late else f"({turned}) * BK" if turns else k
    rest = ["else if (threadIdx.x >= 288) {", *indented(unkept_tiles(form)), "}"] if form.sorted else []
    told = [
        "if (step == 0) {",
        "  store_number(steps_of_tiles + slot * 4, tile.steps);",
        "  store_number(numbers_of_tiles + slot * 4, tile.number);",
        "}",
    ]
    tiles = [
        *(TAKING.splitlines() if form.sorted else []),
        "while (tile.next()) {",
        *indented(["back = !back;"] if turns else []),
        *indented(SPANS.splitlines() if form.sorted else []),
        "  rolled for (int step = 0; step < tile.steps; ++step) {",
        f"    const int k = {k};",
        "    const uint32_t at = slots + slot * SLOT_BYTES, arrived = full + slot * 8;",
        "    barrier_wait(empty + slot * 8, parity);",
        *indented(told if form.sorted else [], 2),
        "    barrier_arrive_expecting(arrived, SLOT_BYTES);",
        *indented(_loads(form), 2),
        "    advance(parity);",
        "  }",
        *indented(TAKEN.splitlines() if form.sorted else []),
        "}",
        *(TOLD_LAST.splitlines() if form.sorted else []),
    ]
    return [
        dec,
        "if (threadIdx.x == 256) {",
        '  uint32_t parity = 1;  // the phase "before the first": a fresh barrier counts as just completed',
        *indented([_TURNS] if turns else []),
        *indented(tiles),
        *indented(_STREAM_K["wait_for_others"].splitlines() if form.late else []),
        "}",
        *rest,
    ]


def _loads(form: Form) -> list[str]:
    """Statements that have TMA fill a slot."""
    of_operands = operand_loads(form)
    b_at = f"const uint32_t b_at = at + {'2 * ' if form.parts else ''}A_BYTES;"
    if not form.parts:
        return [b_at, *of_operands["a"], *of_operands["b"]]
    both = [*of_operands["a"], b_at, *of_operands["b"]]
    return ["#pragma unroll", "for (int part = 0; part < 2; ++part) {", *indented(both), "}"]


def operand_loads(form: Form) -> dict[str, list[str]]:
    """Statements that have TMA bring what an operand, or `part` of it, has for `tile` from `k` on to `at` or `b_at`."""
    z_of = {name: "tile.z" if one.batch_pitch.expression != "0" else "0" for name, one in operands(form).items()}
    batches = {name: "batch" if z != "0" else "1" for name, z in z_of.items()}
    of_operands: dict[str, list[str]] = {}
    for name, one in operands(form).items():
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
                f"unrolled for (int box = 0; box < {size} / 64; ++box)",
                f"  load_box(&{name}_map, arrived, {start} + box * BOX_BYTES, {rows} + box * 64, k, {z});",
            ]
    return of_operands
