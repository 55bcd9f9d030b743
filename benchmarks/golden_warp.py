"""Golden families of warp instructions: shuffles, votes, matches, reductions, and the tensor cores."""

from __future__ import annotations

import numpy as np
from benchmarks.golden_inputs import (
    bits_of_bf16,
    bits_of_f16,
    bits_of_f32,
    half_words,
    random_words,
    uniform,
)
from benchmarks.golden_probe import EXACT, Family, Kind, Probe, Words, instruction

_ALL = "0xffffffff"
# Values repeat within a warp, so that matches and votes have something to find.
_WARPS = 4


def _few(count: int, seed: int, choices: int) -> Words:
    return random_words(count, seed) % np.uint64(choices)


def warp_inputs() -> Words:
    count = 32 * _WARPS
    lane = np.arange(count, dtype=np.uint64) % np.uint64(32)
    same = np.full(count, 7, dtype=np.uint64)
    mixed = np.where(np.arange(count) < 32, same, _few(count, 3, 3))
    return np.stack([random_words(count, 1), mixed, lane, random_words(count, 2) & np.uint64(31)])


def shuffles() -> Family:
    """Values and predicates; segments; lanes from an immediate and from a register."""
    probes: list[Probe] = []
    for mode in ("up", "down", "bfly", "idx"):
        for width, clamp in ((32, 31), (16, 31), (8, 31), (32, 15), (4, 3)):
            segment = (32 - width) << 8
            c = segment | (0 if mode == "up" else clamp)
            for amount in (0, 1, 5, 16, 31):
                text = (
                    f"{{ .reg .pred p; shfl.sync.{mode}.b32 %0|p, %2, {amount}, {c}, {_ALL}; selp.u32 %1, 1, 0, p; }}"
                )
                probes.append(instruction(text, "rr", "r", label=f"shfl.sync.{mode} {amount} {c:#x}"))
            text = f"{{ .reg .pred p; shfl.sync.{mode}.b32 %0|p, %2, %3, {c}, {_ALL}; selp.u32 %1, 1, 0, p; }}"
            probes.append(instruction(text, "rr", "rr", rows=(0, 3), label=f"shfl.sync.{mode} register {c:#x}"))
    return Family("shuffles", tuple(probes), warp_inputs())


def votes() -> Family:
    probes: list[Probe] = []
    for mode in ("all", "any", "uni"):
        for test in ("setp.eq.u32 p, %1, 1", "setp.eq.u32 p, %1, 7", "setp.lt.u32 p, %1, 99", "setp.gt.u32 p, %1, 99"):
            for negation in ("", "!"):
                vote = f"vote.sync.{mode}.pred q, {negation}p, {_ALL};"
                text = f"{{ .reg .pred p, q; {test}; {vote} selp.u32 %0, 1, 0, q; }}"
                probes.append(instruction(text, "r", "r", rows=(1,), label=f"vote.sync.{mode} {negation}{test}"))
    for value in (0, 1, 2, 7):
        text = f"{{ .reg .pred p; setp.eq.u32 p, %1, {value}; vote.sync.ballot.b32 %0, p, {_ALL}; }}"
        probes.append(instruction(text, "r", "r", rows=(1,), label=f"vote.sync.ballot {value}"))
    # A part of the warp: lanes with an odd number vote among themselves.
    code = (
        '  unsigned d0 = 0xabcd;\n  if (threadIdx.x & 1)\n    asm volatile("{ .reg .pred p; setp.eq.u32 p, %1, 1; '
        'vote.sync.ballot.b32 %0, p, 0xaaaaaaaa; }" : "=r"(d0) : "r"((unsigned)IN(1)));\n  PUT(0, d0);'
    )
    probes.append(Probe("vote.sync.ballot odd lanes", code, (Kind.BITS,)))
    return Family("votes", tuple(probes), warp_inputs())


def matches_and_reductions() -> Family:
    probes = [
        instruction(f"match.any.sync.b32 %0, %1, {_ALL};", "r", "r", rows=(1,)),
        instruction(f"match.any.sync.b64 %0, %1, {_ALL};", "r", "l", rows=(1,)),
        instruction(
            f"{{ .reg .pred p; match.all.sync.b32 %0|p, %2, {_ALL}; selp.u32 %1, 1, 0, p; }}", "rr", "r", rows=(1,),
            label="match.all.sync.b32",
        ),
        instruction(
            f"{{ .reg .pred p; match.all.sync.b64 %0|p, %2, {_ALL}; selp.u32 %1, 1, 0, p; }}", "rr", "l", rows=(1,),
            label="match.all.sync.b64",
        ),
    ]  # fmt: skip
    for op in ("add.u32", "add.s32", "min.u32", "min.s32", "max.u32", "max.s32", "and.b32", "or.b32", "xor.b32"):
        probes.append(instruction(f"redux.sync.{op} %0, %1, {_ALL};", "r", "r"))
    code = (
        "  unsigned d0 = 0xabcd;\n  if (threadIdx.x % 3 == 0)\n    asm volatile("
        '"redux.sync.add.u32 %0, %1, 0x49249249;" : "=r"(d0) : "r"((unsigned)IN(0)));\n  PUT(0, d0);'
    )
    probes.append(Probe("redux.sync.add third lanes", code, (Kind.BITS,)))
    return Family("matches_and_reductions", tuple(probes), warp_inputs())


# -- moving 8x8 matrices --


def matrix_moves() -> Family:
    """ldmatrix, stmatrix and movmatrix: where each 16-bit element of a shared tile goes."""
    probes: list[Probe] = []
    fill = (
        "  __shared__ __align__(16) unsigned tile[256];\n  __syncwarp();\n"
        "  for (int j = 0; j < 8; ++j) tile[8 * threadIdx.x + j] = (unsigned)(IN(0) >> (4 * j));\n  __syncwarp();\n"
        "  unsigned at = (unsigned)__cvta_generic_to_shared(tile) + 16 * ((threadIdx.x * 5) & 31);\n"
    )
    for count in (1, 2, 4):
        for trans in ("", ".trans"):
            names = [f"d{j}" for j in range(count)]
            outs = ", ".join(f'"=r"({n})' for n in names)
            regs = ", ".join(f"%{j}" for j in range(count))
            code = fill + f"  unsigned {', '.join(names)};\n"
            code += (
                f'  asm volatile("ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{regs}}}, [%{count}];"'
                f' : {outs} : "r"(at));\n'
            )
            code += " ".join(f"PUT({j}, {n});" for j, n in enumerate(names))
            probes.append(Probe(f"ldmatrix.x{count}{trans}", code, (Kind.BITS,) * count))
            ins = ", ".join(f'"r"((unsigned)(IN({j % 4}) >> {8 * j}))' for j in range(count))
            regs = ", ".join(f"%{j + 1}" for j in range(count))
            code = fill + (
                f'  asm volatile("stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [%0], {{{regs}}};"'
                f' :: "r"(at), {ins} : "memory");\n  __syncwarp();\n'
                "  for (int j = 0; j < 8; ++j) PUT(j, tile[8 * threadIdx.x + j]);"
            )
            probes.append(Probe(f"stmatrix.x{count}{trans}", code, (Kind.BITS,) * 8))
    probes.append(instruction("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;", "r", "r"))
    return Family("matrix_moves", tuple(probes), warp_inputs()[:, :64])


# -- mma.sync --

_MMA_WARPS = 4  # the first on small integers, then two on random numbers, one with special values
_SPECIAL_HALVES = (0x7C00, 0xFC00, 0x7E00, 0x0001, 0x8001, 0x7BFF)


def _pack(elements: Words, bits: int) -> Words:
    """[lanes, elements of a register] to words."""
    shifts = (np.arange(elements.shape[1], dtype=np.uint64) * np.uint64(bits))[None, :]
    return np.bitwise_or.reduce(elements << shifts, axis=1)


def _operand(kind: str, seed: int, special: bool) -> Words:
    """One 32-bit register for all warps."""
    lanes = 32 * _MMA_WARPS
    per = {"f16": 2, "bf16": 2, "tf32": 1, "e4m3": 4, "e5m2": 4, "f64": 1, "f32": 1}[kind]
    count = lanes * per
    small = np.floor(uniform(count, seed, -3.0, 4.0))
    values = np.where(np.arange(count) < 32 * per, small, uniform(count, seed + 1, -1.0, 1.0))
    if kind == "f64":
        return values.view(np.uint64)
    if kind in ("e4m3", "e5m2"):
        words = bits_of_f16(values) >> np.uint64(8)  # e5m2 is the upper half of f16
        if kind == "e4m3":
            words = _e4m3_words(values)
        return _pack(words.reshape(lanes, per), 8)
    bits = {"f16": bits_of_f16, "bf16": bits_of_bf16, "tf32": bits_of_f32, "f32": bits_of_f32}[kind](values)
    if special:
        chosen = (np.arange(count) >= 96 * per) & (random_words(count, seed + 2) % np.uint64(19) == 0)
        pool = np.array(_SPECIAL_HALVES, dtype=np.uint64)[(random_words(count, seed + 3) % np.uint64(6)).astype(int)]
        if kind == "bf16":
            pool = np.where(pool == 0x7C00, 0x7F80, np.where(pool == 0xFC00, 0xFF80, pool)).astype(np.uint64)
        if kind in ("tf32", "f32"):
            pool = np.array([0x7F800000, 0x7FC00000, 0xFF800000, 1, 0x80000000], dtype=np.uint64)[
                (random_words(count, seed + 3) % np.uint64(5)).astype(int)
            ]
        bits = np.where(chosen, pool, bits)
    return _pack(bits.reshape(lanes, per), 16) if per == 2 else bits


def _e4m3_words(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> Words:
    """Nearest codes, found by search: there are only 127 magnitudes."""
    codes = np.arange(127)
    exponent, mantissa = codes >> 3, codes & 7
    sizes = np.where(exponent > 0, (8 + mantissa) * 2.0 ** (exponent - 10.0), mantissa * 2.0**-9)
    nearest = np.abs(np.abs(values)[:, None] - sizes[None, :]).argmin(axis=1).astype(np.uint64)
    return nearest | (np.signbit(values).astype(np.uint64) << np.uint64(7))


def _mma_text(shape: str, types: str, counts: tuple[int, int, int, int], tail: str = "") -> str:
    d, a, b, c = counts
    groups, at = [], 0
    for count in (d, a, b, c):
        names = ", ".join(f"%{at + j}" for j in range(count))
        groups.append(f"{{{names}}}")
        at += count
    return f"mma.sync.aligned.{shape}.row.col.{types}{tail} {', '.join(groups)};"


def _mma(
    shape: str,
    types: str,
    counts: tuple[int, int, int, int],
    rows: tuple[int, int, int],
    letters: tuple[str, str, str],
    kind: Kind,
    tail: str = "",
) -> Probe:
    """`rows`: where the registers of a, b and c start among the inputs; `letters`: of d, of a and b, of c."""
    out, operand, third = letters
    text = _mma_text(shape, types, counts, tail)
    letters_ = operand * (counts[1] + counts[2]) + third * counts[3]
    taken = [start + j for start, count in zip(rows, counts[1:], strict=True) for j in range(count)]
    label = f"mma.{shape}.{types}{tail}"
    return instruction(text, out * counts[0], letters_, kind, EXACT, taken, label)


_SHAPES_F16 = (("m16n8k8", 2, 1), ("m16n8k16", 4, 2))


def mma_f16() -> Family:
    """Both accumulators in both directions."""
    probes: list[Probe] = []
    for shape, a, b in _SHAPES_F16:
        probes += [
            _mma(shape, "f32.f16.f16.f32", (4, a, b, 4), (0, 4, 6), ("f", "r", "f"), Kind.F32),
            _mma(shape, "f16.f16.f16.f16", (2, a, b, 2), (0, 4, 10), ("r", "r", "r"), Kind.F16X2),
        ]
    rows = [_operand("f16", 200 + 7 * j, True) for j in range(6)]
    rows += [_operand("f32", 250 + 7 * j, False) for j in range(4)]
    rows += [_operand("f16", 290 + 7 * j, False) for j in range(2)]
    return Family("mma_f16", tuple(probes), np.stack(rows))


def mma_wide(name: str, kind: str, shapes: tuple[tuple[str, int, int], ...]) -> Family:
    """bf16 and tf32: f32 accumulators."""
    probes = [
        _mma(shape, f"f32.{kind}.{kind}.f32", (4, a, b, 4), (0, 4, 6), ("f", "r", "f"), Kind.F32)
        for shape, a, b in shapes
    ]
    rows = [_operand(kind, 300 + 7 * j, True) for j in range(6)]
    rows += [_operand("f32", 350 + 7 * j, False) for j in range(4)]
    return Family(name, tuple(probes), np.stack(rows))


def mma_fp8() -> Family:
    probes: list[Probe] = []
    for shape, a, b in (("m16n8k32", 4, 2), ("m16n8k16", 2, 1)):
        for left in ("e4m3", "e5m2"):
            for right in ("e4m3", "e5m2"):
                first, second = (0 if left == "e4m3" else 4), (8 if right == "e4m3" else 10)
                wide, narrow = (4, a, b, 4), (2, a, b, 2)
                types = f"{left}.{right}"
                probes += [
                    _mma(shape, f"f32.{types}.f32", wide, (first, second, 12), ("f", "r", "f"), Kind.F32),
                    _mma(shape, f"f16.{types}.f16", narrow, (first, second, 16), ("r", "r", "r"), Kind.F16X2),
                ]
    rows = [_operand("e4m3", 400 + j, False) for j in range(4)] + [_operand("e5m2", 410 + j, False) for j in range(4)]
    rows += [_operand("e4m3", 420 + j, False) for j in range(2)] + [_operand("e5m2", 430 + j, False) for j in range(2)]
    rows += [_operand("f32", 440 + j, False) for j in range(4)] + [_operand("f16", 450 + j, False) for j in range(2)]
    return Family("mma_fp8", tuple(probes), np.stack(rows))


def mma_f64() -> Family:
    probes = [
        _mma(shape, "f64.f64.f64.f64", counts, (0, 8, 12), ("d", "d", "d"), Kind.F64)
        for shape, counts in (
            ("m8n8k4", (2, 1, 1, 2)), ("m16n8k4", (4, 2, 1, 4)), ("m16n8k8", (4, 4, 2, 4)), ("m16n8k16", (4, 8, 4, 4)),
        )
    ]  # fmt: skip
    return Family("mma_f64", tuple(probes), np.stack([_operand("f64", 500 + 7 * j, False) for j in range(16)]))


def mma_integers() -> Family:
    """8- and 4-bit, signed and unsigned, wrapping and clamped; single bits."""
    probes: list[Probe] = []
    bytes_ = (("m8n8k16", (2, 1, 1, 2)), ("m16n8k16", (4, 2, 1, 4)), ("m16n8k32", (4, 4, 2, 4)))
    nibbles = (("m8n8k32", (2, 1, 1, 2)), ("m16n8k32", (4, 2, 1, 4)), ("m16n8k64", (4, 4, 2, 4)))
    letters = ("r", "r", "r")
    for shapes, pair in ((bytes_, ("s8", "u8")), (nibbles, ("s4", "u4"))):
        for shape, counts in shapes:
            for left in pair:
                for right in pair:
                    types = f"s32.{left}.{right}.s32"
                    for flag in ("", "satfinite."):
                        probes.append(_mma(shape, flag + types, counts, (0, 4, 6), letters, Kind.BITS))
    for shape, counts in (("m8n8k128", (2, 1, 1, 2)), ("m16n8k128", (4, 2, 1, 4)), ("m16n8k256", (4, 4, 2, 4))):
        for op in (".xor.popc", ".and.popc"):
            probes.append(_mma(shape, "s32.b1.b1.s32", counts, (0, 4, 6), letters, Kind.BITS, op))
    count = 64
    rows = [random_words(count, 600 + j) & np.uint64(0xFFFFFFFF) for j in range(6)]
    limit = np.where(np.arange(count) % 2 == 0, np.uint64(0x7FFFFF00), np.uint64(0x80000100)).astype(np.uint64)
    rows += [limit, random_words(count, 620) & np.uint64(0xFFFFF), limit, random_words(count, 621) & np.uint64(0xFF)]
    return Family("mma_integers", tuple(probes), np.stack(rows))


# -- wmma --

_WMMA_INCLUDES = "#include <cuda_bf16.h>\n#include <cuda_fp16.h>\n#include <mma.h>\nusing namespace nvcuda;"


def _wmma_code(shape: tuple[int, int, int], element: str, accumulator: str, layouts: tuple[str, str, str]) -> str:
    """Load from shared memory, double a element by element, multiply, store; every layout passes through."""
    m, n, k = shape
    a, b, c = layouts
    lead = {"row": (k, n, n), "col": (m, k, m)}
    la, lb, lc = lead[a][0], lead[b][1], lead[c][2]
    stored = {"precision::tf32": "float"}.get(element, element)
    return f"""\
  typedef {stored} E;
  typedef {accumulator} C;
  __shared__ __align__(32) E sa[{m * k}];
  __shared__ __align__(32) E sb[{k * n}];
  __shared__ __align__(32) C sc[{m * n}];
  __syncwarp();
  const int warp = i & ~31;
  for (int j = threadIdx.x; j < {m * k}; j += 32)
    sa[j] = (E)(float)((int)(x[warp + (j & 31)] >> (j >> 5) & 7) - 3);
  for (int j = threadIdx.x; j < {k * n}; j += 32)
    sb[j] = (E)(float)((int)(x[n + warp + (j & 31)] >> (j >> 5) & 7) - 4);
  for (int j = threadIdx.x; j < {m * n}; j += 32) sc[j] = (C)(float)(j % 13);
  __syncwarp();
  wmma::fragment<wmma::matrix_a, {m}, {n}, {k}, {"wmma::" if "::" in element else ""}{element}, wmma::{a}_major> fa;
  wmma::fragment<wmma::matrix_b, {m}, {n}, {k}, {"wmma::" if "::" in element else ""}{element}, wmma::{b}_major> fb;
  wmma::fragment<wmma::accumulator, {m}, {n}, {k}, C> fc;
  wmma::load_matrix_sync(fa, sa, {la});
  wmma::load_matrix_sync(fb, sb, {lb});
  wmma::load_matrix_sync(fc, sc, {lc}, wmma::mem_{c}_major);
  for (int j = 0; j < fa.num_elements; ++j) fa.x[j] = fa.x[j] + fa.x[j];
  wmma::mma_sync(fc, fa, fb, fc);
  wmma::store_matrix_sync(sc, fc, {lc}, wmma::mem_{c}_major);
  __syncwarp();
  for (int j = 0; j < {m * n // 32}; ++j) PUT(j, bits_of(sc[32 * j + threadIdx.x]));"""


_BITS_OF = """
__device__ unsigned bits_of(__half v) { return __half_as_ushort(v); }
__device__ unsigned bits_of(float v) { return __float_as_uint(v); }
__device__ unsigned bits_of(int v) { return (unsigned)v; }
__device__ unsigned long long bits_of(double v) { return (unsigned long long)__double_as_longlong(v); }"""


def wmma() -> Family:
    """Small integers: exact in every type."""
    probes: list[Probe] = []
    big = ((16, 16, 16), (32, 8, 16), (8, 32, 16))
    cases = [(shape, "__half", acc) for shape in big for acc in ("float", "__half")]
    cases += [(shape, "__nv_bfloat16", "float") for shape in big]
    cases += [(shape, "signed char", "int") for shape in big] + [(big[0], "unsigned char", "int")]
    cases += [((16, 16, 8), "precision::tf32", "float"), ((8, 8, 4), "double", "double")]
    for shape, element, accumulator in cases:
        m, n, k = shape
        for layouts in (("row", "col", "row"), ("col", "row", "col")):
            label = f"wmma m{m}n{n}k{k} {element} {accumulator} {' '.join(layouts)}"
            code = _wmma_code(shape, element, accumulator, layouts)
            probes.append(Probe(label, code, (Kind.BITS,) * (m * n // 32)))
    count = 32
    inputs = np.stack([random_words(count, 700) >> np.uint64(1), half_words(count, 701)])
    inputs[1] = random_words(count, 702) >> np.uint64(1)
    return Family("wmma", tuple(probes), inputs, _WMMA_INCLUDES + _BITS_OF)


def warp_families() -> tuple[Family, ...]:
    return (
        shuffles(),
        votes(),
        matches_and_reductions(),
        matrix_moves(),
        mma_f16(),
        mma_wide("mma_bf16", "bf16", _SHAPES_F16),
        mma_wide("mma_tf32", "tf32", (("m16n8k4", 2, 1), ("m16n8k8", 4, 2))),
        mma_fp8(),
        mma_f64(),
        mma_integers(),
        wmma(),
    )
