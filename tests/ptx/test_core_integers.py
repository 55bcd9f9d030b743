"""Integer instructions in every width and sign against Python's integers: one kernel runs them all."""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
from tests.ptx.cuda_kernels import QUICK

from tilewright.ptx.global_memory import GlobalMemory
from tilewright.ptx.launching import LaunchRequest
from tilewright.ptx.program import load_program

Semantics = Callable[[int, int, int], int]
LANES = 32


def truncated(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def field(a: int, at: int, length: int, bits: int, signed: bool) -> int:
    at, length = at & 255, length & 255
    if length == 0:
        return 0
    value = (a >> at) & ((1 << length) - 1) if at < bits else 0
    top = min(at + length - 1, bits - 1)
    if signed and a >> top & 1:
        kept = top - at + 1 if at < bits else 0
        value |= -1 << max(kept, 0)
    return value


def instructions() -> list[tuple[str, str, str, Semantics]]:
    """Text, type of the operands, type of the result, meaning. x and y are registers of the type, s is 32 bits."""
    found: list[tuple[str, str, str, Semantics]] = []
    for bits in (16, 32, 64):
        for sign in "su":
            kind = f"{sign}{bits}"
            found += [
                (f"add.{kind} D, X, Y;", kind, kind, lambda a, b, s: a + b),
                (f"sub.{kind} D, X, Y;", kind, kind, lambda a, b, s: a - b),
                (f"mul.lo.{kind} D, X, Y;", kind, kind, lambda a, b, s: a * b),
                (f"mul.hi.{kind} D, X, Y;", kind, kind, lambda a, b, s, n=bits: (a * b) >> n),
                (f"mad.lo.{kind} D, X, Y, Y;", kind, kind, lambda a, b, s: a * b + b),
                (f"mad.hi.{kind} D, X, Y, Y;", kind, kind, lambda a, b, s, n=bits: ((a * b) >> n) + b),
                (f"sad.{kind} D, X, Y, Y;", kind, kind, lambda a, b, s: abs(a - b) + b),
                (f"div.{kind} D, X, Y;", kind, kind, lambda a, b, s: truncated(a, b) if b else -1),
                (f"rem.{kind} D, X, Y;", kind, kind, lambda a, b, s: a - truncated(a, b) * b if b else a),
                (f"min.{kind} D, X, Y;", kind, kind, lambda a, b, s: min(a, b)),
                (f"max.{kind} D, X, Y;", kind, kind, lambda a, b, s: max(a, b)),
                (f"shr.{kind} D, X, S;", kind, kind, lambda a, b, s: a >> s),
                (f"slct.{kind}.s32 D, X, Y, S;", kind, kind, lambda a, b, s: a if s < 2**31 else b),
                *(
                    (f"setp.{name}.{kind} P, X, Y; selp.{kind} D, X, Y, P;", kind, kind, chosen)
                    for name, chosen in comparisons()
                ),
            ]
            if bits < 64:
                wide = f"{sign}{2 * bits}"
                found += [
                    (f"mul.wide.{kind} D, X, Y;", kind, wide, lambda a, b, s: a * b),
                    (
                        f"mul.wide.{kind} D, X, Y; mad.wide.{kind} D, X, X, D;",
                        kind,
                        wide,
                        lambda a, b, s: a * b + a * a,
                    ),
                ]
            if bits > 16:
                found += [
                    (
                        f"bfe.{kind} D, X, S, 9;",
                        kind,
                        kind,
                        lambda a, b, s, n=bits, g=sign: field(a, s, 9, n, g == "s"),
                    ),
                    (f"bfind.{kind} D, X;", kind, "u32", lambda a, b, s: (a if a >= 0 else ~a).bit_length() - 1),
                ]
        kind, unsigned = f"b{bits}", f"u{bits}"
        found += [
            (f"and.{kind} D, X, Y;", unsigned, unsigned, lambda a, b, s: a & b),
            (f"or.{kind} D, X, Y;", unsigned, unsigned, lambda a, b, s: a | b),
            (f"xor.{kind} D, X, Y;", unsigned, unsigned, lambda a, b, s: a ^ b),
            (f"not.{kind} D, X;", unsigned, unsigned, lambda a, b, s: ~a),
            (f"cnot.{kind} D, X;", unsigned, unsigned, lambda a, b, s: int(a == 0)),
            (f"shl.{kind} D, X, S;", unsigned, unsigned, lambda a, b, s, n=bits: a << s if s < n else 0),
            (f"neg.s{bits} D, X;", f"s{bits}", unsigned, lambda a, b, s: -a),
            (f"abs.s{bits} D, X;", f"s{bits}", unsigned, lambda a, b, s: abs(a)),
        ]
        if bits > 16:
            found += [
                (f"popc.{kind} D, X;", unsigned, "u32", lambda a, b, s: a.bit_count()),
                (f"clz.{kind} D, X;", unsigned, "u32", lambda a, b, s, n=bits: n - a.bit_length()),
                (f"brev.{kind} D, X;", unsigned, unsigned, lambda a, b, s, n=bits: int(f"{a:0{n}b}"[::-1], 2)),
            ]
    for sign in "su":
        low = (lambda v: ((v & 0xFFFFFF) ^ 0x800000) - 0x800000) if sign == "s" else (lambda v: v & 0xFFFFFF)
        kind = f"{sign}32"
        found += [
            (f"mul24.lo.{kind} D, X, Y;", kind, kind, lambda a, b, s, g=low: g(a) * g(b)),
            (f"mul24.hi.{kind} D, X, Y;", kind, kind, lambda a, b, s, g=low: (g(a) * g(b)) >> 16),
            (f"mad24.lo.{kind} D, X, Y, Y;", kind, kind, lambda a, b, s, g=low: g(a) * g(b) + b),
            (f"mad24.hi.{kind} D, X, Y, Y;", kind, kind, lambda a, b, s, g=low: ((g(a) * g(b)) >> 16) + b),
        ]
    return found


def comparisons() -> list[tuple[str, Semantics]]:
    return [
        ("eq", lambda a, b, s: a if a == b else b),
        ("ne", lambda a, b, s: a if a != b else b),
        ("lt", lambda a, b, s: a if a < b else b),
        ("le", lambda a, b, s: a if a <= b else b),
        ("gt", lambda a, b, s: a if a > b else b),
        ("ge", lambda a, b, s: a if a >= b else b),
    ]


def operands(kind: str, rng: np.random.Generator) -> np.ndarray:
    bits = int(kind[1:])
    values = rng.integers(0, 2**bits, LANES, dtype=np.uint64, endpoint=False) if bits < 64 else None
    if values is None:
        values = rng.integers(0, 2**64, LANES, dtype=np.uint64)
    edges = [0, 1, 2**bits - 1, 2 ** (bits - 1), 2 ** (bits - 1) - 1, 5, 2**bits - 5]
    values[: len(edges)] = edges
    return values


def as_signed(value: int, kind: str) -> int:
    bits = int(kind[1:])
    value &= (1 << bits) - 1
    return value - (1 << bits) if kind[0] == "s" and value >> (bits - 1) else value


def test_every_integer_instruction() -> None:
    rng = np.random.default_rng(11)
    listed = instructions()
    text = """.version 8.7\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 px, .param .u64 py) {
.reg .pred P; .reg .b64 t<4>, x, y; .reg .b32 T, S; .reg .b16 h<3>; .reg .b32 w<3>; .reg .b64 q<3>;
ld.param.u64 x, [px]; ld.param.u64 y, [py]; mov.u32 T, %tid.x;
mul.wide.u32 t0, T, 8; add.s64 x, x, t0; add.s64 y, y, t0;\n"""
    registers = {"16": "h", "32": "w", "64": "q"}
    inputs = []
    for number, (what, kind, result, _) in enumerate(listed):
        a, b = operands(kind, rng), np.roll(operands(kind, rng), number % 5)
        shift = rng.integers(0, 80, LANES, dtype=np.uint64)
        inputs += [a, b, shift]
        held, out = registers[kind[1:]], registers[result[1:]]
        at = number * 3 * LANES * 8
        load, store = f"ld.global.u{kind[1:]}", f"st.global.u{result[1:]}"
        text += (
            f"{load} {held}0, [x+{at}]; {load} {held}1, [x+{at + LANES * 8}]; ld.global.u32 S, [x+{at + LANES * 16}];\n"
        )
        body = what.replace("X", f"{held}0").replace("Y", f"{held}1").replace("D", f"{out}2")
        text += f"{body} {store} [y+{number * LANES * 8}], {out}2;\n"
    memory = GlobalMemory()
    x = memory.add("x", len(inputs) * LANES * 8, element_bytes=8, data=np.concatenate(inputs).tobytes())
    y = memory.add("y", len(listed) * LANES * 8, element_bytes=8)
    request = LaunchRequest("k", (1, 1, 1), (LANES, 1, 1), 0, struct.pack("<QQ", x, y), options=QUICK)
    outcome = load_program(text + "ret;\n}").launch(memory, request)
    assert not outcome.findings
    got = memory.bytes("y").view(np.uint64).reshape(len(listed), LANES)
    wrong = []
    for number, (what, kind, result, meaning) in enumerate(listed):
        a, b, shift = (inputs[3 * number + k] for k in range(3))
        for lane in range(LANES):
            arguments = as_signed(int(a[lane]), kind), as_signed(int(b[lane]), kind), int(shift[lane])
            expected = meaning(*arguments) % 2 ** int(result[1:])
            if int(got[number, lane]) != expected:
                wrong.append(f"{what} on {arguments}: {int(got[number, lane]):#x}, expected {expected:#x}")
    assert not wrong, "\n".join(wrong[:20])
    assert len(listed) > 150
