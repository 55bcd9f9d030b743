"""The constants in a kernel's code, put among its inputs and taken as numbers of blocks.

A value, a row or a block that a kernel treats unlike the others is usually a constant of its PTX, and no random value
meets one of 2**64. What is computed from several constants, or given to the kernel as a number, is not found so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tilewright.devices.emulation.input_content import Seeded
from tilewright.records import Case, DType, Integers, Task, TensorInput, UniformValues

CONSTANTS = "constants of the code"
Word = npt.NDArray[np.uint8]
_SEED = 601
_LEAST = 17  # smaller numbers occur among random ones
_MOST = 40
_MOST_BLOCKS = 6
_LARGEST, _SMALLEST = 64.0, 2.0**-14  # of floats: ordinary ones, which no reference minds
_SHARE = 8  # one word in so many
_ELEMENTS = range(256, (1 << 16) + 1)  # of the inputs of a case that can hold them
_SETS = ("setp", "set", "xor", "add", "sub", "lop3")  # of which constants are compared with something
_INSTRUCTION = re.compile(r"^\s*(?:@!?%\w+\s+)?([a-z]\w*)[\w.:]*\s+([^;\[\]]*);", re.MULTILINE)
_NUMBER = re.compile(r"-?\b(?:0[xX][0-9a-fA-F]+|\d+)U?\b|\b0[fF][0-9a-fA-F]{8}\b|\b0[dD][0-9a-fA-F]{16}\b")


@lru_cache(maxsize=16)
def constants_of(ptx: str) -> tuple[int, ...]:
    """The bits of the constants, those that something is compared with first."""
    compared: dict[int, None] = {}
    others: dict[int, None] = {}
    for opcode, operands in _INSTRUCTION.findall(ptx):
        for text in _NUMBER.findall(operands.replace("%", " %r")):
            value = int(text[2:], 16) if text[:2].lower() in ("0f", "0d") else int(text.rstrip("U"), 0)
            into = compared if opcode in _SETS else others
            into.update(dict.fromkeys((value, -value) if opcode in ("add", "sub") else (value,)))
    return tuple(one for one in dict.fromkeys((*compared, *others)) if abs(one) >= _LEAST)[:_MOST]


# -- as values --


def constants_case(
    task: Task, ptx: str, cases: Iterable[Case], kinds: Iterable[str], seeded: Callable[..., Seeded]
) -> Case | None:
    """A case whose inputs hold the constants, at the largest suitable sizes among those of `cases`; None where nothing
    fits. `kinds` of values that the reference accepts say which integers may take any value."""
    known = constants_of(ptx)
    counts = [(sum(spec.numel for spec in task.specs(one.sizes).values()), one.sizes) for one in cases]
    suitable = [one for one in counts if one[0] in _ELEMENTS]
    if not known or not suitable:
        return None
    free = [one.name for one in task.tensors if any(f"{one.name}=full" in kind for kind in kinds)]
    bits = "+".join(f"{one:#x}" for one in known)
    values = f"{CONSTANTS}: bits={bits}" + (f", free={'+'.join(free)}" if free else "")
    sizes = max(suitable, key=lambda one: one[0])[1]
    case = Case(sizes, _SEED, values)
    given = [one for one in task.tensors if not one.optional]
    fits = (_patterns(one, seeded(one, sizes, 0), width, _settings(values)) for one in given for width in _widths(one))
    return case if any(fits) else None


def with_constants(
    generator: np.random.Generator, one: TensorInput, content: Seeded, own: Word, settings: Mapping[str, str]
) -> bytes:
    """The task's own values with constants in between, alone and as neighbours in one word."""
    storage = np.array(own)
    for width in _widths(one):
        patterns = _patterns(one, content, width, settings)
        words = storage[: len(storage) // width * width].reshape(-1, width)
        places = generator.permutation(len(words))[: len(words) // _SHARE]
        for number, place in enumerate(places if patterns else ()):
            words[place] = patterns[number % len(patterns)]
    return storage.tobytes()


def _settings(values: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in values.partition(": ")[2].split(", "))


def _widths(one: TensorInput) -> tuple[int, ...]:
    size = one.dtype.itemsize
    return tuple(width for width in (size, 2 * size) if width <= 8) if one.dtype is not DType.BOOL else ()


def _patterns(one: TensorInput, content: Seeded, width: int, settings: Mapping[str, str]) -> list[Word]:
    """The constants that are ordinary values of the input, as bytes of one element or of neighbours."""
    free = one.name in settings.get("free", "").split("+")
    found = []
    for value in (int(text, 16) for text in settings["bits"].split("+")):
        if -(1 << 8 * width - 1) <= value < 1 << 8 * width:
            word = np.frombuffer((value % (1 << 8 * width)).to_bytes(width, "little"), np.uint8)
            if all(_is_ordinary(one, content, part, free) for part in word.reshape(-1, one.dtype.itemsize)):
                found.append(word)
    return found


def _is_ordinary(one: TensorInput, content: Seeded, bits: Word, free: bool) -> bool:
    if isinstance(content, Integers):
        value = int.from_bytes(bits.tobytes(), "little", signed=one.dtype is not DType.U8)
        return free or content.low <= value < content.high
    if one.dtype.itemsize == 1:
        return False
    if one.dtype is DType.BF16:
        number = float(np.concatenate([np.zeros(2, np.uint8), bits]).view(np.float32)[0])
    else:
        number = float(bits.view(f"f{one.dtype.itemsize}")[0])
    if isinstance(one.values, UniformValues):
        return one.values.low <= number <= one.values.high
    return number == 0 or _SMALLEST <= abs(number) <= _LARGEST


# -- as blocks --


def blocks_named(ptx: str, blocks: int, threads: int) -> tuple[int, ...]:
    """Blocks of a grid that constants of the code number, or whose threads they number, the least usual first."""
    known = [one for one in constants_of(ptx) if one > 0]
    places = [one for one in (*known, *(one // threads for one in known)) if _LEAST <= one < blocks]
    return tuple(sorted(dict.fromkeys(places), key=lambda one: one & (one - 1) == 0)[:_MOST_BLOCKS])
