"""What a GEMM by TMA and wgmma is like: its sizes, slots and constants, and device code that all of them share."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from functools import cached_property

from tilewright.playbook.cpp_text import indented
from tilewright.playbook.gemms.epilogue_text import EpilogueInput, EpilogueText, epilogue_text, kept_sum
from tilewright.playbook.gemms.program import Gemm, Operand, Rounded
from tilewright.playbook.templates import sections
from tilewright.records import DType

SHORT_K = 64
_WIDTH = 118

Parameters = list[tuple[str, str]]  # declarations, and what the plan gives for them


@dataclass(frozen=True)
class Form:
    """How a product is made: what its kernel is a variant of."""

    product: Gemm
    parts: bool  # operands are two f16 parts each, with a scale for every row and column
    pieces: bool  # k is cut into pieces, each of which leaves sums of its own
    tma_store: bool  # rows of the result are whole numbers of 16 bytes
    fused: bool = False  # the parts are made by the kernel that multiplies them, with scales from the first of k
    ready_b: bool = False  # those of the first operand only: kernels before make the second's

    @property
    def depth(self) -> int:
        """Elements of k in a slot."""
        return 32 if self.parts else 64

    @property
    def split_before(self) -> bool:
        """Whether kernels before the product make the parts."""
        return self.parts and not self.fused

    @property
    def boxes(self) -> bool:
        """Whether TMA stores the results, which are of 16 bits then; others are stored from registers."""
        return self.tma_store and self.stored.itemsize == 2

    @property
    def short(self) -> bool:
        """Whether sums are so short that storing them is the work, which `hopper_short` is for."""
        product = self.product
        whole = self.split_before and not self.pieces and self.tma_store and self.stored is DType.F32
        return whole and product.k.size <= SHORT_K and not (product.kept or product.greatest or product.weighs)

    @property
    def sorted(self) -> bool:
        """Whether tiles of which nothing is kept are left to warps with nothing else to do, and the others sorted."""
        return self.split_before and not self.pieces and self.product.kept is not None and not self.boxes

    @property
    def late(self) -> bool:
        """Whether a tile's sums may be finished while the next tile's first products run: until then they are kept in
        16 bits, as PyTorch rounds them."""
        same = self.product.element is self.product.output.dtype
        return self.boxes and not self.parts and same and self.product.kept is None and self._rounds_early

    @property
    def _rounds_early(self) -> bool:
        """Whether PyTorch rounds what would be kept in 16 bits: of a call that adds something, only after that."""
        rounded = self.product.rounded
        return rounded is Rounded.SUM or (rounded is Rounded.ADDED and self.epilogue.added is not None)

    @property
    def stored(self) -> DType:
        return DType.F32 if self.pieces else self.product.output.dtype

    @cached_property
    def epilogue(self) -> EpilogueText:
        return epilogue_text(self.product, suffix="_given")

    @property
    def epilogue_function(self) -> list[str]:
        """The text of what becomes of a sum, and of what it calls."""
        return [
            line
            for piece in (
                *self.epilogue.helpers,
                self.epilogue.function,
                self.late_epilogue.function if self.late else [],
            )
            for line in "\n".join(piece).splitlines()
        ]

    @property
    def late_epilogue(self) -> EpilogueText:
        """What is left to do with sums that were kept in 16 bits."""
        return self.epilogue.late or self.epilogue

    def finished(self, sum: str) -> str:
        """The result of one sum, of column n and row m, which is row `row` of all matrices."""
        return self.epilogue.call(kept_sum(self.product, sum, "m", "n"), "n", "row * N + n")

    @property
    def kind(self) -> str:
        """The operands' type, in the words of PTX."""
        return "f16" if self.parts or self.product.element is DType.F16 else "bf16"

    @cached_property
    def staged(self) -> EpilogueInput | None:
        """What the tile's columns are finished with, where it goes to shared memory ahead: scales come first."""
        columns = (one for one in self.epilogue.inputs if one.place == "column")
        wanted = self.epilogue.added or next(columns, None)
        return None if self.parts or self.pieces or not self.boxes else wanted

    @property
    def of_columns(self) -> str:
        """What column @n has in shared memory when sums are finished: its scale, or what is staged; "": nothing."""
        if self.parts:
            return f"b_scales[(size_t){matrix_text(self)} * N + @n]"
        return self.staged.element("@n") if self.staged else ""

    @property
    def column_bytes(self) -> str:
        """Shared memory for that, as something added."""
        places = "4" if self.parts else "(2 + 2 * LATE)" if self.late else "2"
        return f" + {places} * BN * 4" if self.of_columns else ""

    @property
    def store_places(self) -> str:
        """How many places for results there are in shared memory, of C_BYTES each; "": none."""
        if not self.tma_store:
            return "2"
        return "2 * C_BUFFERS" if self.boxes else ""

    @property
    def store_bytes(self) -> str:
        """Shared memory in which results are put in order, as something added."""
        if not self.tma_store:
            return " + 2 * 64 * 128"
        return f" + {'(4 - 2 * LATE)' if self.late else '4'} * 64 * 128" if self.boxes else ""


def kernel_parameters(form: Form) -> list[tuple[str, str]]:
    """Declarations, and what the plan gives for them; a name that these files introduce begins with @."""
    maps = ("a_map", "b_map", *(("c_map",) if form.boxes else ()))
    pairs = [(f"const __grid_constant__ CUtensorMap {name}", f"@{name}") for name in maps]
    if not form.boxes:
        pairs.append((f"{form.stored.cpp}* __restrict__ c", "@c"))
    if form.fused:
        pairs += [("int* __restrict__ wide", "@wide")]
        pairs += [("const float* __restrict__ b_scales", "@b_scales")] if form.ready_b else []
    elif form.parts:
        pairs += [(f"const float* __restrict__ {name}", f"@{name}") for name in ("a_scales", "b_scales")]
        pairs += [("int* __restrict__ wide", "@wide")] if form.sorted or form.short else []
    pairs += [("float4* sums", "@sums"), ("int* left", "@left")] if form.late else []
    pairs += greatest_parameters(form)
    if not form.pieces:
        pairs += form.epilogue.parameters
    pairs += [(f"int {name}", f"@{name.lower()}") for name in ("M", "N", "K", "batch")]
    pairs += [("int pieces", "@pieces")] if form.pieces else []
    pairs += [("int most", "@most")] if form.late else []
    return pairs


def greatest_parameters(form: Form) -> list[tuple[str, str]]:
    """The tensor of the greatest of each 64 neighbouring scores of a row, which is written, or read."""
    product = form.product
    written = [("float* __restrict__ greatest", product.greatest)] if product.greatest else []
    return [*written, *([("const float* __restrict__ greatest", product.weighs)] if product.weighs else [])]


def operands(form: Form) -> dict[str, Operand]:
    return {"a": form.product.a, "b": form.product.b}


def walk_arguments(form: Form) -> str:
    return ", ".join(["M", "N", "K", "batch", *(["pieces"] if form.pieces else [])])


def matrix_text(form: Form) -> str:
    """The number of the tile's matrix, a piece of k being a matrix of its own."""
    return "(tile.z * pieces + tile.piece)" if form.pieces else "tile.z"


def kernel(bounds: str, name: str, parameters: Parameters, body: list[str]) -> list[str]:
    """A kernel; in its head no parameter is broken."""
    first = f"__global__ void __launch_bounds__({bounds}) {name}("
    whole = [declaration.replace(" ", "\0") for declaration, _ in parameters]
    wrapped = textwrap.wrap(
        first.replace(" ", "\0") + ", ".join(whole) + ")\0{",
        _WIDTH,
        subsequent_indent=" " * 4,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [*(line.replace("\0", " ") for line in wrapped), *indented(body), "}"]


# -- device functions of Hopper's products, as text: barriers, TMA, wgmma, and the walk over tiles --


_CUDA = sections("gemms/hopper_text")

BARRIERS = _CUDA["barriers"]
SHOW = _CUDA["show"]


def tma(boxes: bool, rows: bool = False) -> str:
    """What brings boxes of the operands, and stores boxes, or rows, of the results."""
    store = _CUDA["store_box"] if boxes else _CUDA["store_row"] if rows else ""
    return _CUDA["tma"] + (store + _CUDA["wait"] + SHOW if store else "")


_SWIZZLES = {32: "SWIZZLE_32 = 3ull << 62", 64: "SWIZZLE_64 = 2ull << 62", 128: "SWIZZLE_128 = 1ull << 62"}


def wgmma(
    widths: tuple[int, ...],
    kind: str,
    transposed: tuple[bool, bool],
    swizzles: tuple[int, ...] = (128,),
    in_registers: bool = False,
) -> str:
    """The functions `wgmma` for sums of these widths and operands of `kind`, f16, bf16 or tf32, and what they need."""
    named = ", ".join(_SWIZZLES[one] for one in swizzles)
    functions = "".join(wgmma_of(width, kind, transposed, in_registers) for width in widths)
    return _CUDA["wgmma"].replace("@swizzles", f"constexpr uint64_t {named};") + functions


def wgmma_of(width: int, kind: str, transposed: tuple[bool, bool], in_registers: bool) -> str:
    """The function `wgmma` for sums of one width; `in_registers`: a is in registers."""
    count, depth = width // 2, 8 if kind == "tf32" else 16
    taken = 4 if in_registers else 1  # operands that name a
    a = "const uint32_t (&a)[4]" if in_registers else "uint64_t a"
    lines = [f"__device__ __forceinline__ void wgmma(float (&d)[{count}], {a}, uint64_t b, int add) {{"]
    lines += [f'  asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{count + taken + 1}, 0;"']
    lines += [f'               " wgmma.mma_async.sync.aligned.m64n{width}k{depth}.f32.{kind}.{kind} {{"']
    for first in range(0, count, 16):
        listed = ", ".join(f"%{index}" for index in range(first, min(first + 16, count)))
        lines.append(f'               "{listed}{", " if first + 16 < count else "}"}"')
    a_along_m, b_along_n = (int(one) for one in transposed)
    registers = ", ".join(f"%{count + index}" for index in range(4))
    named = f"{{{registers}}}" if in_registers else f"%{count}"
    last = f", {b_along_n}" if in_registers else f", {a_along_m}, {b_along_n}"  # TF32 is contiguous along k
    lines.append(f'               ", {named}, %{count + taken}, p, 1, 1{last if depth == 16 else ""}; }}"')
    for first in range(0, count, 8):
        listed = ", ".join(f'"+f"(d[{index}])' for index in range(first, first + 8))
        lines.append(f"               {':' if first == 0 else ' '} {listed}{',' if first + 8 < count else ''}")
    given = '"r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])' if in_registers else '"l"(a)'
    lines.append(f'               : {given}, "l"(b), "r"(add));')
    return "\n".join([*lines, "}", ""])
