"""Products on the tensor cores of any GPU since Ampere: tiles brought by asynchronous copies, mma.sync on fragments.

Elements of 16 bits are multiplied as they are. f32 elements are rounded to TF32 where the task permits it; else each is
two TF32 numbers, three products of which give what f32 arithmetic gives.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.playbook.cpp_text import indented, worded
from tilewright.playbook.file_text import Fragment
from tilewright.playbook.gemms.epilogue_text import skipped_tile
from tilewright.playbook.gemms.plan_text import TILE_GROUP, Choices, ProductText
from tilewright.playbook.gemms.program import Gemm, Operand
from tilewright.playbook.gemms.tiles import PACK, PIECES_HEADER, finished_store, kernels_of_tiles, partial_store
from tilewright.playbook.templates import sections
from tilewright.records import DType

_CUDA = sections("gemms/tensor_cores")

_LEAST_PIECE = 512  # of k

ASYNC_COPY = _CUDA["async_copy"]
TILE_COPY = _CUDA["tile_copy"]


_INSTRUCTIONS = {
    DType.F16: "m16n8k16.row.col.f32.f16.f16.f32",
    DType.BF16: "m16n8k16.row.col.f32.bf16.bf16.f32",
    DType.F32: "m16n8k8.row.col.f32.tf32.tf32.f32",
}


EXACT_SUMS = (
    "\n\nEvery f32 is two TF32 numbers, a big and a small part, and three products of parts give what f32 arithmetic "
    "gives. A tensor core cuts bits off when it adds, so sums of BK products are added up in f32 outside it."
)

EXACT_HEADER = """
Every f32 is two TF32 numbers, a big and a small part, and three products of parts give what f32 arithmetic gives.
"""

EXACT_MMA = _CUDA["exact_mma"]


@dataclass(frozen=True)
class Side:
    """An operand in the kernel's text."""

    name: str  # a or b
    rows: str  # its axis beside k: m or n
    tile_rows: str  # BM or BN
    operand: Operand

    @property
    def upper(self) -> str:
        return self.name.upper()

    @property
    def lines(self) -> tuple[str, str]:
        """A tile's lines and their lengths."""
        return (self.tile_rows, "BK") if self.operand.along_k else ("BK", self.tile_rows)

    def copy_type(self) -> str:
        """The alias of its copy. Fragments of f32 are read element by element, down the lines where k is not inner."""
        wide = self.operand.dtype is DType.F32 and not self.operand.along_k
        pad = "8" if wide or self.operand.dtype is not DType.F32 else "4"
        lines, inner = self.lines
        return f"using {self.upper}Copy = TileCopy<{lines}, {inner}, {pad}, {self.upper}_WIDTH>;"

    def start(self, tile: str, k0: str) -> str:
        row = f"{self.rows}0"
        if self.operand.along_k:
            return f"{self.upper}Copy::start({tile}, {self.name}, {self.name}_pitch, {row}, {k0}, {self.rows}, k_end);"
        return f"{self.upper}Copy::start({tile}, {self.name}, {self.name}_pitch, {k0}, {row}, k_end, {self.rows});"

    def element(self, tile: str, row: str, k: str) -> str:
        line, inner = (row, k) if self.operand.along_k else (k, row)
        return f"{tile}[({line}) * {self.upper}Copy::PITCH + {inner}]"


def tensor_core_product(product: Gemm, op_line: str, pieces: bool = False, choices: Choices = Choices.ALL) -> Fragment:
    """BM x BN tiles of sums by warps that share it as a grid; STAGES steps along k are under way at once."""
    text = ProductText(product, op_line, choices=choices)
    plan, element = text.plan, product.element
    wide = element is DType.F32
    sides = (Side("a", "m", "BM", product.a), Side("b", "n", "BN", product.b))
    plan.add("need", "device.cc >= 80")
    text.tile("BM", (128, 64), "rows and columns of a tile")
    text.tile("BN", (128, 64) if wide else (128, 64, 256))
    plan.add("let", f"@tiles = ceil_div(@m, BM) * ceil_div(@n, BN){text.matrices}")
    _tile_needs(text, pieces)
    text.tune("BK", (32,) if wide else (32, 64))
    text.tune("STAGES", (3, 2, 4), "steps along k under way at once")
    for side, inner in zip(sides, (product.m, product.n), strict=True):
        text.width(
            f"{side.upper}_WIDTH", side.operand, product.k if side.operand.along_k else inner, 16 // element.itemsize
        )
    plan.add("const", "C_WIDTH = 2 if @n % 2 == 0 else 1, WARPS_N = 4 if BN >= 128 else 2")
    elements = f"({_tile_elements(sides[0])} + {_tile_elements(sides[1])})"
    plan.add("let", f"@shared_bytes = STAGES * {elements} * {element.itemsize}")
    plan.add("need", "@shared_bytes <= device.smem_block")

    name, body = f"{text.name}_tensor_cores", _body(text, sides, pieces)
    kernels = kernels_of_tiles(text, name, "64 * WARPS_N, @shared_bytes", body, pieces)
    return text.fragment(
        _header(text, pieces),
        _constants(text),
        [PACK],
        [ASYNC_COPY],
        [TILE_COPY],
        [sides[0].copy_type(), sides[1].copy_type()],
        *fragment_pieces(element, product.is_strict),
        text.epilogue.function,
        *kernels,
    )


def fragment_pieces(element: DType, strict: bool, rounded: bool = False) -> list[list[str]]:
    """What brings fragments to registers, and what multiplies them. `rounded`: a's elements are TF32 numbers."""
    wide = element is DType.F32
    pieces = [[_CUDA["load_matrices"]]] if not wide or rounded else []
    pieces += [[_CUDA["round"]], *([[_CUDA["split"]]] if strict else [])] if wide else []
    instruction = _CUDA["mma"].replace("INSTRUCTION", _INSTRUCTIONS[element]).replace("STEP", "8" if wide else "16")
    return [*pieces, [instruction]]


def exact_step(steps: str, b_place: str) -> list[str]:
    """f32 operands as two TF32 parts: eight of k at a time, from a_lane, whose rows lie A_PITCH apart, and b_lane."""
    return _CUDA["exact_step"].replace("STEPS", steps).replace("B_PLACE", b_place).splitlines()


def _tile_needs(text: ProductText, pieces: bool) -> None:
    smallest = "(BM == 64 and BN == 64)"
    remark = "smaller tiles where large ones are few"
    if not pieces:
        text.plan.add("need", f"@tiles >= device.sms or {smallest}", remark)
        return
    text.plan.add("tune", "PIECES = 64 | 32 | 16 | 8 | 4 | 2 | 1", "that k is cut into")
    text.plan.add("need", f"@tiles * PIECES >= device.sms or {smallest}", remark)
    rule = f"@tiles * PIECES <= 4 * device.sms and @k / PIECES >= {_LEAST_PIECE}"
    text.plan.add("need", f"PIECES == 1 or ({rule})")


def _tile_elements(side: Side) -> str:
    lines, inner = side.lines
    pad = side.copy_type().split(", ")[2]
    return f"{lines} * ({inner} + {pad})"


def _constants(text: ProductText) -> list[str]:
    step = 8 if text.product.element is DType.F32 else 16
    return [
        f"using Element = {text.product.element.cpp};",
        "constexpr int WARPS_M = 2, THREADS = WARPS_M * WARPS_N * 32, WARP_M = BM / WARPS_M, WARP_N = BN / WARPS_N;",
        f"constexpr int BLOCKS_M = WARP_M / 16, BLOCKS_N = WARP_N / 8, STEPS_K = BK / {step};  // mma of a warp",
        TILE_GROUP,
    ]


def _header(text: ProductText, pieces: bool) -> str:
    product = text.product
    header = (
        f"{text.name} on tensor cores: a block computes a BM x BN tile of sums, which its warps share as a 2 x WARPS_N "
        "grid. It goes along k in steps of BK; STAGES steps are under way at once, each in its own slot of shared "
        "memory, so that the copies of later steps run under the arithmetic of the present one."
    )
    header += EXACT_SUMS if product.is_strict else ""
    return header + (PIECES_HEADER if pieces else "")


def _body(text: ProductText, sides: tuple[Side, Side], pieces: bool) -> list[str]:
    skipped = skipped_tile(text.product, "BM", "BN")
    first, last = ("min(k, static_cast<int>(blockIdx.y) * piece)", "min(k, k_begin + piece)") if pieces else ("0", "k")
    if skipped:
        last = f"{skipped} ? k_begin : {last}"
    a, b = sides
    store = (
        partial_store(text, "sums[i][j][h * 2 + q + w]")
        if pieces
        else finished_store(text, "sums[i][j][h * 2 + q + w]")
    )
    return [
        "extern __shared__ __align__(128) unsigned char shared[];",
        "Element* slots = reinterpret_cast<Element*>(shared);",
        "constexpr int SLOT = ACopy::ELEMENTS + BCopy::ELEMENTS;",
        "const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;",
        "const int warp_m = warp / WARPS_N * WARP_M, warp_n = warp % WARPS_N * WARP_N;",
        *text.tile_lines("BM", "BN"),
        f"const int k_begin = {first}, k_end = {last};",
        "const int steps = (k_end - k_begin + BK - 1) / BK;",
        "",
        "auto copy_step = [&](int step) {",
        "  if (step < steps) {",
        "    Element* slot = slots + step % STAGES * SLOT;",
        f"    {a.start('slot', 'k_begin + step * BK')}",
        f"    {b.start('slot + ACopy::ELEMENTS', 'k_begin + step * BK')}",
        "  }",
        "  commit();  // even when empty, so that the count of pending groups stays in step with the loop",
        "};",
        FIRST_COPIES,
        "",
        *over_steps(
            [
                "const Element* a_tile = slots + step % STAGES * SLOT;",
                "const Element* b_tile = a_tile + ACopy::ELEMENTS;",
                *(wide_step(sides, text.product.is_strict) if text.product.element is DType.F32 else half_step(sides)),
            ]
        ),
        *(_overflown(a, b) if text.product.is_strict else []),
        "",
        "// A lane holds pairs of columns of rows lane / 4 and lane / 4 + 8 of every 16 x 8 block.",
        "unrolled for (int i = 0; i < BLOCKS_M; ++i)",
        "  unrolled for (int h = 0; h < 2; ++h) {",
        "    const int at_row = m0 + warp_m + i * 16 + h * 8 + lane / 4;",
        "    if (at_row >= m) continue;",
        f"    const long long row = {text.first_row} + at_row;",
        "    unrolled for (int j = 0; j < BLOCKS_N; ++j)",
        "      unrolled for (int q = 0; q < 2; q += C_WIDTH) {",
        "        const int column0 = n0 + warp_n + j * 8 + lane % 4 * 2 + q;",
        "        if (column0 >= n) continue;",
        *indented(store, 4),
        "      }",
        "  }",
    ]


FIRST_COPIES = "for (int stage = 0; stage < STAGES - 1; ++stage) copy_step(stage);"


def over_steps(step: list[str]) -> list[str]:
    """The sums, and a loop that adds to them what has arrived while copies of later steps are under way."""
    return [
        "float sums[BLOCKS_M][BLOCKS_N][4] = {};",
        "for (int step = 0; step < steps; ++step) {",
        "  wait<STAGES - 2>();",
        "  __syncthreads();  // the step's slot has arrived for everyone, and everyone has read the one before",
        "  copy_step(step + STAGES - 1);  // into that one",
        *indented(step),
        "}",
    ]


def rounded_step(steps: str, pitch: str, filled: list[str], before: tuple[str, ...] = ()) -> list[str]:
    """f32 operands as TF32: eight of k at a time, from a_lane, whose rows lie `pitch` apart; b_part is `filled`."""
    words = {"steps": [steps], "pitch": [pitch], "filled": filled, "before": list(before)}
    return worded(_CUDA["rounded_step"], words).splitlines()


def staged_sums(place: str) -> list[str]:
    """Stores of all sums to shared memory, at a place in their line."""
    return [
        "// A lane holds pairs of columns of rows lane / 4 and lane / 4 + 8 of every 16 x 8 block.",
        "unrolled for (int i = 0; i < BLOCKS_M; ++i)",
        "  unrolled for (int j = 0; j < BLOCKS_N; ++j)",
        "    unrolled for (int r = 0; r < 4; ++r) {",
        "      const int line = warp_m + i * 16 + r / 2 * 8 + lane / 4, at = warp_n + j * 8 + lane % 4 * 2 + r % 2;",
        f"      staged[line * STAGED + {place}] = sums[i][j][r];",
        "    }",
    ]


def _overflown(a: Side, b: Side) -> list[str]:
    """Sums that are no number, once more by f32 arithmetic, which says infinity where parts overflow both ways."""
    rows = ((a, "at_row"), (b, "column"))
    places = [
        f"{row} * {one.name}_pitch + at" if one.operand.along_k else f"at * {one.name}_pitch + {row}"
        for one, row in rows
    ]
    return [
        "",
        "// Small parts of huge numbers overflow too, some the other way, which makes infinity less infinity. What is",
        "// no number is added up again as f32 arithmetic does.",
        "unrolled for (int i = 0; i < BLOCKS_M; ++i)",
        "  unrolled for (int j = 0; j < BLOCKS_N; ++j)",
        "    unrolled for (int r = 0; r < 4; ++r)",
        "      if (sums[i][j][r] != sums[i][j][r]) {",
        "        const int at_row = min(m0 + warp_m + i * 16 + r / 2 * 8 + lane / 4, m - 1);",
        "        const int column = min(n0 + warp_n + j * 8 + lane % 4 * 2 + r % 2, n - 1);",
        "        float sum = 0.f;",
        "        rolled for (long long at = k_begin; at < k_end; ++at)",
        f"          sum = fmaf(a[{places[0]}], b[{places[1]}], sum);",
        "        sums[i][j][r] = sum;",
        "      }",
    ]


def half_step(sides: tuple[Side, Side]) -> list[str]:
    """Fragments of 16-bit elements by ldmatrix, which transposes where k is not the inner dimension."""
    a, b = sides
    a_row = "warp_m + i * 16 + lane % 16" if a.operand.along_k else "warp_m + i * 16 + lane / 8 % 2 * 8"
    a_k = "p * 16 + lane / 16 * 8" if a.operand.along_k else "p * 16 + lane / 16 * 8 + lane % 8"
    b_row = "warp_n + j * 16 + lane / 16 * 8" + (" + lane % 8" if b.operand.along_k else "")
    b_k = "p * 16 + lane / 8 % 2 * 8" if b.operand.along_k else "p * 16 + lane % 16"
    a_turned, b_turned = (str(not one.operand.along_k).lower() for one in sides)
    return [
        "unrolled for (int p = 0; p < STEPS_K; ++p) {",
        "  unsigned a_part[BLOCKS_M][4], b_part[BLOCKS_N / 2][4];",
        "  unrolled for (int i = 0; i < BLOCKS_M; ++i)",
        f"    load_matrices<{a_turned}>(a_part[i], &{a.element('a_tile', a_row, a_k)});",
        "  unrolled for (int j = 0; j < BLOCKS_N / 2; ++j)",
        f"    load_matrices<{b_turned}>(b_part[j], &{b.element('b_tile', b_row, b_k)});",
        "  unrolled for (int i = 0; i < BLOCKS_M; ++i)",
        "    unrolled for (int j = 0; j < BLOCKS_N; ++j)",
        "      mma(sums[i][j], a_part[i], b_part[j / 2][j % 2 * 2], b_part[j / 2][j % 2 * 2 + 1]);",
        "}",
    ]


def wide_step(sides: tuple[Side, Side], strict: bool) -> list[str]:
    """Fragments of f32 elements, rounded or split on their way to registers."""
    a, b = sides
    taken_a = a.element("a_tile", "warp_m + i * 16 + r % 2 * 8 + lane / 4", "p * 8 + r / 2 * 4 + lane % 4")
    taken_b = b.element("b_tile", "warp_n + j * 8 + lane / 4", "p * 8 + r * 4 + lane % 4")
    if not strict:
        return [
            "unrolled for (int p = 0; p < STEPS_K; ++p) {",
            "  unsigned a_part[BLOCKS_M][4], b_part[BLOCKS_N][2];",
            "  unrolled for (int i = 0; i < BLOCKS_M; ++i)",
            f"    unrolled for (int r = 0; r < 4; ++r) a_part[i][r] = tf32({taken_a});",
            "  unrolled for (int j = 0; j < BLOCKS_N; ++j)",
            f"    unrolled for (int r = 0; r < 2; ++r) b_part[j][r] = tf32({taken_b});",
            "  unrolled for (int i = 0; i < BLOCKS_M; ++i)",
            "    unrolled for (int j = 0; j < BLOCKS_N; ++j) mma(sums[i][j], a_part[i], b_part[j][0], b_part[j][1]);",
            "}",
        ]
    return [
        "float part[BLOCKS_M][BLOCKS_N][4] = {};",
        "unrolled for (int p = 0; p < STEPS_K; ++p) {",
        "  unsigned a_big[BLOCKS_M][4], a_small[BLOCKS_M][4], b_big[BLOCKS_N][2], b_small[BLOCKS_N][2];",
        "  unrolled for (int i = 0; i < BLOCKS_M; ++i)",
        f"    unrolled for (int r = 0; r < 4; ++r) split({taken_a}, a_big[i][r], a_small[i][r]);",
        "  unrolled for (int j = 0; j < BLOCKS_N; ++j)",
        f"    unrolled for (int r = 0; r < 2; ++r) split({taken_b}, b_big[j][r], b_small[j][r]);",
        "  unrolled for (int i = 0; i < BLOCKS_M; ++i)",
        "    unrolled for (int j = 0; j < BLOCKS_N; ++j) {",
        "      mma(part[i][j], a_small[i], b_big[j][0], b_big[j][1]);",
        "      mma(part[i][j], a_big[i], b_small[j][0], b_small[j][1]);",
        "      mma(part[i][j], a_big[i], b_big[j][0], b_big[j][1]);",
        "    }",
        "}",
        "unrolled for (int i = 0; i < BLOCKS_M; ++i)",
        "  unrolled for (int j = 0; j < BLOCKS_N; ++j)",
        "    unrolled for (int r = 0; r < 4; ++r) sums[i][j][r] += part[i][j][r];",
    ]
