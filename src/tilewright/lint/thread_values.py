"""Integers of all threads of a block: exact, known up to a shared offset, or unknown; and PTX arithmetic on them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from tilewright.records.gpu import WARP_LANES

Numbers = NDArray[np.int64]
_TENSOR_START = 16  # bytes: the alignment of every tensor
_FAR = 2**40  # no number of 32 bits is near it


class Varying(Enum):
    """An unknown value, by why threads may differ in it."""

    BY_THREAD = "by thread"
    BY_DATA = "by data"


@dataclass(frozen=True)
class Origin:
    """What an address points into."""

    space: str  # "tensor", "shared" or "module"
    name: str


@dataclass(frozen=True, eq=False)
class Known:
    """One number per thread. If not anchored, known up to an offset that all threads share."""

    values: Numbers
    anchored: bool
    origin: Origin | None = None
    wrapped: int | None = None  # the instruction that widened an overflowed 32-bit number
    reach: int = 0  # if not anchored: the largest known number that went into it

    @property
    def is_uniform(self) -> bool:
        return bool((self.values == self.values[0]).all())

    @property
    def number(self) -> int | None:
        """The number that all threads hold, if it is known."""
        return int(self.values[0]) if self.anchored and self.origin is None and self.is_uniform else None


Value = Known | Varying


# -- arithmetic --


def compute(index: int, opcode: str, modifiers: tuple[str, ...], values: list[Known]) -> Value | None:
    """The result; None where only its variation is known."""
    if opcode in ("mov", "cvta") and len(values) == 1:
        return values[0]
    if opcode == "cvt":
        return _converted(index, modifiers, values[0])
    if opcode in ("add", "sub"):
        return _sum(values[0], values[1], 1 if opcode == "add" else -1)
    if opcode == "neg":
        return _times(values[0], -1)
    if opcode in ("mul", "mad"):
        product = _product(index, modifiers, values[0], values[1])
        return _sum(product, values[2], 1) if opcode == "mad" and isinstance(product, Known) else product
    if opcode == "shl" and values[1].number is not None:
        return _times(values[0], 1 << min(values[1].number, 62))
    if opcode == "or" and (shifted := _disjoint(values[0], values[1])) is not None:
        return shifted
    if opcode == "and" and (low := _low_bits(values[0], values[1])) is not None:
        return low
    if opcode == "selp":
        return _selected(*values)
    return _bitwise(opcode, modifiers, values)


def _sum(first: Known, second: Known, sign: int) -> Known:
    values = first.values + sign * second.values
    anchored = first.anchored and second.anchored
    wrapped = first.wrapped if first.wrapped is not None else second.wrapped
    reach = 0 if anchored or (sign < 0 and not second.anchored) else max(_reach(first), _reach(second))
    if second.origin is None:
        return Known(values, anchored, first.origin, wrapped, reach)
    if first.origin is None and sign > 0:
        return Known(values, anchored, second.origin, wrapped, reach)
    return Known(values, anchored and sign < 0 and first.origin == second.origin, None, wrapped)


def _times(value: Known, factor: int) -> Known:
    if value.origin is not None:
        return Known(value.values * factor, False)
    reach = 0 if value.anchored or factor < 0 else min(value.reach * factor, _FAR)
    return Known(value.values * factor, value.anchored, None, value.wrapped, reach)


def _reach(value: Known) -> int:
    if value.origin is not None:
        return 0
    return int(value.values.max()) if value.anchored else value.reach


def _product(index: int, modifiers: tuple[str, ...], first: Known, second: Known) -> Value | None:
    if "wide" in modifiers:
        first, second = (_widened(index, value, modifiers[-1]) for value in (first, second))
    if "hi" in modifiers:
        bits, held = _bits(modifiers), [_held(one, modifiers) for one in (first, second)]
        return exact(lambda a, b: a * b >> bits, *held) if bits < 64 else None
    for one, other in ((first, second), (second, first)):
        if other.number is not None:
            return _times(one, other.number)
    if first.anchored and second.anchored and not first.origin and not second.origin:
        wrapped = first.wrapped if first.wrapped is not None else second.wrapped
        return Known(first.values * second.values, True, None, wrapped)
    return None


def max_value(kind: str) -> int:
    """The largest value of a 32-bit type."""
    return 2**32 - 1 if kind == "u32" else 2**31 - 1


def _widened(index: int, value: Known, kind: str) -> Known:
    """Widen a 32-bit number to 64 bits; marks one that overflowed, whose address will be wrong."""
    fits = kind not in ("u32", "s32") or value.origin is not None or _reach(value) <= max_value(kind)
    return value if fits else replace(value, wrapped=index)


def _converted(index: int, modifiers: tuple[str, ...], value: Known) -> Value | None:
    to, source = modifiers[-2], modifiers[-1]
    if to in ("s64", "u64", "b64") and source in ("s32", "u32"):
        return _widened(index, value, source)
    if int(to[1:]) < int(source[1:]):
        return value if to[1:] == "32" else exact(lambda a: a, _held(value, (to,)))
    return value if value.wrapped is None else replace(value, wrapped=None)


def _held(value: Known, modifiers: tuple[str, ...]) -> Known:
    bits = _bits(modifiers)
    if bits >= 64 or not value.anchored or value.origin is not None:
        return replace(value, wrapped=None)
    folded = value.values & ((1 << bits) - 1)
    if modifiers[-1][:1] == "s":
        folded = np.where(folded >= 1 << (bits - 1), folded - (1 << bits), folded)
    return Known(folded, True)


def _disjoint(first: Known, second: Known) -> Known | None:
    """Compilers write a sum as `or` where the bits do not overlap."""
    number = second.number
    if (first.anchored and second.anchored and first.origin is None) or number is None or number < 0:
        return None
    low = (1 << number.bit_length()) - 1
    return None if (first.values & low).any() else _sum(first, second, 1)


def _low_bits(address: Known, mask: Known) -> Known | None:
    """`pointer & 15`, given the alignment of tensors."""
    number = mask.number
    if address.origin is None or address.origin.space != "tensor" or not address.anchored:
        return None
    return Known(address.values & number, True) if number is not None and 0 <= number < _TENSOR_START else None


def _selected(first: Known, second: Known, predicate: Known) -> Value | None:
    if predicate.number is not None:
        return first if predicate.number else second
    if same(first, second):
        return first
    if predicate.anchored and first.anchored and second.anchored and first.origin == second.origin:
        return Known(np.where(predicate.values != 0, first.values, second.values), True, first.origin)
    return join(first, second) if predicate.is_uniform else None


_COMPARED = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
}


def _bitwise(opcode: str, modifiers: tuple[str, ...], values: list[Known]) -> Value | None:
    held = [_held(value, modifiers) for value in values]
    if opcode == "setp" and modifiers[0] in _COMPARED and len(held) == 2:
        if held[0].origin is not None and held[0].origin == held[1].origin:
            held = [replace(value, origin=None) for value in held]
        return exact(lambda a, b: _COMPARED[modifiers[0]](a, b).astype(np.int64), *held)
    if opcode in _EXACT and len(held) == _EXACT[opcode][0]:
        function = _EXACT[opcode][1]
        if opcode in ("div", "rem") and not (held[1].anchored and held[1].values.all()):
            return None
        made = exact(function, *held)
        return _held(made, modifiers) if isinstance(made, Known) and modifiers[-1] != "pred" else made
    if opcode == "not":
        flip = (lambda a: 1 - a) if modifiers[-1] == "pred" else (lambda a: ~a)
        return exact(flip, *held)
    return None


def _quotient(a: Numbers, b: Numbers) -> Numbers:
    made: Numbers = np.abs(a) // np.abs(b) * np.sign(a) * np.sign(b)
    return made


_EXACT = {
    "and": (2, lambda a, b: a & b),
    "or": (2, lambda a, b: a | b),
    "xor": (2, lambda a, b: a ^ b),
    "shl": (2, lambda a, b: a << np.minimum(b, 62)),
    "shr": (2, lambda a, b: a >> np.minimum(b, 63)),
    "min": (2, np.minimum),
    "max": (2, np.maximum),
    "div": (2, _quotient),
    "rem": (2, lambda a, b: a - b * _quotient(a, b)),
    "bfe": (3, lambda a, start, length: a >> start & ((np.int64(1) << length) - 1)),
}


def exact(function: object, *values: Value | None) -> Value | None:
    known = [value for value in values if isinstance(value, Known) and value.anchored and value.origin is None]
    if len(known) < len(values):
        return None
    return Known(function(*(value.values for value in known)), True)  # type: ignore[operator]


def shuffled(modifiers: tuple[str, ...], values: list[Value]) -> Value:
    """A shuffle from a fixed lane."""
    value, lane = values[0], values[1]
    if "idx" not in modifiers or not isinstance(value, Known) or not isinstance(lane, Known) or lane.number is None:
        return Varying.BY_DATA
    threads = np.arange(len(value.values)) // WARP_LANES * WARP_LANES + lane.number
    return replace(value, values=value.values[np.minimum(threads, len(value.values) - 1)])


def _bits(modifiers: tuple[str, ...]) -> int:
    digits = modifiers[-1][1:] if modifiers else ""
    return int(digits) if digits.isdigit() else 64


def is_whole(modifiers: tuple[str, ...]) -> bool:
    """Integers and addresses. Of floats only uniformity is known."""
    return (
        bool(modifiers)
        and (modifiers[-1] == "pred" or (modifiers[-1][0] in "bsu" and modifiers[-1][1:].isdigit()))
        and (len(modifiers) < 2 or modifiers[-2] not in ("f16", "f32", "f64", "bf16"))
    )


def signed(bits: int) -> int:
    """Immediates are written as signed numbers or as 64 bits."""
    return bits - 2**64 if bits >= 2**63 else bits


# -- the lattice --


def join(first: Value, second: Value) -> Value:
    if isinstance(first, Varying) or isinstance(second, Varying):
        return mixed([first, second])
    if first.origin != second.origin:
        return Varying.BY_DATA
    wrapped = first.wrapped if first.wrapped is not None else second.wrapped
    if first.anchored and second.anchored and bool((first.values == second.values).all()):
        return replace(first, wrapped=wrapped)
    lies = first.values - first.values[0]
    if bool((lies == second.values - second.values[0]).all()):
        return Known(lies, False, first.origin, wrapped, max(_reach(first), _reach(second)))
    return Varying.BY_THREAD


def mixed(values: list[Value | None]) -> Value:
    """The variation of a result of these values."""
    if Varying.BY_DATA in values:
        return Varying.BY_DATA
    known = [value for value in values if isinstance(value, Known)]
    if len(known) < len(values) or any(not value.is_uniform for value in known):
        return Varying.BY_THREAD
    return Known(np.zeros_like(known[0].values), False) if known else Varying.BY_DATA


def same(first: Value, second: Value) -> bool:
    if isinstance(first, Varying) or isinstance(second, Varying):
        return first is second
    return (
        first.anchored == second.anchored
        and first.origin == second.origin
        and first.reach == second.reach
        and (first.wrapped is None) == (second.wrapped is None)
        and bool((first.values == second.values).all())
    )
