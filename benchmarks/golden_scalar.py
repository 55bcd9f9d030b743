"""Golden families of one-thread instructions: conversions, rounding, approximations, narrow floats, comparisons."""

from __future__ import annotations

import numpy as np
from benchmarks.golden_inputs import (
    f32_words,
    f64_words,
    half_words,
    integer_words,
    shuffled,
)
from benchmarks.golden_probe import ANY_NAN, Family, Kind, Probe, Tolerance, Words, instruction

THREADS = 512
_MODES = ("rn", "rz", "rm", "rp")
_INTEGRAL = ("rni", "rzi", "rmi", "rpi")
# Constraint letter of a register that holds a type, 8-bit types in 16-bit registers as PTX wants them.
_LETTER = {
    "u8": "h", "s8": "h", "u16": "h", "s16": "h", "u32": "r", "s32": "r", "u64": "l", "s64": "l",
    "f16": "h", "bf16": "h", "f32": "f", "f64": "d",
}  # fmt: skip
_INTEGERS = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")


def _cvt(modifiers: str) -> Probe:
    """A one-operand cvt by its modifiers. 8-bit operands pass through a register of their own type."""
    *_, to, source = modifiers.split(".")
    text = f"cvt.{modifiers} %0, %1;"
    if to in ("u8", "s8"):
        text = f"{{ .reg .b32 t; cvt.{modifiers} t, %1; cvt.u16.u32 %0, t; and.b16 %0, %0, 255; }}"
    elif source in ("u8", "s8"):
        text = f"{{ .reg .b32 t; cvt.u32.u16 t, %1; and.b32 t, t, 255; cvt.{modifiers} %0, t; }}"
    return instruction(text, _LETTER[to], _LETTER[source], label=f"cvt.{modifiers}")


def _packing(modifiers: str, output: str = "r") -> Probe:
    return instruction(f"cvt.{modifiers} %0, %1, %2;", output, "ff")


def conversions_from_f32() -> Family:
    probes = [_cvt(f"{mode}.{to}.f32") for to in _INTEGERS for mode in _INTEGRAL]
    probes += [_cvt(f"{mode}.ftz.s32.f32") for mode in _INTEGRAL]
    probes += [_cvt(f"{mode}.f32.f32") for mode in _INTEGRAL]
    probes += [_cvt(m) for m in ("rni.ftz.f32.f32", "rzi.sat.f32.f32", "sat.f32.f32", "ftz.f32.f32", "ftz.sat.f32.f32")]
    probes += [_cvt(m) for m in ("f64.f32", "ftz.f64.f32")]
    for kind in ("f16", "bf16"):
        for mode in ("rn", "rz"):
            probes += [_cvt(f"{mode}.{kind}.f32"), _cvt(f"{mode}.relu.{kind}.f32")]
            probes += [_packing(f"{mode}.{kind}x2.f32"), _packing(f"{mode}.relu.{kind}x2.f32")]
            probes += [_cvt(f"{mode}.satfinite.{kind}.f32"), _packing(f"{mode}.satfinite.{kind}x2.f32")]
    probes += [_cvt("rn.ftz.f16.f32"), _cvt("rn.sat.f16.f32"), _cvt("rm.f16.f32"), _cvt("rp.f16.f32")]
    for modifiers in ("rna", "rn", "rz", "rn.relu", "rz.relu", "rna.satfinite"):
        probes.append(instruction(f"cvt.{modifiers}.tf32.f32 %0, %1;", "r", "f", label=f"cvt.{modifiers}.tf32.f32"))
    for kind in ("e4m3x2", "e5m2x2"):
        probes += [_packing(f"rn.satfinite.{kind}.f32", "h"), _packing(f"rn.satfinite.relu.{kind}.f32", "h")]
    words = f32_words(THREADS, 11)
    return Family("cvt_from_f32", tuple(probes), np.stack([words, shuffled(words, 12)]))


def conversions_from_f64() -> Family:
    probes = [_cvt(f"{mode}.{to}.f64") for to in ("u8", "s16", "u32", "s32", "u64", "s64") for mode in _INTEGRAL]
    probes += [_cvt(f"{mode}.f64.f64") for mode in _INTEGRAL]
    probes += [_cvt(f"{mode}.f32.f64") for mode in _MODES]
    probes += [_cvt(f"{mode}.f16.f64") for mode in _MODES]
    probes += [_cvt(m) for m in ("rn.ftz.f32.f64", "rz.sat.f32.f64", "sat.f64.f64", "rn.bf16.f64", "rz.bf16.f64")]
    return Family("cvt_from_f64", tuple(probes), np.stack([f64_words(THREADS // 2, 21)]))


def conversions_from_half() -> Family:
    probes: list[Probe] = []
    for kind in ("f16", "bf16"):
        probes += [_cvt(f"{to}.{kind}") for to in ("f32", "f64")]
        for to in ("s16", "u32", "s32", "s64", *(("u8",) if kind == "f16" else ())):
            probes += [_cvt(f"{mode}.{to}.{kind}") for mode in ("rni", "rzi")]
        probes += [_cvt(f"{mode}.{kind}.{kind}") for mode in _INTEGRAL]
    probes += [_cvt(m) for m in ("rmi.s32.f16", "rpi.s32.f16", "sat.f16.f16", "sat.f32.f16", "ftz.f32.f16")]
    probes += [_cvt(m) for m in ("rn.bf16.f16", "rz.bf16.f16", "rn.f16.bf16", "rz.f16.bf16", "rm.f16.bf16")]
    for kind in ("e4m3x2", "e5m2x2"):
        probes += [
            instruction(f"cvt.rn.f16x2.{kind} %0, %1;", "r", "h"),
            instruction(f"cvt.rn.relu.f16x2.{kind} %0, %1;", "r", "h"),
            instruction(f"cvt.rn.satfinite.{kind}.f16x2 %0, %1;", "h", "r", rows=(1,)),
            instruction(f"cvt.rn.satfinite.relu.{kind}.f16x2 %0, %1;", "h", "r", rows=(1,)),
        ]
    words = half_words(THREADS, 31)
    pairs = words | half_words(THREADS, 33) << np.uint64(16)
    return Family("cvt_from_half", tuple(probes), np.stack([words, pairs]))


def _holds(to: str, source: str) -> bool:
    """Whether no value of `source` needs clamping: PTX refuses .sat there."""
    to_bits, bits = int(to[1:]), int(source[1:])
    if to[0] == source[0]:
        return to_bits >= bits
    return to[0] == "s" and to_bits > bits


def conversions_from_integers() -> Family:
    probes: list[Probe] = []
    for source in _INTEGERS:
        probes += [_cvt(f"{mode}.{to}.{source}") for to in ("f16", "f32", "f64") for mode in _MODES]
    for source in ("s32", "u32", "s64", "u16"):
        probes += [_cvt(f"{mode}.bf16.{source}") for mode in ("rn", "rz", "rm")]
    for source in ("s32", "u32", "s64", "u64", "s16"):
        probes += [_cvt(f"sat.{to}.{source}") for to in _INTEGERS if not _holds(to, source)]
        probes += [_cvt(f"{to}.{source}") for to in _INTEGERS if to != source]
    probes.append(_cvt("rn.sat.f32.s32"))
    return Family("cvt_from_integers", tuple(probes), np.stack([integer_words(128, 41)]))


def arithmetic_f32() -> Family:
    """The roundings; .ftz, .sat; minimum and maximum."""
    probes: list[Probe] = []
    for mode in _MODES:
        for suffix in ("", ".ftz", ".sat", ".ftz.sat"):
            probes += [instruction(f"{op}.{mode}{suffix}.f32 %0, %1, %2;", "f", "ff") for op in ("add", "sub", "mul")]
            probes.append(instruction(f"fma.{mode}{suffix}.f32 %0, %1, %2, %3;", "f", "fff"))
        for suffix in ("", ".ftz"):
            probes.append(instruction(f"div.{mode}{suffix}.f32 %0, %1, %2;", "f", "ff"))
            probes += [instruction(f"{op}.{mode}{suffix}.f32 %0, %1;", "f", "f") for op in ("sqrt", "rcp")]
    for op in ("min", "max"):
        probes += [
            instruction(f"{op}{suffix}.f32 %0, %1, %2;", "f", "ff")
            for suffix in ("", ".ftz", ".NaN", ".xorsign.abs", ".NaN.xorsign.abs", ".ftz.NaN")
        ]
    for op in ("neg", "abs"):
        probes += [instruction(f"{op}{suffix}.f32 %0, %1;", "f", "f", Kind.F32, ANY_NAN) for suffix in ("", ".ftz")]
    words = f32_words(THREADS // 2, 51)
    return Family("arithmetic_f32", tuple(probes), np.stack([words, shuffled(words, 52), shuffled(words, 53)]))


def arithmetic_f64() -> Family:
    probes: list[Probe] = []
    for mode in _MODES:
        probes += [instruction(f"{op}.{mode}.f64 %0, %1, %2;", "d", "dd") for op in ("add", "sub", "mul", "div")]
        probes.append(instruction(f"fma.{mode}.f64 %0, %1, %2, %3;", "d", "ddd"))
        probes += [instruction(f"{op}.{mode}.f64 %0, %1;", "d", "d") for op in ("sqrt", "rcp")]
    probes += [instruction(f"{op}.f64 %0, %1, %2;", "d", "dd") for op in ("min", "max")]
    words = f64_words(THREADS // 4, 61)
    return Family("arithmetic_f64", tuple(probes), np.stack([words, shuffled(words, 62), shuffled(words, 63)]))


def _half_probes(kind: str, letter: str) -> list[Probe]:
    is_f16 = kind.startswith("f16")
    probes: list[Probe] = []
    for op in ("add", "sub", "mul"):
        for suffix in ("", ".ftz", ".sat", ".ftz.sat") if is_f16 else ("",):
            probes.append(instruction(f"{op}{suffix or '.rn'}.{kind} %0, %1, %2;", letter, letter * 2))
    for suffix in ("", ".ftz", ".sat", ".relu", ".ftz.relu") if is_f16 else ("", ".relu"):
        probes.append(instruction(f"fma.rn{suffix}.{kind} %0, %1, %2, %3;", letter, letter * 3))
    for op in ("min", "max"):
        for suffix in ("", ".NaN", ".xorsign.abs", ".NaN.xorsign.abs", *((".ftz",) if is_f16 else ())):
            probes.append(instruction(f"{op}{suffix}.{kind} %0, %1, %2;", letter, letter * 2))
    for op in ("neg", "abs"):
        for suffix in ("", ".ftz") if is_f16 else ("",):
            probes.append(instruction(f"{op}{suffix}.{kind} %0, %1;", letter, letter, Kind(kind), ANY_NAN))
    return probes


def arithmetic_half() -> Family:
    probes = [p for kind in ("f16", "bf16") for p in _half_probes(kind, "h")]
    probes += [p for kind in ("f16x2", "bf16x2") for p in _half_probes(kind, "r")]
    rows = [
        half_words(THREADS // 2, seed) | half_words(THREADS // 2, seed + 1) << np.uint64(16) for seed in (71, 73, 75)
    ]
    return Family("arithmetic_half", tuple(probes), np.stack([shuffled(row, 77 + k) for k, row in enumerate(rows)]))


def comparisons() -> Family:
    """All relations of one type in one word, a bit each."""
    probes: list[Probe] = []
    ordered = ("eq", "ne", "lt", "le", "gt", "ge")
    relations = (*ordered, *(f"{r}u" for r in ordered), "num", "nan")
    for kind, letter in (("f32", "f"), ("ftz.f32", "f"), ("f64", "d"), ("f16", "h"), ("bf16", "h")):
        row = 2 if kind == "f64" else 4 if letter == "h" else 0
        names = [r if kind != "ftz.f32" else f"{r}.ftz" for r in relations]
        suffix = kind.removeprefix("ftz.")
        text = "{ .reg .pred p; .reg .b32 t; mov.u32 %0, 0; "
        for bit, name in enumerate(names):
            text += f"setp.{name}.{suffix} p, %1, %2; selp.u32 t, {1 << bit}, 0, p; or.b32 %0, %0, t; "
        probes.append(_early_clobber(text + "}", letter, row, f"setp.{kind}"))
    for test in ("finite", "infinite", "number", "notanumber", "normal", "subnormal"):
        for kind, letter, row in (("f32", "f", 0), ("f64", "d", 2)):
            text = f"{{ .reg .pred p; testp.{test}.{kind} p, %1; selp.u32 %0, 1, 0, p; }}"
            probes.append(instruction(text, "r", letter, rows=(row,), label=f"testp.{test}.{kind}"))
    count = THREADS // 2
    f32, f64, half = f32_words(count, 81), f64_words(count, 83), half_words(count, 85)
    rows = [f32, shuffled(f32, 86), f64, shuffled(f64, 87), half, shuffled(half, 88)]
    return Family("comparisons", tuple(probes), np.stack(rows))


def _early_clobber(text: str, letter: str, row: int, label: str) -> Probe:
    """As `instruction`, for a text that writes its result before it has read its operands."""
    plain = instruction(text, "r", letter * 2, rows=(row, row + 1))
    return Probe(label, plain.code.replace('"=r"', '"=&r"'), plain.results)


_INTEGER_TEXTS = (
    *(f"prmt.b32{mode} %0, %1, %2, %3;" for mode in ("", ".f4e", ".b4e", ".rc8", ".ecl", ".ecr", ".rc16")),
    "bfe.u32 %0, %1, %2, %3;", "bfe.s32 %0, %1, %2, %3;", "brev.b32 %0, %1;", "popc.b32 %0, %1;", "clz.b32 %0, %1;",
    "bfind.u32 %0, %1;", "bfind.s32 %0, %1;", "bfind.shiftamt.u32 %0, %1;", "fns.b32 %0, %1, 5, 2;",
    "shf.l.wrap.b32 %0, %1, %2, %3;", "shf.l.clamp.b32 %0, %1, %2, %3;", "shf.r.wrap.b32 %0, %1, %2, %3;",
    "shf.r.clamp.b32 %0, %1, %2, %3;", "shl.b32 %0, %1, %3;", "shr.u32 %0, %1, %3;", "shr.s32 %0, %1, %3;",
    "bmsk.clamp.b32 %0, %2, %3;", "bmsk.wrap.b32 %0, %2, %3;", "szext.clamp.s32 %0, %1, %3;",
    "szext.wrap.u32 %0, %1, %3;", "lop3.b32 %0, %1, %2, %3, 0xe8;", "lop3.b32 %0, %1, %2, %3, 0x96;",
    "lop3.b32 %0, %1, %2, %3, 0x1b;", "dp4a.s32.s32 %0, %1, %2, %3;", "dp4a.u32.s32 %0, %1, %2, %3;",
    "dp4a.u32.u32 %0, %1, %2, %3;", "dp2a.lo.s32.s32 %0, %1, %2, %3;", "dp2a.hi.u32.s32 %0, %1, %2, %3;",
    "mul.hi.u32 %0, %1, %2;", "mul.hi.s32 %0, %1, %2;", "mul24.lo.u32 %0, %1, %2;", "mul24.hi.s32 %0, %1, %2;",
    "mad24.lo.s32 %0, %1, %2, %3;", "sad.s32 %0, %1, %2, %3;", "sad.u32 %0, %1, %2, %3;", "abs.s32 %0, %1;",
    "add.sat.s32 %0, %1, %2;", "sub.sat.s32 %0, %1, %2;", "mad.hi.sat.s32 %0, %1, %2, %3;", "min.s32 %0, %1, %2;",
    "cnot.b32 %0, %1;", "cvt.pack.sat.s8.s32.b32 %0, %1, %2, %3;", "cvt.pack.sat.u16.s32 %0, %1, %2;",
    "cvt.pack.sat.u8.s32.b32 %0, %1, %2, %3;", "vabsdiff4.u32.u32.u32 %0, %1, %2, %3;",
    "add.s16x2 %0, %1, %2;", "max.s16x2 %0, %1, %2;", "min.u16x2 %0, %1, %2;",
)  # fmt: skip


def integers() -> Family:
    """Bit fields, permutes, shifts past the width, dot products, clamped sums."""
    probes = [instruction(text, "r", "rrr") for text in _INTEGER_TEXTS]
    low = np.uint64(0xFFFFFFFF)
    words = integer_words(128, 121) & low
    third = np.concatenate([np.arange(40, dtype=np.uint64), shuffled(words, 123)[40:]])
    return Family("integers", tuple(probes), np.stack([words, shuffled(words, 122), third]))


def _approximate_inputs() -> Words:
    words = f32_words(THREADS, 91)
    return np.stack([words, shuffled(words, 92)])


def approximations() -> Family:
    """Closer to the hardware than the errors PTX documents."""
    one, two = Tolerance(ulp=1), Tolerance(ulp=2)
    f32 = Kind.F32
    probes: list[Probe] = []
    for suffix in ("", ".ftz"):
        for op, tolerance in (
            ("rcp", one), ("rsqrt", one), ("sqrt", one), ("ex2", two),
            ("lg2", Tolerance(ulp=2, absolute=2.0**-21)), ("sin", Tolerance(absolute=2.0**-19)),
            ("cos", Tolerance(absolute=2.0**-19)),
        ):  # fmt: skip
            probes.append(instruction(f"{op}.approx{suffix}.f32 %0, %1;", "f", "f", f32, tolerance))
        probes.append(instruction(f"div.approx{suffix}.f32 %0, %1, %2;", "f", "ff", f32, two))
        probes.append(instruction(f"div.full{suffix}.f32 %0, %1, %2;", "f", "ff", f32, two))
    probes.append(instruction("tanh.approx.f32 %0, %1;", "f", "f", f32, Tolerance(ulp=2.0**13)))
    return Family("approximations", tuple(probes), _approximate_inputs())


def approximations_f64() -> Family:
    coarse = Tolerance(ulp=2.0**34)
    probes = [
        instruction("rcp.approx.ftz.f64 %0, %1;", "d", "d", Kind.F64, coarse),
        instruction("rsqrt.approx.ftz.f64 %0, %1;", "d", "d", Kind.F64, coarse),
        instruction("rsqrt.approx.f64 %0, %1;", "d", "d", Kind.F64, coarse),
    ]
    return Family("approximations_f64", tuple(probes), np.stack([f64_words(THREADS // 2, 101)]))


def approximations_half() -> Family:
    probes = [
        instruction("ex2.approx.f16 %0, %1;", "h", "h", Kind.F16, Tolerance(ulp=2)),
        instruction("tanh.approx.f16 %0, %1;", "h", "h", Kind.F16, Tolerance(ulp=2)),
        instruction("ex2.approx.f16x2 %0, %1;", "r", "r", Kind.F16X2, Tolerance(ulp=2)),
        instruction("tanh.approx.f16x2 %0, %1;", "r", "r", Kind.F16X2, Tolerance(ulp=2)),
        instruction("ex2.approx.ftz.bf16 %0, %1;", "h", "h", Kind.BF16, Tolerance(ulp=2)),
        instruction("tanh.approx.bf16 %0, %1;", "h", "h", Kind.BF16, Tolerance(ulp=2)),
        instruction("ex2.approx.ftz.bf16x2 %0, %1;", "r", "r", Kind.BF16X2, Tolerance(ulp=2)),
        instruction("tanh.approx.bf16x2 %0, %1;", "r", "r", Kind.BF16X2, Tolerance(ulp=2)),
    ]
    words = half_words(THREADS, 111) | shuffled(half_words(THREADS, 113), 114) << np.uint64(16)
    return Family("approximations_half", tuple(probes), np.stack([words]))


def scalar_families() -> tuple[Family, ...]:
    return (
        conversions_from_f32(),
        conversions_from_f64(),
        conversions_from_half(),
        conversions_from_integers(),
        arithmetic_f32(),
        arithmetic_f64(),
        arithmetic_half(),
        comparisons(),
        integers(),
        approximations(),
        approximations_f64(),
        approximations_half(),
    )
