"""Triton kernels compiled to PTX without a GPU, as JSON on standard output.

Run by `third_party_programs.py` with a Python that has triton (3.x), the compute capability and the names of programs
(none: all) as arguments; nothing of this project is imported here. Each
program is a kernel of ours in Triton's language; what comes out is Triton's own code generation.
"""

from __future__ import annotations

import json
import sys

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def vector_add(x, y, z, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(z + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)


@triton.jit
def softmax(x, y, columns, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    inside = at < columns
    row = tl.load(x + tl.program_id(0) * columns + at, mask=inside, other=-float("inf"))
    weight = tl.exp(row - tl.max(row, axis=0))
    tl.store(y + tl.program_id(0) * columns + at, weight / tl.sum(weight, axis=0), mask=inside)


@triton.jit
def layernorm(x, weight, bias, y, columns, eps, BLOCK: tl.constexpr):
    start = tl.program_id(0) * columns
    at = tl.arange(0, BLOCK)
    inside = at < columns
    row = tl.load(x + start + at, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(row, axis=0) / columns
    centred = tl.where(inside, row - mean, 0.0)
    variance = tl.sum(centred * centred, axis=0) / columns
    scale = 1.0 / tl.sqrt(variance + eps)
    result = centred * scale * tl.load(weight + at, mask=inside) + tl.load(bias + at, mask=inside)
    tl.store(y + start + at, result.to(y.dtype.element_ty), mask=inside)


@triton.jit
def row_sum(x, y, columns, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.load(x + tl.program_id(0) * columns + at, mask=at < columns, other=0.0)
    tl.store(y + tl.program_id(0), tl.sum(total, axis=0))


@triton.jit
def column_sum(x, y, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, rows, ROWS):
        row = start + tl.arange(0, ROWS)
        inside = (row[:, None] < rows) & (column[None, :] < columns)
        total += tl.load(x + row[:, None] * columns + column[None, :], mask=inside, other=0.0)
    tl.store(y + column, tl.sum(total, axis=0), mask=column < columns)


@triton.jit
def running_sum(x, y, columns, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    inside = at < columns
    row = tl.load(x + tl.program_id(0) * columns + at, mask=inside, other=0.0)
    tl.store(y + tl.program_id(0) * columns + at, tl.cumsum(row, axis=0), mask=inside)


@triton.jit
def greatest(x, value, index, columns, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.load(x + tl.program_id(0) * columns + at, mask=at < columns, other=-float("inf"))
    best, where = tl.max(row, axis=0, return_indices=True)
    tl.store(value + tl.program_id(0), best)
    tl.store(index + tl.program_id(0), where)


@triton.jit
def dropout(x, y, n, keep, seed, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    kept = tl.rand(seed, at) < keep
    tl.store(y + at, tl.where(kept, tl.load(x + at, mask=inside) / keep, 0.0), mask=inside)


@triton.jit
def random_bits(y, n, seed, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.randint(seed, at).to(tl.int32), mask=at < n)


@triton.jit
def total_by_atomics(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(y, tl.sum(tl.load(x + at, mask=at < n, other=0.0), axis=0))


@triton.jit
def histogram(x, y, n, BLOCK: tl.constexpr, BINS: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n, other=0)
    counts = tl.histogram(value, BINS, mask=at < n)
    tl.atomic_add(y + tl.arange(0, BINS), counts)


@triton.jit
def sorted_rows(x, y, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.sort(tl.load(x + at)))


@triton.jit
def transposed(x, y, rows, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (row[:, None] < rows) & (column[None, :] < columns)
    tile = tl.load(x + row[:, None] * columns + column[None, :], mask=inside)
    inside = (column[:, None] < columns) & (row[None, :] < rows)
    tl.store(y + column[:, None] * rows + row[None, :], tl.trans(tile), mask=inside)


@triton.jit
def matmul(
    a, b, c, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, TF32: tl.constexpr, INTEGER: tl.constexpr
):
    row = tl.program_id(0) * M + tl.arange(0, M)
    column = tl.program_id(1) * N + tl.arange(0, N)
    total = tl.zeros((M, N), tl.int32 if INTEGER else tl.float32)
    for start in range(0, k, K):
        inner = start + tl.arange(0, K)
        left = tl.load(a + row[:, None] * k + inner[None, :], mask=(row[:, None] < m) & (inner[None, :] < k), other=0.0)
        right = tl.load(
            b + inner[:, None] * n + column[None, :], mask=(inner[:, None] < k) & (column[None, :] < n), other=0.0
        )
        if INTEGER:
            total += tl.dot(left, right, out_dtype=tl.int32)
        else:
            total = tl.dot(left, right, total, input_precision="tf32" if TF32 else "ieee")
    inside = (row[:, None] < m) & (column[None, :] < n)
    tl.store(c + row[:, None] * n + column[None, :], total.to(c.dtype.element_ty), mask=inside)


@triton.jit
def grouped_matmul(
    a, b, c, offsets, groups, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, TILES: tl.constexpr
):
    """Rows of `a` in groups, each with its own matrix of `b`; a fixed number of programs take the tiles in turn."""
    tiles_n = tl.cdiv(n, N)
    last = 0
    tile = tl.program_id(0)
    for group in range(groups):
        begin = tl.load(offsets + group)
        end = tl.load(offsets + group + 1)
        tiles = tl.cdiv(end - begin, M) * tiles_n
        while tile >= last and tile < last + tiles:
            local = tile - last
            row = begin + (local // tiles_n) * M + tl.arange(0, M)
            column = (local % tiles_n) * N + tl.arange(0, N)
            total = tl.zeros((M, N), tl.float32)
            for start in range(0, k, K):
                inner = start + tl.arange(0, K)
                left = tl.load(a + row[:, None] * k + inner[None, :], mask=row[:, None] < end, other=0.0)
                right = tl.load(
                    b + group * k * n + inner[:, None] * n + column[None, :], mask=column[None, :] < n, other=0.0
                )
                total = tl.dot(left, right, total)
            inside = (row[:, None] < end) & (column[None, :] < n)
            tl.store(c + row[:, None] * n + column[None, :], total.to(c.dtype.element_ty), mask=inside)
            tile += TILES
        last += tiles


@triton.jit
def attention(q, k, v, o, length, scale, D: tl.constexpr, Q: tl.constexpr, KV: tl.constexpr):
    """Causal attention of one head, with the running maximum and sum of the rows."""
    head = tl.program_id(1) * length * D
    row = tl.program_id(0) * Q + tl.arange(0, Q)
    depth = tl.arange(0, D)
    query = tl.load(q + head + row[:, None] * D + depth[None, :], mask=row[:, None] < length, other=0.0)
    top = tl.full((Q,), -float("inf"), tl.float32)
    norm = tl.zeros((Q,), tl.float32)
    out = tl.zeros((Q, D), tl.float32)
    for start in range(0, (tl.program_id(0) + 1) * Q, KV):
        at = start + tl.arange(0, KV)
        key = tl.load(k + head + at[:, None] * D + depth[None, :], mask=at[:, None] < length, other=0.0)
        value = tl.load(v + head + at[:, None] * D + depth[None, :], mask=at[:, None] < length, other=0.0)
        score = tl.dot(query, tl.trans(key)) * scale
        seen = (at[None, :] <= row[:, None]) & (at[None, :] < length)
        score = tl.where(seen, score, -float("inf"))
        new_top = tl.maximum(top, tl.max(score, axis=1))
        weight = tl.exp(score - new_top[:, None])
        shrink = tl.exp(top - new_top)
        norm = norm * shrink + tl.sum(weight, axis=1)
        out = tl.dot(weight.to(tl.float16), value, out * shrink[:, None])
        top = new_top
    result = (out / norm[:, None]).to(tl.float16)
    tl.store(o + head + row[:, None] * D + depth[None, :], result, mask=row[:, None] < length)


_HALF_GEMM = {"M": 64, "N": 64, "K": 32, "TF32": False, "INTEGER": False}
_IN16, _IN32 = "*fp16 *fp16 *fp16 i32 i32 i32", "*fp32 *fp32 *fp32 i32 i32 i32"
_ALIGNED16, _ALIGNED32 = "*fp16! *fp16! *fp16! i32 i32! i32!", "*fp32! *fp32! *fp32! i32 i32! i32!"
_GROUPED, _GROUPED_TILES = "*fp16! *fp16! *fp16! *i32 i32 i32! i32!", {"M": 32, "N": 64, "K": 32, "TILES": 3}
_ALIGNED_BF16, _ALIGNED8 = "*bf16! *bf16! *bf16! i32 i32! i32!", "*i8! *i8! *i32! i32 i32! i32!"

# name, kernel, types of the arguments that are no constants, constants, warps, stages. A type with a `!` is told to
# Triton as a multiple of 16, which gives wide loads and asynchronous copies.
PROGRAMS = (
    ("vector_add", vector_add, "*fp32 *fp32 *fp32 i32", {"BLOCK": 256}, 4, 3),
    ("softmax", softmax, "*fp32 *fp32 i32", {"BLOCK": 1024}, 4, 3),
    ("layernorm", layernorm, "*bf16 *bf16 *bf16 *bf16 i32 fp32", {"BLOCK": 1024}, 4, 3),
    ("row_sum", row_sum, "*fp32 *fp32 i32", {"BLOCK": 512}, 4, 3),
    ("column_sum", column_sum, "*fp32 *fp32 i32 i32", {"ROWS": 32, "COLUMNS": 32}, 4, 3),
    ("running_sum", running_sum, "*fp32 *fp32 i32", {"BLOCK": 1024}, 4, 3),
    ("greatest", greatest, "*fp32 *fp32 *i32 i32", {"BLOCK": 1024}, 4, 3),
    ("dropout", dropout, "*fp32 *fp32 i32 fp32 i32", {"BLOCK": 256}, 4, 3),
    ("random_bits", random_bits, "*i32 i32 i32", {"BLOCK": 256}, 4, 3),
    ("total_by_atomics", total_by_atomics, "*fp32 *fp32 i32", {"BLOCK": 256}, 4, 3),
    ("histogram", histogram, "*i32 *i32 i32", {"BLOCK": 512, "BINS": 64}, 4, 3),
    ("sorted_rows", sorted_rows, "*fp32 *fp32", {"BLOCK": 128}, 4, 3),
    ("transposed", transposed, "*fp16 *fp16 i32 i32", {"BLOCK": 32}, 4, 3),
    ("matmul_f16", matmul, _IN16, _HALF_GEMM, 4, 3),
    ("matmul_f16_async", matmul, _ALIGNED16, _HALF_GEMM, 4, 3),
    ("matmul_f16_8_warps", matmul, _ALIGNED16, {**_HALF_GEMM, "M": 128, "N": 128, "K": 64}, 8, 4),
    ("matmul_bf16", matmul, _ALIGNED_BF16, _HALF_GEMM, 4, 2),
    ("matmul_f32", matmul, _IN32, {**_HALF_GEMM, "M": 32, "N": 32}, 4, 3),
    ("matmul_tf32", matmul, _ALIGNED32, {**_HALF_GEMM, "TF32": True}, 4, 3),
    ("matmul_i8", matmul, _ALIGNED8, {**_HALF_GEMM, "INTEGER": True}, 4, 3),
    ("grouped_matmul", grouped_matmul, _GROUPED, _GROUPED_TILES, 4, 3),
    ("attention", attention, "*fp16! *fp16! *fp16! *fp16! i32 fp32", {"D": 64, "Q": 64, "KV": 32}, 4, 2),
)  # fmt: skip


def compiled(
    kernel, types: str, constants: dict[str, int], warps: int, stages: int, capability: int
) -> dict[str, object]:
    given = types.split()
    names = [name for name in kernel.arg_names if name not in constants]
    type_of = {name: text.rstrip("!") for name, text in zip(names, given, strict=True)}
    source = ASTSource(
        fn=kernel,
        signature={name: type_of.get(name, "constexpr") for name in kernel.arg_names},
        constexprs={(kernel.arg_names.index(name),): value for name, value in constants.items()},
        attrs={
            (kernel.arg_names.index(name),): [["tt.divisibility", 16]]
            for name, text in zip(names, given, strict=True)
            if text.endswith("!")
        },
    )
    options = {"num_warps": warps, "num_stages": stages}
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    return {
        "kernel": made.metadata.name,
        "ptx": made.asm["ptx"],
        "shared_bytes": made.metadata.shared,
        "types": [type_of[name] for name in names],
        "warps": warps,
    }


def main() -> None:
    programs: dict[str, object] = {}
    capability, *wanted = sys.argv[1:]
    for name, kernel, types, constants, warps, stages in PROGRAMS:
        if wanted and name not in wanted:
            continue
        try:
            programs[name] = compiled(kernel, types, constants, warps, stages, int(capability))
        except Exception as error:  # a program Triton refuses is reported, the others are still of use
            programs[name] = {"error": f"{type(error).__name__}: {error}"[:2000]}
    json.dump({"version": triton.__version__, "programs": programs}, sys.stdout)


if __name__ == "__main__":
    main()
