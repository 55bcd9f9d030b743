"""What a golden vector is: an instruction run on chosen inputs, its results, and how close an emulation must come.

A family is one kernel file: every thread reads its words of `x`, runs each probe and writes its words to `y`.
Nothing here runs or builds anything.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]


class Kind(str, Enum):
    """How the bits of a result are read."""

    BITS = "bits"
    F16 = "f16"
    F16X2 = "f16x2"
    BF16 = "bf16"
    BF16X2 = "bf16x2"
    F32 = "f32"
    F64 = "f64"


@dataclass(frozen=True)
class Tolerance:
    """A result passes if it is within `ulp` units in the last place of the recorded one, or within `absolute` of it.

    Without either only the same bits pass. Under a tolerance, and with `any_nan`, NaN passes for NaN whatever its bits;
    under a tolerance zeros of either sign are equal.
    """

    ulp: float = 0.0
    absolute: float = 0.0
    any_nan: bool = False

    @property
    def exact(self) -> bool:
        return self.ulp == 0.0 and self.absolute == 0.0 and not self.any_nan


EXACT = Tolerance()
ANY_NAN = Tolerance(any_nan=True)  # the bits of a NaN are unspecified


@dataclass(frozen=True)
class Probe:
    """One instruction. `code` is C++ that reads `IN(row)` and calls `PUT(result, word)` for each of `results`."""

    label: str
    code: str
    results: tuple[Kind, ...]
    tolerance: Tolerance = EXACT


@dataclass(frozen=True)
class Family:
    name: str
    probes: tuple[Probe, ...]
    inputs: Words  # [rows, threads], threads a multiple of 32; one warp to a block
    preamble: str = ""

    @property
    def rows(self) -> int:
        return sum(len(probe.results) for probe in self.probes)

    @property
    def threads(self) -> int:
        return int(self.inputs.shape[1])

    def source(self) -> str:
        """The kernel file."""
        return _source(self)

    def identity(self) -> str:
        """Changes whenever recorded results no longer belong to this family."""
        return hashlib.sha256(self.source().encode() + self.inputs.tobytes()).hexdigest()


_PLAN = """\
//! op      golden(x) -> y
//! need    x.dtype == i64 and x.ndim == 2
//! let     n = x.shape[1]
//! out     y: i64[{rows}, n]
//! launch  golden<<<n / 32, 32>>>(x, y, n)
{preamble}
#define IN(row) ((unsigned long long)x[(row) * (long long)n + i])
#define PUT(result, word) (y[(result) * (long long)n + i] = (long long)(word))
"""


def _source(family: Family) -> str:
    parts = [_PLAN.format(rows=family.rows, preamble=family.preamble)]
    calls: list[str] = []
    row = 0
    for number, probe in enumerate(family.probes):
        parts.append(
            f"__device__ __forceinline__ void probe{number}(const long long* x, long long* y, int n, int i) {{"
            f"  // {probe.label}\n{probe.code}\n}}"
        )
        calls.append(f"  probe{number}(x, y + {row}ll * n, n, i);")
        row += len(probe.results)
    parts.append("__global__ void golden(const long long* x, long long* y, int n) {")
    parts.append("  int i = blockIdx.x * 32 + threadIdx.x;")
    parts.extend(calls)
    parts.append("}\n")
    return "\n".join(parts)


# -- probes from inline PTX --

_C_TYPE = {"h": "unsigned short", "r": "unsigned", "l": "unsigned long long", "f": "float", "d": "double"}
_AS_WORD = {
    "h": "{0}",
    "r": "{0}",
    "l": "{0}",
    "f": "__float_as_uint({0})",
    "d": "(unsigned long long)__double_as_longlong({0})",
}
_FROM_WORD = {
    "h": "(unsigned short)IN({0})",
    "r": "(unsigned)IN({0})",
    "l": "IN({0})",
    "f": "__uint_as_float((unsigned)IN({0}))",
    "d": "__longlong_as_double((long long)IN({0}))",
}


def instruction(
    text: str,
    outputs: str,
    operands: str,
    kinds: Kind | tuple[Kind, ...] = Kind.BITS,
    tolerance: Tolerance = EXACT,
    rows: Sequence[int] = (),
    label: str = "",
) -> Probe:
    """A probe of one PTX text. `outputs`, `operands`: asm constraint letters. `rows`: of the inputs, else 0, 1, ..."""
    rows = rows or range(len(operands))
    names = [f"d{j}" for j in range(len(outputs))]
    declared = " ".join(f"{_C_TYPE[c]} {name};" for c, name in zip(outputs, names, strict=True))
    outs = ", ".join(f'"={c}"({name})' for c, name in zip(outputs, names, strict=True))
    ins = ", ".join(f'"{c}"({_FROM_WORD[c].format(row)})' for c, row in zip(operands, rows, strict=True))
    puts = " ".join(
        f"PUT({j}, {_AS_WORD[c].format(name)});" for j, (c, name) in enumerate(zip(outputs, names, strict=True))
    )
    code = f'  {declared}\n  asm volatile("{text}" : {outs} : {ins});\n  {puts}'
    results = kinds if isinstance(kinds, tuple) else (kinds,) * len(outputs)
    return Probe(label or text.split(" ")[0].rstrip(";"), code, results, tolerance)


# -- comparing --


def _values(bits: Words, kind: Kind) -> NDArray[np.float64]:
    if kind is Kind.F16:
        return bits.astype(np.uint16).view(np.float16).astype(np.float64)
    if kind is Kind.BF16:
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    if kind is Kind.F32:
        return bits.astype(np.uint32).view(np.float32).astype(np.float64)
    return bits.view(np.float64)


_MANTISSA_BITS = {Kind.F16: 10, Kind.BF16: 7, Kind.F32: 23, Kind.F64: 52}
_SMALLEST_EXPONENT = {Kind.F16: -14, Kind.BF16: -126, Kind.F32: -126, Kind.F64: -1022}


def _unit(values: NDArray[np.float64], kind: Kind) -> NDArray[np.float64]:
    size = np.where(np.isfinite(values), np.abs(values), 1.0)
    exponent = np.frexp(np.where(size > 0, size, 1.0))[1] - 1
    exponent = np.where(size > 0, exponent, _SMALLEST_EXPONENT[kind])
    return np.ldexp(1.0, np.maximum(exponent, _SMALLEST_EXPONENT[kind]) - _MANTISSA_BITS[kind])


def mismatches(recorded: Words, emulated: Words, kind: Kind, tolerance: Tolerance) -> NDArray[np.bool_]:
    """Which of the threads' results are too far from the recorded ones."""
    if kind in (Kind.F16X2, Kind.BF16X2):
        half = Kind.F16 if kind is Kind.F16X2 else Kind.BF16
        low, high = np.uint64(0xFFFF), np.uint64(16)
        return mismatches(recorded & low, emulated & low, half, tolerance) | mismatches(
            recorded >> high, emulated >> high, half, tolerance
        )
    different = recorded != emulated
    if tolerance.exact or kind is Kind.BITS:
        return different
    with np.errstate(invalid="ignore"):
        expected, actual = _values(recorded, kind), _values(emulated, kind)
        distance = np.abs(actual - expected)
        allowed = np.maximum(tolerance.ulp * _unit(expected, kind), tolerance.absolute)
        close = (distance <= allowed) & (allowed > 0)
    close |= np.isnan(expected) & np.isnan(actual)
    return different & ~close
