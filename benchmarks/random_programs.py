"""Random kernels that are valid CUDA and whose results hardware and emulator must agree on to the bit.

A program is a kernel file drawn from a seed: each thread has variables of several types and runs statements drawn at
random: integer arithmetic, IEEE arithmetic with its rounding spelled out, conversions, branches and switches on data,
nested loops whose count depends on data and that break and continue, unrolled by 1, 2 or 4 or as the compiler likes,
exchanges through shared memory, shuffles and votes of whole and half warps, atomics on integers, PTX written by hand
(with branches and loops of its own, their blocks in any order), threads that leave early. What C++ leaves undefined
(shifts beyond a word, signed overflow, division by zero) is not drawn, nor is anything whose result depends on a
schedule, nor the bits of a NaN, nor a `lop3` that is given a register twice: NVIDIA's assembler (13.0) joins that with
an exclusive or into a wrong table.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

THREADS = 96  # three warps, so that one is neither the first nor the last
BLOCKS = 3
WORDS = 8  # of each thread's result

# In statements: {w} an unsigned variable, {o} one or a constant, {f} a float variable, {r} a rounding, {k} a float and
# {K} a double constant, {c} a condition, {q} a comparison, {p} PTX's, {n} a number below 32, {x} a power of two below.
INTEGER = (
    "{w} = {w} + {o};",
    "{w} = {w} * {o} + {o};",
    "{w} ^= {w} >> ({o} & 31u);",
    "{w} = {w} << ({o} & 31u);",
    "{w} = {w} / ({o} | 1u);",
    "{w} = {w} % (({o} & 1023u) + 1u);",
    "{w} = __umulhi({w}, {o});",
    "{w} = (unsigned)((int){w} >> ({o} & 31u));",
    "{w} = (unsigned)((int)({w} & 0xffffu) / (int)(({o} & 255u) | 1u));",
    "{w} = __byte_perm({w}, {o}, {w});",
    "{w} = __funnelshift_l({w}, {o}, {w});",
    "{w} = min({w}, {o});",
    "{w} = (unsigned)max((int){w}, (int)({o}));",
    "{w} = __popc({w}) + __clz({o});",
    "{w} = ({w} < {o}) ? {w} - {o} : {o} - {w};",
    "{w} = ({c}) ? {w} : {o};",
    "{w} ^= x[({w} & 0xffffu) % (unsigned)n];",
    "s = (short)({w} >> 3);",
    "q = (unsigned char)({w} + q);",
    "{w} += (unsigned)((int)s * q);",
    "s = (short)(s + (short)q);",
    "{w} = (unsigned)(int)(signed char)q;",
)
LONG = (
    "e = e * 6364136223846793005ull + {w};",
    "e ^= e >> ({w} & 63u);",
    "e += (unsigned long long){w} << 17;",
    "e = e / ((unsigned long long){w} | 1ull);",
    "{w} = (unsigned)(e % 1000003ull);",
    "e = (unsigned long long)((long long)e >> ({w} & 63u));",
    "e = __umul64hi(e, e | 1ull);",
    "e = (e > 4611686018427387904ull) ? e - {w} : e + {w};",
)
FLOATING = (
    "{f} = __fadd_{r}({f}, {f});",
    "{f} = __fmul_{r}({f}, {f});",
    "{f} = __fmaf_{r}({f}, {f}, {f});",
    "{f} = __fdiv_{r}({f}, {f});",
    "{f} = __fsqrt_{r}(fabsf({f}));",
    "{f} = __frcp_{r}({f});",
    "{f} = fmaxf({f}, {f});",
    "{f} = fminf({f}, {f});",
    "{f} = __fadd_rn(floorf({f}), rintf({f}));",
    "{f} = __fadd_rn(truncf({f}), ceilf({f}));",
    "{f} = ({f} < {f}) ? {f} : {f};",
    "{f} = {k};",
    'asm("add.rn.ftz.f32 %0, %1, %2;" : "=f"({f}) : "f"({f}), "f"({f}));',
    'asm("mul.rn.ftz.f32 %0, %1, %2;" : "=f"({f}) : "f"({f}), "f"({f}));',
    'asm("min.NaN.f32 %0, %1, %2;" : "=f"({f}) : "f"({f}), "f"({f}));',
    'asm("fma.rn.sat.f32 %0, %1, %2, %1;" : "=f"({f}) : "f"({f}), "f"({f}));',
    "h = __dadd_{r}(h, (double){f});",
    "h = __dmul_{r}(h, {K});",
    "h = __fma_{r}(h, 0.75, (double)(int){w});",
    "h = __ddiv_{r}(h, {K});",
    "h = __dsqrt_{r}(fabs(h));",
)
CONVERSIONS = (
    "{w} = (unsigned)__float2int_{r}({f});",
    "{w} = __float2uint_{r}({f});",
    "{f} = __int2float_{r}((int){w});",
    "{f} = __uint2float_{r}({w});",
    "{f} = __double2float_{r}(h);",
    "h = __int2double_rn((int){w});",
    "h = __ll2double_rn((long long)e);",
    "{w} = (unsigned)__double2int_{r}(h);",
    "e = __float2ull_{r}({f});",
    "{f} = __ull2float_{r}(e);",
    "{w} = bits({f});",
    "{f} = __uint_as_float(({w} & 0x807fffffu) | 0x3f000000u);",
)
TOGETHER = (  # for all threads of a block
    "held[t] = {w}; __syncthreads(); {w} += held[(t * 5u + {n}u) % THREADSu]; __syncthreads();",
    "held[t] = {w}; __syncthreads(); {w} ^= held[(t * 13u + {n}u) % THREADSu]; __syncthreads();",
    "{w} = __shfl_xor_sync(0xffffffffu, {w}, {x});",
    "{w} ^= __shfl_sync(0xffffffffu, {w}, (int)({w} & 31u));",
    "{w} += __shfl_up_sync(0xffffffffu, {w}, {n}, 16);",
    "{w} += __shfl_down_sync(0xffffffffu, {w}, {n});",
    "{w} = __reduce_add_sync(0xffffffffu, {w});",
    "{w} = __reduce_min_sync(0xffffffffu, {w});",
    "{w} += __reduce_xor_sync(0xffffffffu, {w});",
    "{f} = __shfl_xor_sync(0xffffffffu, {f}, {n});",
    "{w} ^= __ballot_sync(0xffffffffu, {c});",
    "{w} += __any_sync(0xffffffffu, {c}) ? 3u : 5u;",
    "{w} += __match_any_sync(0xffffffffu, {w} & 3u);",
    "{w} += (unsigned)__syncthreads_count({c});",
    "{w} ^= __syncthreads_or({c}) ? 9u : 4u;",
    "if (lane & 1u) {{ {w} += __shfl_xor_sync(0xaaaaaaaau, {w}, 2); {w} = {w} * {o}; }}"
    " else {{ {w} ^= __shfl_xor_sync(0x55555555u, {w}, 4); }}",
    "if (t < 8u) tally[t] = 0u; __syncthreads(); atomicAdd(&tally[{w} & 7u], {w}); __syncthreads();"
    " {w} += tally[lane & 7u]; __syncthreads();",
    "if (t < 8u) tally[t] = 0u; __syncthreads(); atomicMax(&tally[{w} & 7u], {w}); __syncthreads();"
    " {w} ^= tally[lane & 7u]; __syncthreads();",
)
CONDITIONS = (
    "({w} & 12u) {q} 4u",
    "({w} & 1u) {q} 1u",
    "(int){w} {q} (int){o}",
    "{f} {q} {f}",
    "h {q} {K}",
    "(t % 7u) {q} {x}u",
    "(int)s {q} {n}",
    "(e >> {n}) & 1ull",
)
PTX_OPERATIONS = {
    1: "not.b32 neg.s32 abs.s32 popc.b32 clz.b32 brev.b32 cnot.b32 bfind.u32 bfind.shiftamt.s32",
    2: "sub.u32 mul.hi.u32 mul.hi.s32 min.u32 max.s32 mul24.lo.u32 add.sat.s32 sub.sat.s32 set.lt.u32.s32",
    3: "mad.lo.u32 mad.hi.u32 mad.hi.s32 sad.u32 sad.s32 prmt.b32 prmt.b32.f4e prmt.b32.rc16 dp4a.u32.u32 dp4a.s32.u32"
    " dp2a.lo.u32.u32 shf.l.wrap.b32 shf.r.clamp.b32 bfe.u32 bfe.s32 vadd4.u32.u32.u32.sat vabsdiff4.u32.u32.u32",
}
PTX_FLOW = (  # blocks in an order that no compiler would choose
    'asm volatile("{{ .reg .pred p; .reg .u32 v; mov.u32 v, %1; setp.{p}.s32 p, %1, %2; @p bra FIRST; bra SECOND;'
    " JOIN: xor.b32 %0, v, %2; bra DONE; SECOND: mad.lo.u32 v, v, 3, 1; bra JOIN;"
    ' FIRST: shr.u32 v, v, 3; bra JOIN; DONE: }}" : "=r"({w}) : "r"({w}), "r"({w}));',
    'asm volatile("{{ .reg .pred p; .reg .u32 k, v; mov.u32 v, %1; and.b32 k, %2, 7; bra TEST;'
    " BODY: mad.lo.u32 v, v, 5, k; sub.u32 k, k, 1;"
    ' TEST: setp.ne.u32 p, k, 0; @p bra BODY; add.u32 %0, v, %1; }}" : "=r"({w}) : "r"({w}), "r"({w}));',
)
CHOICES = {
    "w": ("a", "b", "c", "d"),
    "o": ("a", "b", "c", "d", "0u", "1u", "17u", "65537u", "0x80000000u", "0xffffffffu"),
    "f": ("f", "g"),
    "r": ("rn", "rz", "ru", "rd"),
    "k": ("0.0f", "1.0f", "-1.5f", "0.1f", "3.0e-39f", "1.0e30f", "-65504.0f", "16777216.0f"),
    "K": ("1.0", "-1.5", "0.1", "3.0e-310", "1.0e30", "-65504.0", "9007199254740993.0"),
    "c": CONDITIONS,
    "q": ("<", ">", "==", "!=", "<=", ">="),
    "p": ("eq", "ne", "lt", "le", "gt", "ge"),
    "n": tuple(str(number) for number in range(1, 32)),
    "x": ("1", "2", "4", "8", "16"),
}
UNROLLED = ("", "", "#pragma unroll 1", "#pragma unroll 2", "#pragma unroll 4")

KERNEL = """//! op      mixed(x) -> y
//! out     y: i32[RESULTS]
//! need    x.dtype == i32
//! launch  mixed<<<BLOCKS, THREADS>>>(x, y, x.numel)

__device__ unsigned bits(float value) { return value == value ? __float_as_uint(value) : 0x7fc00000u; }

__global__ void mixed(const unsigned* __restrict__ x, unsigned* __restrict__ y, int n) {
  __shared__ unsigned held[THREADS];
  __shared__ unsigned tally[8];
  const unsigned t = threadIdx.x, lane = t & 31u, self = blockIdx.x * THREADSu + t;
  unsigned a = x[self % n], b = x[(self * 7u + 3u) % n], c = t * 2654435761u, d = blockIdx.x + 1u;
  unsigned long long e = ((unsigned long long)a << 32) | b;
  float f = __uint_as_float((a & 0x007fffffu) | 0x3f800000u), g = (float)(int)(b >> 8);
  double h = (double)(int)a;
  short s = (short)b;
  unsigned char q = (unsigned char)(a >> 5);
  unsigned* mine = y + self * WORDSu;
BODY
  mine[0] = a; mine[1] = b; mine[2] = c ^ d; mine[3] = (unsigned)(e ^ (e >> 32)); mine[4] = bits(f); mine[5] = bits(g);
  mine[6] = h == h ? (unsigned)__double2hiint(h) ^ (unsigned)__double2loint(h) : 1u;
  mine[7] = ((unsigned)(unsigned short)s << 8) | q;
}
"""
LEAVING = "if (({w} & 15u) == {n}u) {{ for (unsigned k = 0; k < WORDSu; ++k) mine[k] = {w} + k; return; }}"


class _Drawing:
    """One program in the making."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._lines: list[str] = []
        self._loops = 0
        self._leavers = self._random.random() < 0.25  # threads that left take no part in barriers or shuffles

    def text(self) -> str:
        self._block(2, 0, True, self._random.randint(12, 40))
        text = KERNEL.replace("BODY", "\n".join(self._lines)).replace("RESULTS", str(BLOCKS * THREADS * WORDS))
        for name, value in (("THREADS", THREADS), ("BLOCKS", BLOCKS), ("WORDS", WORDS)):
            text = re.sub(rf"\b{name}(u?)\b", rf"{value}\1", text)
        return text

    def _block(self, indent: int, depth: int, uniform: bool, count: int) -> None:
        """Statements; `uniform`: all threads of the block are here together."""
        for _ in range(count):
            draw = self._random.random()
            if depth < 3 and draw < 0.11:
                self._branch(indent, depth)
            elif depth < 3 and draw < 0.22:
                self._loop(indent, depth, uniform)
            elif depth < 3 and draw < 0.25:
                self._switch(indent)
            elif depth == 0 and draw < 0.28 and self._leavers:
                self._say(indent, self._drawn((LEAVING,)))
            elif uniform and not self._leavers and draw < 0.42:
                self._say(indent, self._drawn(TOGETHER))
            else:
                self._say(indent, self._statement())

    def _branch(self, indent: int, depth: int) -> None:
        self._say(indent, f"if ({self._drawn(CONDITIONS)}) {{")
        self._block(indent + 2, depth + 1, False, self._random.randint(1, 5))
        if self._random.random() < 0.6:
            self._say(indent, "} else {")
            self._block(indent + 2, depth + 1, False, self._random.randint(1, 5))
        self._say(indent, "}")

    def _loop(self, indent: int, depth: int, uniform: bool) -> None:
        self._loops += 1
        turn, turns = f"i{self._loops}", f"n{self._loops}"
        fixed = uniform and self._random.random() < 0.5
        self._say(
            indent, f"const unsigned {turns} = {self._random.randint(1, 6) if fixed else self._drawn(('{w} & 7u',))};"
        )
        unrolled = self._random.choice((*UNROLLED, "#pragma unroll") if fixed else UNROLLED)
        if unrolled:
            self._say(0, unrolled)
        self._say(indent, f"for (unsigned {turn} = 0; {turn} < {turns}; ++{turn}) {{")
        self._say(indent + 2, f"c = c * 31u + {turn};")
        self._block(indent + 2, depth + 1, fixed, self._random.randint(1, 5))
        if not fixed and self._random.random() < 0.5:
            self._say(indent + 2, f"if ({self._drawn(CONDITIONS)}) {self._random.choice(('break', 'continue'))};")
            self._say(indent + 2, self._statement())
        self._say(indent, "}")

    def _switch(self, indent: int) -> None:
        self._say(indent, self._drawn(("switch ({w} & 7u) {{",)))
        for case in range(self._random.randint(2, 6)):
            falls = "" if self._random.random() < 0.7 else "  // falls through"
            self._say(indent + 2, f"case {case}: {self._statement()}{falls or ' break;'}")
        self._say(indent + 2, f"default: {self._statement()}")
        self._say(indent, "}")

    def _statement(self) -> str:
        kind = self._random.choices(
            (INTEGER, LONG, FLOATING, CONVERSIONS, PTX_FLOW, PTX_OPERATIONS), (30, 8, 22, 14, 8, 18)
        )[0]
        return self._ptx() if isinstance(kind, dict) else self._drawn(kind)

    def _ptx(self) -> str:
        if self._random.random() < 0.2:
            table = self._random.randint(0, 255)
            given = ", ".join(f'"r"({word})' for word in self._random.sample(CHOICES["w"], 3))
            return self._drawn((f'asm("lop3.b32 %0, %1, %2, %3, {table};" : "=r"({{w}}) : {given});',))
        count = self._random.choice((1, 2, 3))
        name = self._random.choice(PTX_OPERATIONS[count].split())
        word = '"r"({w} & 31u)' if name.startswith("bfe") else '"r"({w})'
        operands, given = ", ".join(f"%{number}" for number in range(count + 1)), ", ".join([word] * count)
        return self._drawn((f'asm("{name} {operands};" : "=r"({{w}}) : {given});',))

    def _drawn(self, templates: Sequence[str]) -> str:
        """A statement with its places filled, each drawn anew."""
        text = self._random.choice(templates)
        while re.search(r"(?<!\{)\{[a-zA-Z]\}", text):
            text = re.sub(r"(?<!\{)\{([a-zA-Z])\}", lambda place: self._random.choice(CHOICES[place[1]]), text)
        return text.replace("{{", "{").replace("}}", "}")

    def _say(self, indent: int, text: str) -> None:
        self._lines.append(" " * indent + text)


def program(seed: int) -> str:
    """The kernel file of a seed, the same wherever it is drawn."""
    return _Drawing(seed).text()
