"""Split-f32 inside the GEMM, and GEMMs of a short k."""

from __future__ import annotations

from tilewright.playbook.cpp_text import indented, worded
from tilewright.playbook.gemms.hopper_consumer import slot_descriptors, slot_steps
from tilewright.playbook.gemms.hopper_form import (
    BARRIERS,
    SHOW,
    Form,
    kernel,
    kernel_parameters,
    matrix_text,
    tma,
    walk_arguments,
    wgmma,
)
from tilewright.playbook.gemms.hopper_kernel import operand_loads, walk
from tilewright.playbook.gemms.hopper_split import NUMBERS
from tilewright.playbook.gemms.hopper_store import epilogue_lines, epilogue_of_all, pack, pair_functions
from tilewright.playbook.templates import sections
from tilewright.records import DType

_CUDA = sections("gemms/hopper_fused")

_SCALES = "const float row_scale[2] = {1.f / scale[0], 1.f / scale[1]};"


def _taken(number: str) -> str:
    """A statement that makes four numbers of a row what is split: `number` with @ for one of them."""
    four = ", ".join(number.replace("@", f"x[r][h].{one}") for one in "xyzw")
    return f"    x[r][h] = make_float4({four});"


# What becomes of a where b is split by this kernel too, in an order of its own; and where b is ready.
_SPLIT_BOTH = {
    "row": _CUDA["split_both_row"],
    "done": "step",
    "and_done": "",
    "which": "which",
    "b_slots": "part_slots",
    "columns": "const uint32_t my_columns = scales;",
    "column_stores": "",
    "read": "shared_float4(from + i / 2 * 8 * 128 + ((i % 2 * 4 + lane % 4) ^ row % 8) * 16)",
    "split_a": _CUDA["find_scales"] + _CUDA["split_a_rows"].replace("@taken", _taken("@ * scale[r]")),
    "of_two_rows": "scale[2] = {}",
    "before": "",
    "row_scales": _SCALES,
    "free_a": """\
  __syncwarp();
  if (lane == 0) barrier_arrive(empty + step % SLOTS * 8);""",
    "b_slot": """\
  barrier_wait(split_done + step % PART_SLOTS * 8, step / PART_SLOTS % 2);
  const uint64_t b_slot = b_slots + (step % PART_SLOTS * 2 * PART_BYTES >> 4);""",
    # Nobody waits for the last slots, and the other block may end.
    "free_b": """\
thread < CLUSTER && step < tile.steps - PART_SLOTS)
      free_parts(used + step % PART_SLOTS * 8, thread, rank)""",
    "done_all": _CUDA["split_both_done_all"],
}
_SPLIT_A = {
    "row": _CUDA["split_a_row"],
    "done": "done",
    "and_done": ", ++done",
    "which": "(long long)tile.z * (tile.tiles_m + tile.tiles_n) + tile.m0 / BM",  # its row's
    "b_slots": "slots + A_BYTES",
    "columns": _CUDA["split_a_columns"],
    "column_stores": """\
unrolled for (int i = 0; i < BN / 128; ++i)
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(my_columns + (thread + i * 128) * 4), "f"(of_column[i]) : "memory");""",
    "read": "two_pairs(from + i / 2 * 8 * 128 + lane % 2 * 8, (i % 2 * 4 + lane % 4 / 2) ^ row % 8)",
    "split_a": _CUDA["split_a_split_a"],
    "free_a": "",
    "b_slot": "  const uint64_t b_slot = b_slots + (done % SLOTS * SLOT_BYTES >> 4);",
    "free_b": "lane == 0) barrier_arrive(empty + done % SLOTS * 8)",
    "done_all": "consumer_sync(consumer);",
    "of_two_rows": "scale[2] = {}",
    "before": "",
    "row_scales": _SCALES,
}
# Where a has scores, and their softmax is multiplied: powers of what is below the greatest of a row, which needs no
# other scale. Rows are divided by the sums of those powers when all is multiplied.
_WEIGHTS = {
    "of_two_rows": "total[2] = {}, most[2]",
    "before": _CUDA["weights_before"],
    "split_a": _CUDA["weights_split_a"]
    + _CUDA["split_a_rows"].replace(
        "@taken",
        _taken("power(@, most[r])") + "\n    total[r] += (x[r][h].x + x[r][h].y) + (x[r][h].z + x[r][h].w);",
    ),
    "row_scales": _CUDA["weights_row_scales"],
}
# The same, where a row of minus infinities has no weights.
_NO_WEIGHTS = {
    "before": _WEIGHTS["before"].replace(
        "  if (m", "  if (most[r] == -INFINITY) most[r] = 0.f;  // so powers are 0\n  if (m"
    ),
    "row_scales": _CUDA["no_weights_row_scales"],
}
POWERS = _CUDA["powers"]


def row_words(form: Form) -> dict[str, str]:
    """What @words of the kernel's text stand for, as the second operand's parts are made, and as rows are scores."""
    weights = {**_WEIGHTS, **(_NO_WEIGHTS if form.product.empty_rows else {})} if form.product.weighs else {}
    return {**(_SPLIT_A if form.ready_b else _SPLIT_BOTH), **weights}


# -- the warpgroups that load slots of f32 and split the second operand in shared memory, as text --
# Blocks with tiles one below the other need the same of the second operand. Two of them make a cluster: each loads
# and splits half of its columns, and copies the parts into the other's shared memory. On an H200 that took 256 x
# 524288 x 256 from 508 to 412 us, and 128 products of 512 x 1024 x 2048 from 1761 to 1521.


SPLITTER = _CUDA["splitter"]

_FROM_N = " + ((first + odd) * OWN + column) * 4"
# The second operand as it lies: what a splitter does with a slot of it. Consumers hold k in an order of their own.
_ALONG_N = {
    "splitters": "128",
    "shares": "OWN / 128",
    "splitter_registers": "56",  # 40 spill: 0.52 against 0.50 ms at 256 x 256 x 524288
    "consumer_registers": "224",
    "k_step": "16 * 128",
    "strides": "BOX_BYTES, 1024, SWIZZLE_128",
    "width": "WIDTH / 64 * BOX_BYTES",
    "scales_at": " + box * 64",
    "scales_by": " && first == 0",
    "scales_of": "64",
    "boxes": "constexpr int BOX_BYTES = BK * 64 * 2;  // of a part: BK rows of 64 columns",
    "place": _CUDA["along_n_place"],
    "from": _FROM_N,
    "share_at": " + box * BOX_BYTES + first * 128",
    "to": " + odd * 128 + ((lane % 16 / 2) ^ odd) * 16 + lane % 2 * 8",
    "scales": _CUDA["along_n_scales"],
    "groups": "2 * SHARES",
    "number": "from + group / 2 * 512 + (group % 2 * 4 + i) * 2 * OWN * 4",
    "split": _CUDA["along_n_split"].replace("@from", _FROM_N),
}
_ALONG_K = {
    "splitters": "CLUSTER > 1 ? 128 : 256",  # alone, 128 take 5 % longer at 128 x 32768 x 32768
    "shares": "OWN / (SPLITTERS / 2)",
    "splitter_registers": "CLUSTER > 1 ? 56 : 40",
    "consumer_registers": "CLUSTER > 1 ? 224 : 216",
    "k_step": "32",
    "strides": "16, 8 * BK * 2, SWIZZLE_64",
    "width": "WIDTH * BK * 2",
    "boxes": "",
    "scales_at": " + warp * 16 * SHARES",
    "scales_by": "",
    "scales_of": "16 * SHARES",
    "place": _CUDA["along_k_place"],
    "from": " + column * BK * 4 + (column % 8 ^ half * 4) * 16",
    "share_at": " + warp * SHARE_BYTES",
    "to": " + lane / 2 * BK * 2 + (column / 2 % 4 ^ half * 2) * 16",
    "scales": _CUDA["along_k_scales"],
    "groups": "SHARES",
    "number": "(from ^ i * 16) + group * 16 * BK * 4",
    "split": _CUDA["along_k_split"],
}


def splitter_words(form: Form) -> dict[str, str]:
    """What @words of the kernel's text stand for, as the second operand lies."""
    along_k = form.product.b.along_k
    k = "tile.k0 + step * BK" if form.pieces else "step * BK"
    n = "tile.n0 + rank * OWN"
    words = _ALONG_K if along_k else _ALONG_N
    return {**words, "along": k, "b_place": f"{k}, {n}" if along_k else f"{n}, {k}"}


def splitter_functions(form: Form) -> str:
    """What the splitters call."""
    return _CUDA["pair"] + (_CUDA["store_four"] if form.product.b.along_k else _CUDA["store_pair"])


# A product of f32 matrices whose operands are split into f16 parts by the kernel that multiplies them, as text.
# Nothing is written but the result: each operand is read once by every tile that it meets. That is what counts where
# operands are large beside the work on them: k is long and the results are few, or matrices of a batch are small.
# The scale of a row is found from the first 32 of k, with room above; whatever turns out not to fit it is left to
# f32. Splitting the second operand is what takes longest there, so two blocks of a cluster share it
# (`hopper_splitters`).  Where the second operand is small beside the first, its parts are made before
# (`hopper_split`), and only the first is split here, in registers, where a row that outgrows its room is scaled
# anew; and blocks take tile after tile.


PART_SLOTS = 2
_REST = PART_SLOTS * 2 * 256 * 32 * 2 + (128 + 256) * 12 + 256 * 4 + 128
SMEM = f"(4 * (128 + 128) if CLUSTER == 2 else 3 * (128 + 256)) * 32 * 4 + {_REST}"  # slots, and the rest
READY_SLOTS = 4
READY_SMEM_BYTES = READY_SLOTS * (128 + 256) * 32 * 4 + 128 * 12 + 2 * 256 * 4 + READY_SLOTS * 16

_CONSTANTS = f"""\
constexpr int BM = 128, BN = 256, BK = 32;  // a tile of the result is BM x BN; a slot holds BK of k
constexpr int SPLITTERS = @splitters;  // threads
constexpr int OWN = BN / CLUSTER, SHARES = @shares;  // columns that the block splits, a share of them at a time
constexpr int A_BYTES = BM * BK * 4, B_BYTES = OWN * BK * 4, SLOT_BYTES = A_BYTES + B_BYTES;  // f32
constexpr int SLOTS = CLUSTER > 1 ? 4 : 3;
constexpr int PART_BYTES = BN * BK * 2, PART_SLOTS = {PART_SLOTS};  // b as two f16 parts; a is split in registers
@boxes
constexpr int WIDTH = 128;  // columns of one wgmma
constexpr int SHARE_BYTES = PART_BYTES / CLUSTER / (SPLITTERS / 32);  // what a warp splits of a part
constexpr int SPLITTER_REGISTERS = @splitter_registers, CONSUMER_REGISTERS = @consumer_registers;
constexpr int TILE_GROUP = 8;  // rows of tiles walked together, so that blocks share operands in L2
"""

_READY_CONSTANTS = f"""\
constexpr int BM = 128, BN = 256, BK = 32;  // a tile of the result is BM x BN; a slot holds BK of k
constexpr int A_BYTES = BM * BK * 4, PART_BYTES = BN * BK * 2;  // a is f32, split in registers; b is two f16 parts
constexpr int SLOT_BYTES = A_BYTES + 2 * PART_BYTES, SLOTS = {READY_SLOTS};
@boxes
constexpr int WIDTH = 128;  // columns of one wgmma
constexpr int PRODUCER_REGISTERS = 40, CONSUMER_REGISTERS = 232;
constexpr int TILE_GROUP = 8;  // rows of tiles walked together, so that blocks share operands in L2
"""


_LOAD_B = {
    True: "        load_box(&b_map, arrived, to, step * BK, tile.n0, part * batch + tile.z);",
    False: """\
        unrolled for (int box = 0; box < BN / 64; ++box)
          load_box(&b_map, arrived, to + box * BOX_BYTES, tile.n0 + box * 64, step * BK, part * batch + tile.z);""",
}


def fused_threads(form: Form) -> str:
    """Of a block: two warpgroups that multiply, and those that split the second operand, or load."""
    return "(384 if CLUSTER == 2 else 512)" if form.product.b.along_k and not form.ready_b else "384"


def fused_text(form: Form) -> list[str]:
    """All of the file's code that the product itself needs."""
    along_k = form.product.b.along_k
    code = [*_worded(form, _READY_CONSTANTS if form.ready_b else _CONSTANTS), "", *BARRIERS.splitlines()]
    code += [*tma(boxes=False).splitlines(), *(() if form.ready_b else SHOW.splitlines()), ""]
    swizzles = (64,) if along_k else (128,)
    code += [*wgmma((128,), "f16", (False, not along_k), swizzles, in_registers=True).splitlines(), ""]
    splitting = _CUDA["splitting"] + (
        _CUDA["beyond"] + _CUDA["two_pairs"] if form.ready_b else _CUDA["shared_float4"] + splitter_functions(form)
    )
    splitting += POWERS if form.product.weighs else ""
    code += [*pack(DType.F16), *("" if form.ready_b else _CUDA["magnitude"]).splitlines(), *splitting.splitlines(), ""]
    if not form.pieces:
        code += [*pair_functions(form), *form.epilogue_function, ""]
    return [*code, *walk(form), "", *_kernel(form)]


def _worded(form: Form, text: str) -> list[str]:
    """A text in which @word stands for what depends on how the second operand lies, and where it is split."""
    words = {**splitter_words(form), **row_words(form), "load_b": _LOAD_B[form.product.b.along_k]}
    return [line for line in worded(text, words).splitlines() if line]


def _kernel(form: Form) -> list[str]:
    ready = form.ready_b
    who = "producer" if ready else "splitters: load slots, and split b"
    tile = [
        *_worded(form, _CUDA["tile"]),
        *epilogue_lines(form),
        *([] if ready else ["__syncwarp();", "cluster_wait();"]),
    ]
    body = [
        "extern __shared__ __align__(1024) char shared[];  // swizzled tiles need 1024-byte bases",
        "const uint32_t slots = (uint32_t)__cvta_generic_to_shared(shared);",
        *(_CUDA["ready_places"] if ready else _CUDA["places"]).splitlines(),
        "const int thread = threadIdx.x % 128, warpgroup = threadIdx.x / 128;  // two consumers, then the others",
        "if (threadIdx.x == 0) {",
        "  if (slots % 1024) __trap();",
        "  prefetch(&a_map), prefetch(&b_map);",
        *(_CUDA["ready_barriers"] if ready else _CUDA["barriers_of_splitters"]).splitlines(),
        '  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");',
        "}",
        *(["__syncthreads();"] if ready else _CUDA["start"].splitlines()),
        "cudaTriggerProgrammaticLaunchCompletion();",
        *(["cudaGridDependencySynchronize();"] if ready else []),
        f"Walk tile({walk_arguments(form)});",
        *([] if ready else _only_tile(form)),
        "",
        f"if (warpgroup >= 2) {{  // ---- {who}",
        *indented(_worded(form, _CUDA["producer"] if ready else SPLITTER)),
        "} else {  // ---- consumers: split a, and multiply",
        *indented([*_worded(form, _CUDA["consumer"]), *(_each_tile(tile) if ready else tile)]),
        "}",
    ]
    return kernel("384, 1" if ready else "256 + SPLITTERS, 1", "product", kernel_parameters(form), body)


def _only_tile(form: Form) -> list[str]:
    """The tile of a block that has one, and the number of its flag."""
    matrix = f"(long long){matrix_text(form)}"
    return [
        "tile.next();",
        f"const long long which = ({matrix} * tile.tiles_m + tile.m0 / BM) * tile.tiles_n + tile.n0 / BN;",
    ]


def _each_tile(tile: list[str]) -> list[str]:
    """What is done for a tile, for one after the other."""
    return ["int done = 0;  // steps, of all tiles", "while (tile.next()) {", *indented(tile), "}"]


# -- a product with a short k as text: both operands become f16 parts in one launch; then storing is the work --
# Each operand is a few megabytes, and two kernels one after the other take longer to begin than to split them: for
# 32768 x 32 times 32 x 32768, of 1,065 us on an H200, one launch saves 16.  The order of the stores decides about
# the rest. Merely storing that result takes 944 us where whoever is ready takes the next tile of a row of tiles, 946
# with strips of two tiles, 962 with four, 1,000 where blocks have their tiles in turns, and more where each stays in
# its columns: what is written at the same time lies the farther apart. But whoever takes single tiles loads the
# more, all of the second operand for each: with all launches it took 1,008 us with strips of two, 1,017 with four
# and 1,022 with single tiles; and 999 with two where the producer's registers go to the consumers. Of k = 64, where
# strips of eight are best, that made 1,117 of 1,136. All that a tile needs, its scales too, comes by TMA before its
# turn.


def short_parameters(form: Form) -> list[tuple[str, str]]:
    """Declarations of the kernel that splits both operands, and what the plan gives for them."""
    pairs: list[tuple[str, str]] = []
    for name, one in (("a", form.product.a), ("b", form.product.b)):
        pairs += [(f"const float* __restrict__ {name}", one.tensor)]
        pairs += [(f"__half* __restrict__ {name}_parts", f"@{name}_parts")]
        pairs += [(f"float* __restrict__ {name}_scales", f"@{name}_scales")]
        pitches = (one.pitch.expression, one.batch_pitch.expression, f"@{name}_pitch")
        names = (f"{name}_pitch", f"{name}_matrix_pitch", f"{name}_parts_pitch")
        pairs += [(f"long long {word}", pitch) for word, pitch in zip(names, pitches, strict=True)]
    pairs += [("int* __restrict__ wide", "@wide")]
    return [*pairs, *((f"int {name}", f"@{name.lower()}") for name in ("M", "N", "K", "batch"))]


def short_text(form: Form) -> list[str]:
    """The kernel that splits both operands, and what it calls."""
    operands = (("a", form.product.a, "M", "tile"), ("b", form.product.b, "N", "(tile - tiles_m)"))
    kinds = {one.along_k for _, one, _, _ in operands}
    text = _CUDA["tiles"] + (_CUDA["rows"] if True in kinds else "") + (_CUDA["columns"] if False in kinds else "")
    body = [
        "cudaTriggerProgrammaticLaunchCompletion();  // what comes next may begin to be launched",
        "const int tiles_m = (M + 127) / 128, tiles = tiles_m + (N + 127) / 128;",
        "const long long tile = blockIdx.x % tiles, z = blockIdx.x / tiles;",
        "bool is_wide;",
    ]
    for name, one, size, number in operands:
        along, outer = ("rows", size) if one.along_k else ("columns", "K")
        step = (f" * {name}_pitch", f" * {name}_parts_pitch") if one.along_k else ("", "")
        body += [
            "if (tile < tiles_m) {" if name == "a" else "} else {",
            f"  const long long first = {number} * 128, high = z * {outer} * {name}_parts_pitch;",
            f"  is_wide = split_128_{along}<{name.upper()}_WIDTH>(",
            f"      {name} + z * {name}_matrix_pitch + first{step[0]}, {name}_pitch,",
            f"      {name}_parts + high + first{step[1]}, (long long)batch * {outer} * {name}_parts_pitch,",
            f"      {name}_parts_pitch, {name}_scales + z * whole_lines({size}) + first, {size} - (int)first, K);",
        ]
    body += [
        "}",
        "const int any_is = __syncthreads_or(is_wide);",
        "if (threadIdx.x == 0) wide[1 + blockIdx.x] = any_is;",
        "if (threadIdx.x == 0 && blockIdx.x == 0) wide[0] = 0;  // tiles that are taken",
    ]
    return [*text.splitlines(), *kernel("256, 4", "split_both", short_parameters(form), body)]


def short_product_text(form: Form) -> list[str]:
    """The product, and what it calls."""
    a, b = form.product.a, form.product.b
    narrow = {one.along_k for one in (a, b)}
    swizzles = tuple(64 if one else 128 for one in sorted(narrow))
    constants = [line for line in _CUDA["constants"].splitlines() if False in narrow or "BOX_BYTES" not in line]
    pieces = [
        *constants,
        "",
        *BARRIERS.splitlines(),
        *tma(boxes=False, rows=True).splitlines(),
        *_CUDA["line"].splitlines(),
        *NUMBERS.splitlines(),
        *_CUDA["scale_at"].splitlines(),
        "",
        *wgmma((128,), form.kind, (not a.along_k, not b.along_k), swizzles).splitlines(),
        "",
        *pair_functions(form),
        *form.epilogue_function,
        *([""] if form.epilogue.function else []),
        *_CUDA["short_tile"].splitlines(),
        "",
    ]
    loads, (a_slots, b_slots), (a_step, b_step) = operand_loads(form), slot_descriptors(form, "kept"), slot_steps(form)
    words: dict[str, str | list[str]] = {
        "producer": _CUDA["short_producer"],
        "loads_of_a": loads["a"],
        "loads_of_b": loads["b"],
        "consumers": _CUDA["short_consumer"],
        "a_slots": a_slots,
        "b_slots": b_slots,
        "a_step": a_step,
        "b_step": b_step,
        "half": "WIDTH * BK * 2" if b.along_k else "WIDTH / 64 * BOX_BYTES",
        "finish": [*epilogue_of_all(form, form.epilogue), *_CUDA["rows_of_results"].splitlines()],
    }
    body = worded(_CUDA["body"], words).splitlines()
    return [*pieces, *kernel("THREADS, 2 / SIDES", "product", kernel_parameters(form), body)]
