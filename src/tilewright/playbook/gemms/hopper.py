"""Products for Hopper (sm_90a), as kernel files: 16-bit operands, and f32 operands as two f16 parts on tensor cores."""

from __future__ import annotations

import re

from tilewright.playbook.file_text import MOST_32_BIT, Fragment, PlanLines, fragment, includes
from tilewright.playbook.gemms.hopper_form import SHORT_K, Form, kernel, kernel_parameters
from tilewright.playbook.gemms.hopper_fused import (
    READY_SMEM_BYTES,
    SMEM,
    fused_text,
    fused_threads,
    short_parameters,
    short_product_text,
    short_text,
)
from tilewright.playbook.gemms.hopper_kernel import device_text
from tilewright.playbook.gemms.hopper_split import f32_tiles_parameters, f32_tiles_text, splitting_text
from tilewright.playbook.gemms.hopper_store import PAIRED
from tilewright.playbook.gemms.program import Gemm, Operand
from tilewright.records import DType

_HALF_HEADER = """
A product of 16-bit matrices for Hopper. One thread of a producer warpgroup fills a ring of slots in shared memory by
TMA; two consumer warpgroups multiply what has arrived with wgmma, 64 rows of the tile each, and add up in f32.
Blocks stay and take tile after tile, so the next tile's loads run under the last one's stores. LATE: a tile's sums are
finished under the next tile's first products. SHARED: the last tiles do not fill a round, and all blocks share them.

TMA fills what lies outside the matrices with zeros and clips what would be stored there, so tails need no code.
"""
_EXACT = """
A product of f32 matrices{of_k}, as exact as one in f32, on Hopper's f16 tensor cores. Every row of the first operand
and every column of the second is scaled by a power of two and split into two f16 parts, which together have the bits of
an f32; the product of two numbers is then three products of parts.
"""
_SPLIT_FIRST = """\
Rows and columns whose numbers are too far apart for that are found while splitting, and the tiles they meet are made in
plain f32.
"""
_PARTS_HEADER = f"""{_EXACT.format(of_k="")}{_SPLIT_FIRST}
One thread of a producer warpgroup fills a ring of slots in shared memory by TMA; two consumer warpgroups multiply what
has arrived with wgmma, 64 rows of the tile each. Blocks stay and take tile after tile.
"""
_SHORT_HEADER = f"""{_EXACT.format(of_k=" with a short k")}{_SPLIT_FIRST}
Storing is most of the work. Blocks stay, and who is ready takes the next strip of a few tiles: so what is written at
the same time lies side by side. One thread fills a ring of slots in shared memory by TMA; consumer warpgroups multiply
what has arrived with wgmma, 64 rows and 128 columns of the tile each.
"""
_FUSED_HEADER = f"""{_EXACT.format(of_k="")}\
Tiles with numbers too far apart for that are found on the way, and made again in plain f32.

TMA fills a ring of slots with f32. A splitter warpgroup turns the second operand into parts in shared memory; two
consumer warpgroups split the first in registers, and multiply with wgmma, 64 rows of the tile each. Two blocks with
tiles one below the other are a cluster: each splits half of what they share, and copies it to the other.
"""
_READY_HEADER = f"""{_EXACT.format(of_k="")}\
Rows and columns whose numbers are too far apart for that are found on the way, and the tiles they meet are made again
in plain f32.

The second operand's parts are made first. One thread of a producer warpgroup fills a ring of slots in shared memory by
TMA; two consumer warpgroups split the first operand in registers, and multiply with wgmma, 64 rows of the tile each.
"""
_PIECES_HEADER = """
The results are few and k is long, so k is cut into pieces that blocks sum side by side; a last kernel adds the pieces
up, always in the same order.
"""


def can_write(product: Gemm) -> bool:
    """Whether these files take a contraction at the task's own sizes: operands, results and what is done with sums."""
    elements = product.has_one_element_type and product.element in PAIRED
    epilogue = all(one.dtype in PAIRED for one in product.epilogue_inputs)
    if not elements or not epilogue or product.output.dtype not in PAIRED:
        return False
    if product.element is DType.F32:
        return not _is_shared(product)
    return _has_rows_of(product, 8) and product.n.size * product.output.dtype.itemsize % 16 == 0


def can_fuse(product: Gemm, pieces: bool) -> bool:
    """Whether f32 can be split where it is multiplied, as the operands lie; in pieces of k or as a whole."""
    fits = product.element is DType.F32 and not _is_shared(product) and _has_rows_of(product, 4)
    whole = product.n.size % 4 == 0 and (pieces or product.output.dtype is DType.F32)
    return fits and whole and product.a.along_k


def _is_shared(product: Gemm) -> bool:
    """Whether all matrices of one operand meet the same one of the other."""
    return product.is_batched and any(one.batch_pitch.expression == "0" for one in (product.a, product.b))


def _has_rows_of(product: Gemm, elements: int) -> bool:
    """Whether the operands' rows are whole numbers of so many elements, as TMA asks for."""
    pitches = [pitch.size for one in (product.a, product.b) for pitch in (one.pitch, one.batch_pitch)]
    return all(one % elements == 0 for one in pitches)


def hopper_product(
    product: Gemm, op_line: str, pieces: bool = False, fused: bool = False, ready_b: bool = False
) -> Fragment:
    """The product by TMA and wgmma. `pieces`: k is cut into pieces; `fused`: f32 is split where it is multiplied;
    `ready_b`: of that, the first operand only."""
    parts = product.element is DType.F32
    per_row = 16 // (DType.F32 if pieces else product.output.dtype).itemsize
    form = Form(product, parts, pieces, product.n.size % per_row == 0, fused, ready_b)
    plan = _Plan(form, op_line)
    plan.of_product(per_row)
    if fused:
        plan.of_fused()
    elif form.short:
        plan.of_short()
    elif parts:
        plan.of_parts()
    else:
        plan.of_halves()
    header = _READY_HEADER if ready_b else _FUSED_HEADER if fused else _PARTS_HEADER if parts else _HALF_HEADER
    header += _PIECES_HEADER if pieces else ""
    header = _SHORT_HEADER if form.short else header
    code = [fused_text(form)] if fused else [] if form.short else [device_text(form)]
    if parts and not fused:
        of_short = [short_text(form), short_product_text(form)] if form.short else []
        code = [splitting_text(form), *of_short, *code]
    code += [f32_tiles_text(form)] if parts else []
    if ready_b:
        code.insert(0, splitting_text(form))
    if pieces:
        code.append(_adding_text(form))
    more = ["cuda_fp16.h"] if parts and DType.F16 not in {one.dtype for one in product.epilogue.tensors} else []
    return fragment(header, plan, includes(product.epilogue, *more), *code)


_EARLY = " pdl"  # a launch may begin before the one before it has ended, and waits for it where it must


class _Plan(PlanLines):
    def __init__(self, form: Form, op_line: str) -> None:
        super().__init__(form.product.epilogue, op_line)
        self._form, self._product = form, form.product
        self._operands = (("a", form.product.a), ("b", form.product.b))

    def name(self, wanted: str) -> str:
        if wanted == "c":
            return super().name("sums") if self._form.pieces else self._product.output.name
        return super().name(wanted)

    def of_product(self, per_row: int) -> None:
        product = self._product
        self.add(
            "let",
            f"@m = {product.m.expression}, @n = {product.n.expression}, @k = {product.k.expression}, "
            f"@batch = {product.batch.expression}",
        )
        self.add("need", "device.cc == 90 and @m > 0 and @n > 0 and @k > 0 and @batch > 0")
        self.add(
            "need",
            f"max(@m, max(@n, @k)) <= {MOST_32_BIT} and @m * @batch <= {MOST_32_BIT}",
            "so that an int holds them",
        )
        if self._form.tma_store:
            self.add("need", f"@n % {per_row} == 0", "rows of the result are multiples of 16 bytes")

    def of_halves(self) -> None:
        form = self._form
        self._need_rows_of(8)
        self.add("tune", f"BN = {'' if form.pieces else '192 | '}256 | 128 | 64")
        self.add("tune", "STAGES = 8 | 6 | 5 | 4")
        self._tiles("64")
        if form.late:
            self._late()
        barriers = f"STAGES * 16{' + 8' if form.late else ''}"
        self.add("let", f"@smem = STAGES * (128 + BN) * 64 * 2{form.store_bytes}{form.column_bytes} + {barriers}")
        self.add("need", "@smem <= device.smem_block")
        if not form.pieces:
            others = "ceil_div(@tiles_m * ceil_div(@n, 256) * @batch, device.sms) * 256"
            fuller = f"ceil_div(@tiles, device.sms) * 192 < {others}"
            fuller = f"@shares == 0 and {fuller}" if form.late else fuller
            self.add("need", f"BN != 192 or {fuller}", "a fuller last round")
        self._operand_maps()
        self._store_map()
        self._product_launch("384")

    def _late(self) -> None:
        """Whether sums are finished late, and tiles of 256 columns that do not fill a round shared: that saves at least
        24 steps of a tile, some 14 us of an H200, where sharing takes 10. Every block has a step: who adds a tile up
        waits for all blocks from its first step's to its last one's."""
        self.add("const", "LATE = 1 if @k >= BN * 4 and @tiles > device.sms else 0", "finished under the next products")
        self.add("let", "@steps = ceil_div(@k, 64), @wide = @tiles_m * ceil_div(@n, 256) * @batch")
        self.add("let", "@rest = @wide % device.sms", "tiles of 256 columns beyond whole rounds")
        many = f"@k >= 1024 and @wide > device.sms and @steps * device.sms * device.sms <= {MOST_32_BIT}"
        saved = "@rest * @steps >= device.sms and (device.sms - @rest) * @steps >= device.sms * 24"  # a step for each
        self.add("let", f"@shares = 1 if {many} and {saved} else 0")
        self.add("const", "SHARED = @shares if BN == 256 else 0", "blocks share the last tiles, along k")
        self.add("let", "@most = ceil_div(@steps, max(@rest * @steps / device.sms, 1)) + 1", "pieces of a tile")
        self.add("scratch", "@sums: f32[SHARED * @rest, @most, 128, BN]")
        self.add("scratch", "@left: i32[SHARED * @rest] counter", "pieces")

    def _need_rows_of(self, elements: int) -> None:
        a, b = self._product.a, self._product.b
        pitches = [a.pitch.expression, b.pitch.expression, a.batch_pitch.expression, b.batch_pitch.expression]
        for pitch in dict.fromkeys(one for one in pitches if one != "0"):
            self.add("need", f"({pitch}) % {elements} == 0", "and rows of the operands")

    def _tiles(self, narrowest: str) -> None:
        """How many tiles there are, and pieces; narrower tiles where wide ones leave too much of the GPU idle."""
        self.add(
            "let", "@tiles_m = ceil_div(@m, 128), @tiles_n = ceil_div(@n, BN), @tiles = @tiles_m * @tiles_n * @batch"
        )
        if self._form.pieces:
            self._pieces()
        else:
            self.add(
                "need", f"BN == {narrowest} or @tiles >= device.sms * 3 / 4", "narrower tiles where wide ones are few"
            )

    def _pieces(self) -> None:
        depth = self._form.depth
        self.add("let", f"@steps = ceil_div(@k, {depth}), @most = max(1, min(device.sms / @tiles, @steps / 16))")
        self.add("let", f"@piece = ceil_div(@steps, @most) * {depth}, @pieces = ceil_div(@k, @piece)")

    def _operand_maps(self) -> None:
        """Of the operands as they are given."""
        for name, one in self._operands:
            self._operand_map(name, one, one.tensor, one.pitch.expression, one.batch_pitch.expression)

    def _operand_map(self, name: str, one: Operand, tensor: str, pitch: str, matrix_pitch: str) -> None:
        form = self._form
        shared = matrix_pitch == "0"
        in_f32 = form.fused and not (form.ready_b and name == "b")
        count = "1" if shared else "2 * @batch" if form.parts and not in_f32 else "@batch"
        columns = "BN" if not form.fused else "256" if form.ready_b else "256 / CLUSTER"
        rows, together = {"a": ("@m", "128"), "b": ("@n", columns)}[name]
        if one.along_k:
            shape, box, swizzle = (rows, "@k"), f"1, {together}, {form.depth}", form.depth * (4 if in_f32 else 2)
        elif in_f32:
            shape, box, swizzle = ("@k", rows), f"1, {form.depth}, {together}", 0
        else:
            shape, box, swizzle = ("@k", rows), f"1, {form.depth}, 64", 128
        stride = f"{f'({pitch}) * {shape[0]}' if shared else matrix_pitch}, {pitch}, 1"
        self.add(
            "map",
            f"@{name}_map = tiled({tensor}, shape=[{count}, {', '.join(shape)}], stride=[{stride}], box=[{box}], "
            f"swizzle={swizzle}, l2=256)",
        )

    def _store_map(self) -> None:
        form = self._form
        if form.pieces:
            self.add("scratch", "@c: f32[@pieces * @batch, @m, @n]")
        if form.boxes:
            rows = "64 - 48 * LATE" if form.late else "64"
            self.add("map", f"@c_map = tiled(@c, shape=[@batch, @m, @n], box=[1, {rows}, 64], swizzle=128)")

    def _product_launch(self, threads: str) -> None:
        form = self._form
        jobs = "@tiles * @pieces" if form.pieces else "@tiles"
        given = [text for _, text in kernel_parameters(form)]
        split_both = form.fused and not form.ready_b
        grid, more = (jobs, " cluster(CLUSTER)") if split_both else (f"min({jobs}, device.sms)", "")
        if form.late:
            self.launch("product", grid, f"{threads}, @smem", given, " cooperative when SHARED == 1")
            given = [self._product.output.name if one in ("@sums", "@left") else one for one in given]  # not used
            more = " when SHARED == 0"
        if form.short:
            grid = "min(@tiles, device.sms * (256 / BN))"
        early = _EARLY if form.split_before or form.ready_b else ""
        self.launch("product", grid, f"{threads}, @smem", given, early + more)
        if form.parts:
            given = [text for _, text in f32_tiles_parameters(form)]
            many = f"@tiles_m * ceil_div(@n, 64) * @batch{' * @pieces' if form.pieces else ''}"
            self.launch("tiles_in_f32", f"min({many}, device.sms * 4 - 1)", "256", given, _EARLY)
        if form.pieces:
            given = [text for _, text in _adding_parameters(form)]
            self.launch("add_pieces", "ceil_div(@batch * @m * @n, 256)", "256", given, _EARLY if form.parts else "")

    def of_parts(self) -> None:
        form = self._form
        self.add("tune", "BN = 256 | 128")
        self.add("tune", "STAGES = 6 | 4")
        places = f"{form.store_bytes}{form.column_bytes} + STAGES * {24 if form.sorted else 16}"
        self.add("let", f"@smem = STAGES * 2 * (128 + BN) * 32 * 2{places}")
        self.add("need", "@smem <= device.smem_block")
        self._tiles("128")
        if not form.pieces:
            self.add("let", "@pieces = 1, @piece = @k")
        if not (self._product.a.along_k and self._product.b.along_k) and self._product.is_batched:
            self.add("need", "@batch <= 65535", "the third dimension of a grid")
        flags, remark = "1 + @batch * @pieces * (@tiles_m + @tiles_n)", "whether any, then which"
        if form.sorted:
            flags, remark = "2 + 3 * @batch * (@tiles_m + @tiles_n)", "any, which, then spans; tiles taken"
        self.add("scratch", f"@wide: i32[{flags}] zeroed", remark)
        for name, one in self._operands:
            self._split_buffers(name, one)
        self._store_map()
        columns, others = sorted(self._operands, key=lambda one: one[1].along_k)  # columns take longer to begin
        self._split_launch(*columns)
        self._split_launch(*others, early=_EARLY)
        self._product_launch("384")

    def of_short(self) -> None:
        form = self._form
        self.add("need", f"@k <= {SHORT_K}", "short sums: storing them is the work")
        self.add("const", f"STEPS = ceil_div(@k, {form.depth})")
        self.add("tune", "BN = 256 | 128")
        self.add("const", "THREADS = 640 if BN == 256 else 288", "consumers, and a producer")
        self.add("const", "STAGES = 4 if BN == 256 else 2", "of two narrow blocks each")
        self.add("const", "PLACES = 2 if @k <= 32 else 1", "for what strips keep of b")
        self.add("let", "@slot = 2 * 128 * 32 * 2 + 1024, @place = STEPS * 2 * BN * 32 * 2 + 1024")
        results = "BN / 16 * 8 * (128 * 4 + 32)"
        places = f"STAGES * (@slot + 16) + PLACES * (@place + 20) + {results}{form.column_bytes}"
        self.add("let", f"@smem = {places}")
        self.add("need", "@smem <= device.smem_block and (@smem + 1024) * (256 / BN) <= device.smem_sm")
        self._tiles("128")
        self.add("tune", "STRIP = 2 | 8 | 4 | 1", "tiles one below the other")
        self.add("need", "STRIP == 1 or @tiles >= device.sms * 8 * STRIP and (STRIP > 2 or STEPS == 1)")
        flags = "@batch * (@tiles_m + ceil_div(@n, 128))"
        self.add("scratch", f"@wide: i32[1 + {flags}]", "strips taken; which are too wide")
        for name, one in self._operands:
            self._split_buffers(name, one)
        given = [text for _, text in short_parameters(form)]
        self.launch("split_both", "(@tiles_m + ceil_div(@n, 128)) * @batch", "256", given)
        self._product_launch("THREADS")

    def of_fused(self) -> None:
        self._need_rows_of(4)
        self.add(
            "let", "@tiles_m = ceil_div(@m, 128), @tiles_n = ceil_div(@n, 256), @tiles = @tiles_m * @tiles_n * @batch"
        )
        if self._form.pieces:
            self._pieces()
        else:
            self.add("let", "@pieces = 1, @piece = @k")
        if not self._form.ready_b:
            self.add("const", "CLUSTER = 2 if @tiles_m % 2 == 0 else 1", "blocks that share what they split of b")
        self.add("let", f"@smem = {READY_SMEM_BYTES if self._form.ready_b else SMEM}")
        self.add("need", "@smem <= device.smem_block")
        flags = "(@tiles_m + @tiles_n)" if self._form.ready_b else "@tiles_m * @tiles_n"
        self.add("scratch", f"@wide: i32[1 + @batch * @pieces * {flags}] zeroed", "whether any, then which")
        if self._form.ready_b:
            a, b = self._product.a, self._product.b
            self._operand_map("a", a, a.tensor, a.pitch.expression, a.batch_pitch.expression)
            self._split_buffers("b", b)
            self._split_launch("b", b)
        else:
            self._operand_maps()
        self._store_map()
        self._product_launch(fused_threads(self._form))

    def _split_buffers(self, name: str, one: Operand) -> None:
        rows = {"a": "@m", "b": "@n"}[name]
        outer, inner = (rows, "@k") if one.along_k else ("@k", rows)
        short = self._form.short
        lines = "32 if @k <= 32 else 64" if short and one.along_k else "64"
        self.add("let", f"@{name}_pitch = round_up({inner}, {lines})", "rows begin at whole lines of the cache")
        self.add("scratch", f"@{name}_parts: f16[2 * @batch, {outer}, @{name}_pitch]")
        scales = f"@batch, round_up({rows}, 128)" if short else f"@batch * @pieces, {rows}"
        self.add("scratch", f"@{name}_scales: f32[{scales}]")
        whole = [f"({one.pitch.expression}) % 4 == 0", f"{inner} % 4 == 0"]
        whole += [f"({one.batch_pitch.expression}) % 4 == 0"] if one.batch_pitch.expression != "0" else []
        self.add("const", f"{name.upper()}_WIDTH = 4 if {' and '.join(whole)} else 1")
        if not short:
            self._split_shares(name, one)
        self._operand_map(name, one, f"@{name}_parts", f"@{name}_pitch", f"{outer} * @{name}_pitch")

    def _split_shares(self, name: str, one: Operand) -> None:
        """How many threads take a row, or blocks a few columns."""
        if one.along_k:
            self.add(
                "const",
                f"{name.upper()}_LANES = 8 if @piece <= 256 else 32 if @piece <= 1024 else 256",
                "threads per row",
            )
            held = "min(8, ceil_div(@piece, @_LANES * @_WIDTH))".replace("@_", f"{name.upper()}_")
            self.add("const", f"{name.upper()}_HELD = {held}")
        else:
            steps = " else ".join(f"{blocks} if @piece <= {blocks * 512}" for blocks in (1, 2, 4))
            self.add("const", f"{name.upper()}_CLUSTER = {steps} else 8", "blocks that share columns")
            more = "min(40 / @_WIDTH, max(0, ceil_div(ceil_div(@piece, @_CLUSTER), 16 * @_WIDTH) - 8))"
            more = more.replace("@_", f"{name.upper()}_")
            self.add("const", f"{name.upper()}_MORE = {more}", "numbers in shared memory")

    def _split_launch(self, name: str, one: Operand, early: str = "") -> None:
        rows = {"a": "@m", "b": "@n"}[name]
        tile, first = ("128", "0") if name == "a" else ("256" if self._form.fused else "BN", "@tiles_m")
        buffers = [one.tensor, f"@{name}_parts", f"@{name}_scales", "@wide"]
        pitches = [one.pitch.expression, one.batch_pitch.expression, f"@{name}_pitch"]
        flags = [tile, first, "@tiles_m + @tiles_n"]
        upper = name.upper()
        if one.along_k:
            grid = f"ceil_div({rows} * @pieces * @batch, 256 / {upper}_LANES)"
            given = [*buffers, rows, "@batch", "@k", *pitches, "@pieces", "@piece", *flags]
            self.launch(f"split_rows<{upper}_LANES, {upper}_WIDTH, {upper}_HELD>", grid, "256", given, early)
        else:
            grid = f"dim3(ceil_div({rows}, 32) * {upper}_CLUSTER, @pieces, @batch)"
            given = [*buffers, rows, "@k", *pitches, "@piece", *flags]
            kernel = f"split_columns<{upper}_CLUSTER, {upper}_WIDTH, {upper}_MORE>"
            block = f"512, {upper}_MORE * {upper}_WIDTH * 2048"
            self.launch(kernel, grid, block, given, f"{early} cluster({upper}_CLUSTER)")


def _adding_parameters(form: Form) -> list[tuple[str, str]]:
    output = form.product.output
    pairs = [("const float* __restrict__ sums", "@c"), (f"{output.dtype.cpp}* __restrict__ c", output.name)]
    pairs += form.epilogue.parameters
    return [*pairs, ("int M", "@m"), ("int N", "@n"), ("int batch", "@batch"), ("int pieces", "@pieces")]


def _adding_text(form: Form) -> list[str]:
    """The kernel that adds pieces up, and finishes their sums."""
    output = form.product.output
    value = form.finished("sum")
    stored = value if output.dtype is DType.F32 else f"static_cast<{output.dtype.cpp}>({value})"
    body = [
        "const long long i = blockIdx.x * 256ll + threadIdx.x, count = (long long)batch * M * N;",
        *(
            ["cudaGridDependencySynchronize();  // what made tiles again had itself waited for the product"]
            if form.parts
            else []
        ),
        "if (i >= count) return;",
        "float sum = 0.f;",
        "#pragma unroll 16",
        "for (int piece = 0; piece < pieces; ++piece) sum += sums[piece * count + i];",
    ]
    if re.search(r"\b(n|row|m)\b", value):
        body += ["const long long row = i / N;", "const int n = i % N;"]
    if re.search(r"\bm\b", value):
        body += ["const int m = row % M;"]
    body.append(f"c[i] = {stored};")
    text = form.epilogue_function
    return [*text, *([""] if text else []), *kernel("256", "add_pieces", _adding_parameters(form), body)]
