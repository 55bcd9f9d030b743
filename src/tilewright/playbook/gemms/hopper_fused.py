"""A product of f32 matrices whose operands are split into f16 parts by the kernel that multiplies them, as text.

Nothing is written but the result: each operand is read once by every tile that it meets. That is what counts where
operands are large beside the work on them: k is long and the results are few, or matrices of a batch are small. The
scale of a row is found from the first 32 of k, with room above; whatever turns out not to fit it is left to f32.
Splitting the second operand is what takes longest there, so two blocks of a cluster share it (`hopper_splitters`).

Where the second operand is small beside the first, its parts are made before (`hopper_split`), and only the first is
split here, in registers, where a row that outgrows its room is scaled anew; and blocks take tile after tile.
"""

from __future__ import annotations

from tilewright.playbook.cpp_text import indented, worded
from tilewright.playbook.gemms.hopper_form import Form, kernel, kernel_parameters, matrix_text, walk_arguments
from tilewright.playbook.gemms.hopper_kernel import walk
from tilewright.playbook.gemms.hopper_rows import POWERS, row_words
from tilewright.playbook.gemms.hopper_splitters import SPLITTER, splitter_functions, splitter_words
from tilewright.playbook.gemms.hopper_store import epilogue, pack, pair_functions
from tilewright.playbook.gemms.hopper_text import BARRIERS, SHOW, tma, wgmma
from tilewright.playbook.templates import sections
from tilewright.records import DType

_CUDA = sections("gemms/hopper_fused")

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
        code += [*pair_functions(form), *form.finish_function, ""]
    return [*code, *walk(form), "", *_kernel(form)]


def _worded(form: Form, text: str) -> list[str]:
    """A text in which @word stands for what depends on how the second operand lies, and where it is split."""
    words = {**splitter_words(form), **row_words(form), "load_b": _LOAD_B[form.product.b.along_k]}
    return [line for line in worded(text, words).splitlines() if line]


def _kernel(form: Form) -> list[str]:
    ready = form.ready_b
    who = "producer" if ready else "splitters: load slots, and split b"
    tile = [*_worded(form, _CUDA["tile"]), *epilogue(form), *([] if ready else ["__syncwarp();", "cluster_wait();"])]
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
