"""What registers, shared and local memory may hold before anything is written there.

A GPU leaves what earlier blocks had there. So memory that nothing wrote is filled with numbers that show in a result,
with the kernels' own constants, which they may look for, and with a random mixture of both.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from random import Random

from tilewright.ptx.operands import TYPE_BYTES
from tilewright.ptx.syntax import Immediate, Instruction, Module
from tilewright.records import FindingRecord

_MODIFIER = re.compile(r"\.([a-z]+\d+)\b")
_COMPARISONS = frozenset(("setp", "set", "xor", "add", "sub"))  # `x - 7 < 3` compares as well
_MOST_CONSTANTS = 24
_MIXED_BYTES = 1 << 14
_MOST_FILLS = 48
_LARGEST = 16  # bytes of one access
_EVERYDAY = (0, 1, 2, -1, 0x3F800000, 0x7FFFFFFF)  # 0x3f800000 is 1.0 in f32


def widths_of(reads: Sequence[FindingRecord]) -> frozenset[int]:
    """The bytes of the elements that were read; of registers, where nothing was, words."""
    types = (name for one in reads for name in _MODIFIER.findall(one.ptx_text))
    return frozenset(TYPE_BYTES[name] for name in types if TYPE_BYTES.get(name, _LARGEST) < _LARGEST) or frozenset({4})


def constant_fills(module: Module, widths: Iterable[int]) -> tuple[bytes, ...]:
    """The constants of the kernels, those of comparisons first, in each width that holds them."""
    found = dict.fromkeys(itertools.islice(_constants(module), _MOST_CONSTANTS))
    fills = (_bytes(value, width) for value in found for width in sorted(widths))
    return tuple(itertools.islice(dict.fromkeys(fill for fill in fills if fill), _MOST_FILLS))


def mixed_fill(module: Module, widths: Iterable[int], seed: int) -> bytes:
    """Words drawn from the constants, everyday numbers and all numbers."""
    random, width = Random(seed), max(widths)
    known = [fill for value in (*_constants(module), *_EVERYDAY) if (fill := _bytes(value, width))]
    words = (random.choice(known) if random.random() < 0.7 else random.randbytes(width) for _ in itertools.count())
    return b"".join(itertools.islice(words, _MIXED_BYTES // width))


def _constants(module: Module) -> Iterator[int]:
    body = [one for function in module.functions.values() for one in function.body]
    compared = dict.fromkeys(value for one in body if one.opcode in _COMPARISONS for value in _immediates(one))
    yield from compared
    yield from dict.fromkeys(value for one in body for value in _immediates(one) if value not in compared)


def _immediates(one: Instruction) -> Iterator[int]:
    for operand in one.operands:
        if isinstance(operand, Immediate):
            yield operand.bits
            if one.opcode == "add" and not operand.width:
                yield -operand.bits


def _bytes(value: int, width: int) -> bytes:
    bits = 8 * width
    return (value % (1 << bits)).to_bytes(width, "little") if -(1 << bits - 1) <= value < 1 << bits else b""
