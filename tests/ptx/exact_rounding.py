"""Rounding of exact rational numbers to a floating-point format, slowly and plainly: what the C code is held to."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

RN, RZ, RM, RP, RNA = range(5)
MODES = (RN, RZ, RM, RP)
NAMES = ("rn", "rz", "rm", "rp", "rna")


@dataclass(frozen=True)
class Format:
    mantissa_bits: int
    bias: int
    largest: int  # code of the greatest finite magnitude
    sign: int

    @property
    def infinity(self) -> int:
        return self.largest + 1


F16 = Format(10, 15, 0x7BFF, 0x8000)
BF16 = Format(7, 127, 0x7F7F, 0x8000)
F32 = Format(23, 127, 0x7F7FFFFF, 0x80000000)
F64 = Format(52, 1023, 0x7FEFFFFFFFFFFFFF, 1 << 63)
E4M3 = Format(3, 7, 0x7E, 0x80)
E5M2 = Format(2, 15, 0x7B, 0x80)


def value_of(code: int, form: Format) -> Fraction:
    """Of a finite code."""
    magnitude = code & (form.sign - 1)
    exponent, mantissa = magnitude >> form.mantissa_bits, magnitude & ((1 << form.mantissa_bits) - 1)
    if exponent:
        mantissa |= 1 << form.mantissa_bits
    else:
        exponent = 1
    value = Fraction(mantissa) * Fraction(2) ** (exponent - form.bias - form.mantissa_bits)
    return -value if code & form.sign else value


def rounded_integer(value: Fraction, mode: int) -> int:
    below = math.floor(value)
    rest = value - below
    if rest == 0:
        return below
    if mode == RZ:
        return below if value > 0 else below + 1
    if mode == RM:
        return below
    if mode == RP:
        return below + 1
    if rest == Fraction(1, 2):
        if mode == RNA:
            return below + 1 if value > 0 else below
        return below if below % 2 == 0 else below + 1
    return below if rest < Fraction(1, 2) else below + 1


def code_of(value: Fraction, form: Format, mode: int, saturate: bool = False, negative_zero: bool = False) -> int:
    """The nearest code in a rounding; `negative_zero` is the sign of an exact zero."""
    if value == 0:
        return form.sign if negative_zero else 0
    size, sign = abs(value), form.sign if value < 0 else 0
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if Fraction(2) ** exponent > size:
        exponent -= 1
    exponent = max(exponent, 1 - form.bias)
    unit = Fraction(2) ** (exponent - form.mantissa_bits)
    steps = abs(rounded_integer(value / unit, mode))
    code = ((exponent + form.bias - 1) << form.mantissa_bits) + steps
    if code > form.largest:
        inward = mode == RZ or (mode == RM and value > 0) or (mode == RP and value < 0)
        code = form.largest if saturate or inward else form.infinity
    return sign | code
